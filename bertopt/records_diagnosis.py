"""What `bertopt diagnose` and a training loop write down: the observation that rules look at, and what they found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bertopt.records import SCHEMA_VERSION, DataInfo, ModelInfo
from bertopt.records_card import CardReading


@dataclass(frozen=True)
class Growth:
    """Device time of one batch of `rows` requests that lies ready, and what collating it takes."""

    rows: int
    device_ms: float
    collate_ms: float | None = None


@dataclass(frozen=True)
class Observation:
    """One pipeline as it was seen. Milliseconds are means per batch; None is not measured, and `missing` may say why.

    A service's loop tokenizes, collates, copies, launches, computes, copies back and answers. A training loop waits for its
    input (here `tokenize_ms` or `collate_ms`, whichever the caller says its loader does), copies, and computes.
    """

    device: str = "cpu"  # "cpu" or "cuda"
    training: bool = False
    rows: float | None = None  # requests of a batch
    batches: int = 0
    batch_ms: float | None = None  # wall time over batches: what all the rest has to explain
    repeats_ms: list[float] = field(default_factory=list)
    repeats_phases_ms: list[dict[str, float]] = field(default_factory=list)  # of each repeat, by the names of fields below

    # How it was set up
    workers: int | None = None  # tokenizing ahead of compute; None: the loop tokenizes
    in_flight: int = 1
    cores: int | None = None
    pinned: bool | None = None  # None: there are no copies
    tokenizer: str | None = None  # "reference" or "fast"
    batching: str | None = None
    backend: str | None = None
    precision: str | None = None
    window: int | None = None
    requests: int | None = None

    # Its phases inside the loop
    tokenize_ms: float | None = None  # on the core that did it
    collate_ms: float | None = None
    copy_in_ms: float | None = None
    launch_ms: float | None = None
    device_ms: float | None = None
    copy_out_ms: float | None = None
    postprocess_ms: float | None = None
    loop_ms: dict[str, float] = field(default_factory=dict)  # the loop's own thread, phase by phase; they add up to batch_ms

    # The same one at a time, by elimination
    device_alone_ms: float | None = None  # batches that lie ready, replayed in order
    tokenize_alone_ms: float | None = None  # with its workers, nothing after it
    tokenize_fast_ms: float | None = None  # the Rust tokenizer on one core
    collate_alone_ms: float | None = None
    copy_pageable_ms: float | None = None
    copy_pinned_ms: float | None = None
    bucketed_device_ms: float | None = None  # device time of the same rows in length buckets
    growth: list[Growth] = field(default_factory=list)

    # Of the device
    synchronizations: float | None = None  # per batch, while launching: the host waited for the device
    launch_wait_ms: float | None = None  # time of a launch that went by so
    kernel_busy: float | None = None  # share of the time of batches that lie ready, or of a training step
    kernels: float | None = None  # per batch
    span: float | None = None
    flops: float | None = None  # of a batch, padding included
    ceiling_flop_s: float | None = None  # measured, in the precision that ran
    half_ceiling_flop_s: float | None = None
    weight_bytes: float | None = None
    bandwidth_b_s: float | None = None  # measured
    card: CardReading | None = None

    tokens: float | None = None  # real ones of a batch
    padding_fraction: float | None = None
    attention_waste_fraction: float | None = None
    bucketed_padding_fraction: float | None = None

    probe_cost_fraction: float | None = None
    missing: dict[str, str] = field(default_factory=dict)  # field -> why it is None

    @property
    def throughput_seq_s(self) -> float | None:
        return None if not self.batch_ms or self.rows is None else 1e3 * self.rows / self.batch_ms

    @property
    def throughput_tokens_s(self) -> float | None:
        """Real tokens: padding is not work."""
        return None if not self.batch_ms or self.tokens is None else 1e3 * self.tokens / self.batch_ms

    @property
    def explained(self) -> float | None:
        """Sum of the loop's phases over its time: 1 but for what no phase holds."""
        return None if not self.batch_ms or not self.loop_ms else sum(self.loop_ms.values()) / self.batch_ms

    @property
    def flop_s(self) -> float | None:
        """Achieved on the device, padding counted as work."""
        device = self.device_alone_ms or self.device_ms
        return None if self.flops is None or not device else 1e3 * self.flops / device

    @property
    def ceiling_share(self) -> float | None:
        """Achieved FLOP/s over the measured ceiling."""
        return None if self.flop_s is None or not self.ceiling_flop_s else self.flop_s / self.ceiling_flop_s


@dataclass(frozen=True)
class Finding:
    """One verdict with its evidence. A state says what binds; a fault is time that can be had back."""

    verdict: str  # "TOKENIZE-BOUND"
    why: str
    gives_back_ms: float | None = None  # per batch, if it is mended and nothing else is; None where no step is known
    predicted_batch_ms: float | None = None
    next: str = ""  # a command to paste
    state: bool = False

    def gain(self, batch_ms: float) -> float | None:
        """Throughput that mending brings, as a factor."""
        return batch_ms / self.predicted_batch_ms if self.predicted_batch_ms else None


@dataclass(frozen=True)
class Prediction:
    """What an earlier diagnosis promised, against what this one measured."""

    run: str
    verdict: str
    before_seq_s: float
    predicted_seq_s: float
    measured_seq_s: float
    outcome: str  # "held", "more than predicted", "fell short" or "no difference"
    sentence: str


@dataclass(frozen=True)
class Diagnosis:
    """A run of `bertopt diagnose`, or of a training loop; `diagnosis.json`."""

    created: str  # ISO 8601, UTC
    command: str
    bertopt_version: str
    environment: dict[str, Any]
    device: str
    batch_size: int
    sequence_length: int
    observation: Observation
    findings: list[Finding]  # the first is the verdict
    model: ModelInfo | None = None
    data: DataInfo | None = None
    pipeline: dict[str, str] = field(default_factory=dict)
    after: Prediction | None = None
    seconds: float | None = None  # what finding out took
    peak_device_mib: float | None = None
    notes: list[str] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION

    @property
    def first(self) -> Finding:
        return self.findings[0]
