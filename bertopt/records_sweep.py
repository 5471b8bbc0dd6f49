"""What `bertopt sweep` writes down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bertopt.records import SCHEMA_VERSION, DataInfo, ModelInfo
from bertopt.records_card import CardReading


@dataclass(frozen=True)
class Point:
    """One pipeline at one batch size and length. None: not measured, and `notes` say why."""

    rung: str
    sequence_length: int
    batch_size: int
    throughput_seq_s: float
    repeats_seq_s: list[float] = field(default_factory=list)
    throughput_tokens_s: float | None = None  # real tokens
    batch_ms_p50: float | None = None
    batch_ms_p99: float | None = None
    device_ms: float | None = None
    device_ceiling_seq_s: float | None = None
    padding_fraction: float | None = None
    utilization_span: float | None = None
    utilization_cores_busy: float | None = None
    peak_device_mib: float | None = None
    peak_process_mib: float | None = None
    energy_j_per_1000: float | None = None
    card: CardReading | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Series:
    """One pipeline at one length over batch sizes; where it stopped, why."""

    rung: str
    sequence_length: int
    knee: int | None  # from this batch size on no larger one is faster by more than the sweep's `knee_gain`
    fastest: int | None
    largest: int | None  # batch size that fits
    stopped_at: int | None = None  # batch size that does not
    stopped: str | None = None  # its reason


@dataclass(frozen=True)
class Sweep:
    """A run of `bertopt sweep`; `sweep.json`."""

    created: str  # ISO 8601, UTC
    command: str
    bertopt_version: str
    environment: dict[str, Any]
    device: str
    model: ModelInfo
    data: DataInfo
    repeats: int
    knee_gain: float
    points: list[Point]
    series: list[Series]
    notes: list[str] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION

    def of(self, series: Series) -> list[Point]:
        """The points of one series, by batch size."""
        mine = [p for p in self.points if (p.rung, p.sequence_length) == (series.rung, series.sequence_length)]
        return sorted(mine, key=lambda p: p.batch_size)
