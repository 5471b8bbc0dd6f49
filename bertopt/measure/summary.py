"""Passes -> the figures of a rung's record."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from bertopt.measure import arithmetic
from bertopt.measure.gpu import GpuProbe
from bertopt.measure.loop import BatchTimes, Pass
from bertopt.measure.process import ProcessProbe
from bertopt.measure.statistics import percentiles, union_seconds
from bertopt.records import Span


@dataclass
class Repeat:
    """One timed pass with what was probed around it, and the ceilings measured beside it."""

    done: Pass
    process: ProcessProbe
    gpu: GpuProbe
    device_ceiling_seq_s: float
    tokenizer_ceiling_seq_s: float


@dataclass(frozen=True)
class Phases:
    """Mean milliseconds of one batch by phase, over all repeats."""

    tokenize_ms: float
    collate_ms: float  # grouping, padding and filling the buffers, on the thread of the loop
    launch_ms: float
    copy_in_ms: float | None
    device_ms: float
    copy_out_ms: float | None
    postprocess_ms: float

    @property
    def host_ms(self) -> float:
        """What a serial loop does between two device steps, copies included. Launching goes on beside the device."""
        copies = (self.copy_in_ms or 0.0) + (self.copy_out_ms or 0.0)
        return self.tokenize_ms + self.collate_ms + self.postprocess_ms + copies


def phases(repeats: list[Repeat]) -> Phases:
    all_batches = [b for r in repeats for b in r.done.batches]
    chunks_s = sum(c.seconds for r in repeats for c in r.done.chunks)
    waited_s = sum(r.done.waited_for_chunks_s for r in repeats)
    loop_s = sum(b.staged_s - b.taken_s for b in all_batches)
    count = len(all_batches)

    def mean_of(name: str) -> float | None:
        values = [getattr(b.device, name) for b in all_batches]
        return float(np.mean(values)) if values and values[0] is not None else None

    device = mean_of("device_ms")
    assert device is not None
    blocking = _blocking_copies_ms(all_batches)
    return Phases(
        tokenize_ms=chunks_s / count * 1e3,
        # A blocking copy happens inside staging: it is the copy's time, not the collation's.
        collate_ms=max(0.0, (loop_s - waited_s) / count * 1e3 - blocking),
        launch_ms=sum(b.launched_s - b.staged_s for b in all_batches) / count * 1e3,
        copy_in_ms=mean_of("copy_in_ms"),
        device_ms=device,
        copy_out_ms=mean_of("copy_out_ms"),
        postprocess_ms=sum(b.done_s - b.result_s for b in all_batches) / count * 1e3,
    )


def _blocking_copies_ms(batches: list[BatchTimes]) -> float:
    inside = [
        b.device.copy_in_ms
        for b in batches
        if b.device.copy_in_ms is not None
        and b.device.copy_in_start_s is not None
        and b.ready_s <= b.device.copy_in_start_s
        and b.device.copy_in_start_s + b.device.copy_in_ms / 1e3 <= b.staged_s
    ]
    return float(np.sum(inside)) / len(batches) if batches else 0.0


def span_utilization(done: Pass) -> float:
    """Share of the pass in which some batch was between the start and the end of its device work: an upper bound."""
    starts = np.array([b.device.device_start_s for b in done.batches])
    return min(1.0, union_seconds(starts, starts + np.array([b.device.device_ms for b in done.batches]) / 1e3) / done.seconds)


def predicted_utilization(times: Phases, workers: int | None) -> float:
    """The arithmetic on the measured phases: a blocking loop, or `workers` ahead of it on cores of their own."""
    if workers is None:
        return arithmetic.serial_utilization(times.host_ms, times.device_ms)
    # Workers only tokenize; what is left on the loop's own thread overlaps too, since two batches are in flight.
    ahead = arithmetic.overlapped_utilization(times.tokenize_ms, times.device_ms, workers)
    loop_ms = times.collate_ms + times.launch_ms + times.postprocess_ms
    own = arithmetic.overlapped_utilization(loop_ms, times.device_ms, 1)
    return min(ahead, own)


def batch_percentiles(repeats: list[Repeat]) -> Any:
    """From asking for a batch to its answers on the host; with two in flight that includes the wait for the one before."""
    return percentiles([(b.done_s - b.taken_s) * 1e3 for r in repeats for b in r.done.batches])


@dataclass
class Timeline:
    """The bars around one batch: its own, and those of others that overlap it."""

    spans: list[Span] = field(default_factory=list)
    zero_s: float = 0.0
    end_s: float = 0.0

    def bar(self, lane: str, name: str, start_s: float, end_s: float) -> None:
        start, end = max(start_s, self.zero_s), min(end_s, self.end_s)
        if end > start:
            self.spans.append(Span(lane, name, (start - self.zero_s) * 1e3, (end - self.zero_s) * 1e3))


def timeline(done: Pass) -> list[Span]:
    """The batch of median duration in the middle half of the pass, where the pipeline is full."""
    quarter = len(done.batches) // 4
    middle = done.batches[quarter : len(done.batches) - quarter]
    if not middle:
        return []
    chosen = sorted(middle, key=lambda b: b.done_s - b.taken_s)[len(middle) // 2]
    lines = Timeline(zero_s=chosen.taken_s, end_s=chosen.done_s)
    for chunk in done.chunks:
        lines.bar("host", "tokenize", chunk.start_s, chunk.start_s + chunk.seconds)
    for b in done.batches:
        lines.bar("host", "collate", b.ready_s, b.staged_s)
        lines.bar("host", "launch", b.staged_s, b.launched_s)
        lines.bar("post", "answers", b.result_s, b.done_s)
        start = b.device.device_start_s
        lines.bar("device", "compute", start, start + b.device.device_ms / 1e3)
        if b.device.copy_in_ms and b.device.copy_in_start_s:
            lines.bar("copy", "copy in", b.device.copy_in_start_s, b.device.copy_in_start_s + b.device.copy_in_ms / 1e3)
        if b.device.copy_out_ms:
            out = start + b.device.device_ms / 1e3
            lines.bar("copy", "copy out", out, out + b.device.copy_out_ms / 1e3)
    return lines.spans


def middle(values: list[float | None]) -> float | None:
    """Median of what was measured; None where nothing was."""
    known = [v for v in values if v is not None]
    return median(known) if known else None
