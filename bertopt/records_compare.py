"""What `bertopt compare` writes down."""

from __future__ import annotations

from dataclasses import dataclass, field

from bertopt.records import SCHEMA_VERSION


@dataclass(frozen=True)
class Side:
    """One run, as it is compared: a ladder's rung, a diagnosis, a training loop, or the knee of a sweep. None: not measured."""

    run: str
    what: str  # "ladder, rung fp16"
    created: str
    device: str
    work: dict[str, str]  # what has to be alike: model, texts, requests, shapes
    choices: dict[str, str]  # what may differ: rung, back end, precision, workers
    throughput_seq_s: float | None
    repeats_seq_s: list[float] = field(default_factory=list)
    throughput_tokens_s: float | None = None
    batch_ms: float | None = None
    phases_ms: dict[str, float] = field(default_factory=dict)
    utilization: dict[str, float | None] = field(default_factory=dict)
    padding_fraction: float | None = None
    peak_mib: float | None = None
    power_w: float | None = None
    energy_j_per_1000: float | None = None
    price_per_hour: float | None = None
    cost_per_million: float | None = None  # sequences, in the currency of the price
    verdict: str | None = None
    against_first: str | None = None  # "faster", "slower", "no difference", or why nobody can tell
    ratio_to_first: float | None = None

    @property
    def ends_seq_s(self) -> tuple[float, float] | None:
        """Slowest and fastest repeat, never without the figure itself between them; None where repeats were not kept.

        An earlier version's training record has a mean that ended after its last step, and so may lie beyond its blocks.
        """
        known = [*self.repeats_seq_s, *([self.throughput_seq_s] if self.throughput_seq_s is not None else [])]
        return (min(known), max(known)) if self.repeats_seq_s else None


@dataclass(frozen=True)
class Difference:
    """One thing in which the runs differ, with each run's value."""

    name: str
    values: list[str]


@dataclass(frozen=True)
class Comparison:
    """A run of `bertopt compare`; `compare.json`."""

    created: str  # ISO 8601, UTC
    command: str
    bertopt_version: str
    sides: list[Side]
    unlike: list[Difference] = field(default_factory=list)  # in work; empty unless it was allowed
    environment: list[Difference] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION
