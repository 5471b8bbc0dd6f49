"""What a run writes down: frozen dataclasses that are plain JSON, the only thing that reports read.

``None`` means not measured, and ``notes`` says why; a measured zero is ``0.0``. Field names carry their units.
Every class converts to and from plain JSON with `to_json` and `from_json`; a field that a newer version added is
filled with its default when an older file is read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bertopt.errors import UsageError
from bertopt.files import write_text
from bertopt.records_card import CardReading

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Percentiles:
    """Over the real per-batch times of the timed window, milliseconds."""

    p50: float
    p90: float
    p99: float
    samples: int


@dataclass(frozen=True)
class Interval:
    """A proportion with its Wilson score interval at ``confidence_percent``."""

    value: float
    low: float
    high: float
    rows: int
    confidence_percent: float = 95.0


@dataclass(frozen=True)
class Parity:
    """A rung's logits against eager FP32 on rows of mixed lengths with real padding."""

    max_difference: float
    logit_spread: float  # standard deviation of the reference logits over rows and labels
    relative_difference: float  # max_difference / logit_spread
    label_agreement: float | None  # None where labels mean nothing: random weights, embeddings, regression
    rows: int
    limit_relative_difference: float
    limit_label_agreement: float | None
    passed: bool


@dataclass(frozen=True)
class GateSummary:
    """What the accuracy gate found of a rung: the drop of a metric from the baseline's, in points (hundredths of it)."""

    metric: str
    max_drop_points: float
    confidence_percent: float
    drop_points: float
    drop_low_points: float  # each end alone holds at `confidence_percent`
    drop_high_points: float
    rows: int  # distinct ones, none of them calibrated with
    documents: int | None  # that rows share; None where they are independent
    rows_needed: int | None  # an estimate of those that would decide
    label_agreement: Interval | None  # with FP32, over these rows
    worst_label: str | None
    reason: str
    next: str


@dataclass(frozen=True)
class Span:
    """One bar of a timeline, in milliseconds from the start of the batch that is drawn."""

    lane: str  # "host" (tokenize, collate), "copy", "device", "post"
    name: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class RungRecord:
    """One row of the ladder, as measured, skipped or failed."""

    name: str
    summary: str
    parent: str | None
    status: str  # "measured", "skipped" or "failed"
    reason: str | None = None  # why it was skipped or failed
    remedy: str | None = None  # the command that would make it run

    # What it ran
    stages: dict[str, str] = field(default_factory=dict)  # tokenizer, feed, batching, backend, precision: what was asked
    precision: str | None = None  # what really ran, read back from the session: "fp32", "bf16", "fp16", "int8"
    backend_version: str | None = None  # "OpenVINO 2026.4.1, 2 threads"
    workers: int | None = None
    in_flight: int | None = None
    window: int | None = None
    bucket_edges: list[int] | None = None
    graph: dict[str, Any] | None = None  # fused-operator counts and the like

    # How fast, over `repeats_seq_s` (one figure a repeat; the median is the figure, the ends are the spread)
    throughput_seq_s: float | None = None
    throughput_low_seq_s: float | None = None
    throughput_high_seq_s: float | None = None
    repeats_seq_s: list[float] = field(default_factory=list)
    throughput_tokens_s: float | None = None  # real tokens; padding is not work
    speedup_over_baseline: float | None = None
    speedup_over_parent: float | None = None
    parent_verdict: str | None = None  # "faster", "slower" or "no difference" (inside the spread)
    requests: int | None = None
    batches: int | None = None
    failed_batches: int | None = None
    truncated_requests: int | None = None
    batch_ms: Percentiles | None = None
    warmup_s: float | None = None
    first_batch_ms: float | None = None
    prepare_s: float | None = None  # export, fuse, build, load

    # Where the time goes, means per batch
    tokenize_ms: float | None = None
    collate_ms: float | None = None  # grouping, padding, filling the buffers
    launch_ms: float | None = None  # handing the work over; beside the device's work where that is asynchronous
    copy_in_ms: float | None = None
    device_ms: float | None = None
    copy_out_ms: float | None = None
    postprocess_ms: float | None = None

    # Padding
    padding_fraction: float | None = None  # wasted tokens over computed tokens
    attention_waste_fraction: float | None = None  # wasted over computed attention FLOPs (rows x length squared)

    # Ceilings and utilization (fractions, 0 to 1)
    device_ceiling_seq_s: float | None = None
    tokenizer_ceiling_seq_s: float | None = None
    ceiling_share: float | None = None  # throughput over the lower ceiling
    utilization_predicted: float | None = None
    utilization_span: float | None = None
    utilization_kernel_busy: float | None = None
    utilization_sm_active: float | None = None
    utilization_tensor_active: float | None = None
    utilization_nvidia_smi: float | None = None
    utilization_cores_busy: float | None = None
    probe_cost_fraction: float | None = None
    card: CardReading | None = None  # of the last repeat; None on a CPU, and in what was written before it was kept
    peak_process_mib: float | None = None
    peak_device_mib: float | None = None

    # Whether the answers are still right
    parity: Parity | None = None
    accuracy: Interval | None = None
    label_agreement: float | None = None  # with the baseline's labels, over all requests
    gate: str | None = None  # "passed", "failed", "inconclusive", "not gated"; None: its precision is not lowered
    gate_reason: str | None = None  # in one sentence
    gate_summary: GateSummary | None = None

    timeline: list[Span] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PolicyPadding:
    """What one batching policy adds to these lengths; computed from lengths alone, nothing is run."""

    policy: str  # "padded to --seq", "longest in batch", "bucketed"
    window: int
    padding_fraction: float
    attention_waste_fraction: float


@dataclass(frozen=True)
class LengthHistogram:
    """Requests by length in tokens, special tokens included, after truncation."""

    counts: list[int]  # counts[n] is the number of requests with n tokens
    mean: float
    p50: int
    p90: int
    p99: int
    longest: int


@dataclass(frozen=True)
class ModelInfo:
    name: str
    source: str  # folder or hub name
    architecture: str
    task: str
    labels: list[str] | None
    parameters: int | None
    fingerprint: str | None
    weights: str  # "trained", "random" (--random-weights) or "random head"
    layers: int
    hidden: int
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class DataInfo:
    name: str
    requests: int
    labelled: bool
    pairs: bool
    fingerprint: str | None
    truncated_requests: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """What bounds the best rung now, why, and what to try next."""

    bound_by: str
    why: str
    next: str


@dataclass(frozen=True)
class LadderRecord:
    """A whole run; `runs/<time>-<model>/ladder.json`."""

    created: str  # ISO 8601, UTC
    command: str
    bertopt_version: str
    environment: dict[str, Any]
    model: ModelInfo
    data: DataInfo
    batch_size: int
    sequence_length: int
    device: str
    repeats: int
    rungs: list[RungRecord]
    best: str | None = None
    verdict: Verdict | None = None
    lengths: LengthHistogram | None = None
    padding: list[PolicyPadding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION

    def rung(self, name: str) -> RungRecord | None:
        return next((r for r in self.rungs if r.name == name), None)


def to_json(record: Any) -> str:
    """A record as indented JSON with a newline at the end."""
    return json.dumps(dataclasses.asdict(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


T = TypeVar("T")


def from_json(kind: type[T], text: str) -> T:
    """A record from its JSON. Fields that are absent take their defaults; fields of a newer version are left out."""
    return typing.cast(T, _build(kind, json.loads(text)))


def save(record: Any, path: os.PathLike[str] | str) -> None:
    write_text(path, to_json(record))


def load_ladder(path: os.PathLike[str] | str) -> LadderRecord:
    """The record of a run, from its folder or its `ladder.json`.

    Raises UsageError where the file is absent, is not a run, or has a newer schema than this version reads.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "ladder.json"
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path} is no run: there is no {file}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{file} cannot be read as a run: {error}") from None
    version = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(version, int):
        raise UsageError(f"{file} is no run: it has no schema_version")
    if version > SCHEMA_VERSION:
        raise UsageError(f"{file} has schema {version}, and this bertopt reads up to {SCHEMA_VERSION}: install a newer one")
    try:
        return typing.cast(LadderRecord, _build(LadderRecord, data))
    except (KeyError, TypeError) as error:
        raise UsageError(f"{file} is no run: {error}") from None


def _build(kind: Any, value: Any) -> Any:
    """`value` (plain JSON) as the annotated type `kind`: dataclasses, lists of them and optionals."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if value is None:
        return None
    if origin in (typing.Union, types.UnionType):
        return _build(next(a for a in arguments if a is not type(None)), value)
    if origin is list:
        return [_build(arguments[0], v) for v in value]
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        make: Any = kind
        return make(**{f.name: _build(hints[f.name], value[f.name]) for f in dataclasses.fields(kind) if f.name in value})
    return value
