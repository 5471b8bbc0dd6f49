"""`bertopt sweep`: the same texts at batch sizes from small to large, where the gain ends and where memory does."""

from __future__ import annotations

import datetime
import gc
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np

import bertopt
from bertopt import ladder
from bertopt.diagnose.live import take
from bertopt.environment import environment
from bertopt.errors import UsageError
from bertopt.ladder import Rung
from bertopt.measure import summary
from bertopt.measure.process import memory_left_mib, resident_mib
from bertopt.measuring import runner_of
from bertopt.outputs import name_of, new_folder, run_folder
from bertopt.prepare import Climb, Prepared, check, prepare, sequence_length
from bertopt.records import save
from bertopt.records_sweep import Point, Series, Sweep
from bertopt.run import Missing, Opened, Progress, Runner

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RUNG = "prefetch"  # padded to --seq, so that a batch size is a shape
BISECT = 4  # steps between the last batch that fits and the first that does not: of 128 and 256, to within 8 rows
KNEE_GAIN = 0.1  # what a larger batch must bring to be worth its latency
SHARE = 0.25  # of the requests that a ladder would take
MEMORY_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc", "not enough memory")


@dataclass(frozen=True)
class Wanted:
    """What `bertopt sweep` can be told beside what the ladder can."""

    climb: Climb
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    lengths: tuple[int, ...] = ()  # none: the model's, or the ladder's default
    rungs: tuple[str, ...] = (RUNG,)
    knee_gain: float = KNEE_GAIN
    bisect: int = BISECT


@dataclass
class Walk:
    """One pipeline at one length, as far as it has come."""

    rung: Rung
    length: int
    points: list[Point] = field(default_factory=list)
    stopped_at: int | None = None
    stopped: str | None = None
    memory_ended: bool = False  # so that a smaller batch than `stopped_at` may fit

    @property
    def largest(self) -> int:
        """Batch size that fits; 0 where none does."""
        return max((p.batch_size for p in self.points), default=0)


def sweep(wanted: Wanted, progress: Progress) -> tuple[Sweep, Path]:
    """Measure every batch size and write the run's folder. Returns the record and the folder.

    Raises one of bertopt.errors for what the user can mend, before any work where it can be known before.
    """
    check(wanted.climb)
    if min(wanted.batch_sizes) < 1 or min(wanted.lengths, default=1) < 1:
        raise UsageError("batch sizes and lengths are at least 1")
    if wanted.bisect < 0:
        raise UsageError(f"--bisect {wanted.bisect} is too small: 0 tries no batch size between")
    if not wanted.knee_gain >= 0:
        raise UsageError(f"--knee {wanted.knee_gain:g} is a share of speed: at least 0")
    known = {r.name: r for r in ladder.rungs_for(wanted.climb.device, wanted.rungs)}
    rungs = [known[name] for name in dict.fromkeys(wanted.rungs)]
    folder = wanted.climb.out or new_folder("sweep", name_of(wanted.climb.model))
    with run_folder(folder) as fresh:
        record = _sweep(wanted, rungs, progress)
        save(record, fresh / "sweep.json")
    return record, folder


def _sweep(wanted: Wanted, rungs: list[Rung], progress: Progress) -> Sweep:
    walks: list[Walk] = []
    ready, notes = None, list[str]()
    lengths: list[int | None] = [*sorted(wanted.lengths)]
    for length in lengths or [None]:
        climb = replace(wanted.climb, sequence_length=length)
        if ready is not None:  # the same requests at every length
            climb = replace(climb, limit=len(ready.requests))
        progress.stage("reading the model and the texts")
        ready, more = _ready(climb, max(wanted.batch_sizes))
        notes += more
        runner = runner_of(climb, ready, progress)
        try:
            for rung in rungs:
                sizes, tokens = sorted(set(wanted.batch_sizes)), sequence_length(ready.checkpoint, climb)
                walks.append(_walk(runner, rung, sizes, tokens, wanted.bisect))
        finally:
            runner.close()
    assert ready is not None
    return Sweep(
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=wanted.climb.command,
        bertopt_version=bertopt.__version__,
        environment=environment(wanted.climb.device),
        device=wanted.climb.device,
        model=ready.checkpoint.info(),
        data=ready.data_info(),
        repeats=wanted.climb.repeats,
        knee_gain=wanted.knee_gain,
        points=[p for walk in walks for p in walk.points],
        series=[series_of(walk, wanted.knee_gain) for walk in walks],
        notes=[*dict.fromkeys([*ready.notes, *notes])],
    )


def _ready(climb: Climb, largest: int) -> tuple[Prepared, list[str]]:
    """What is measured: enough requests for two of the largest batches, repeated where the file has fewer."""
    ready = prepare(climb, None)
    if climb.limit is None:
        ready = take(ready, max(int(len(ready.requests) * SHARE), min(2 * largest, len(ready.requests))))
    count = len(ready.requests)
    if count >= 2 * largest:
        return ready, []
    again = np.resize(np.arange(count), 2 * largest)
    more = replace(ready, requests=ready.requests.take(again), tokens=ready.tokens.take(again), truth=None)
    return more, [f"{count} requests are repeated to {2 * largest}, so that the largest batch is full"]


def _walk(runner: Runner, rung: Rung, batch_sizes: list[int], length: int, bisect: int) -> Walk:
    """One pipeline from the smallest batch up until one does not fit, then `bisect` steps between it and the last that did."""
    walk, base = Walk(rung, length), resident_mib()
    for size in batch_sizes:
        if not _fits(runner, walk, size, base):
            break
    for _ in range(bisect):
        if walk.stopped_at is None or not walk.memory_ended or walk.stopped_at - walk.largest < 2:
            break
        _fits(runner, walk, (walk.largest + walk.stopped_at) // 2, base)
    return walk


def _fits(runner: Runner, walk: Walk, size: int, base_mib: float) -> bool:
    """Measure one batch size; False, with the reason kept, where it does not fit or fails."""
    runner.progress.stage(f"{walk.rung.name}, {walk.length} tokens, batch {size}")
    reason = _no_room(walk, size, base_mib, runner.settings.device)
    if reason is None:
        runner.settings = replace(runner.settings, batch_size=size, window=max(runner.settings.window, size))
        runner.workspace.batch_size = size
        opened = runner.open(walk.rung, ladder.RUNGS, cast(Any, lambda of: None))
        if isinstance(opened, Missing):
            if opened.status == "skipped":
                remedy = f": {opened.remedy}" if opened.remedy else ""
                raise UsageError(f"the {walk.rung.name} pipeline cannot run here: {opened.reason}{remedy}")
            reason = opened.reason
        elif (reason := _measure(runner, opened)) is None:
            walk.points.append(_point(opened, walk.rung, walk.length, size, runner.settings.device))
            return True
        del opened
        runner.close()  # with buffers of that size; the next batch size opens the model again
        _empty(runner.settings.device)
    walk.memory_ended = out_of_memory(reason)
    walk.stopped_at, walk.stopped = size, reason if walk.memory_ended else f"failed: {reason}"
    return False


def _measure(runner: Runner, opened: Opened) -> str | None:
    """Time the pipeline; what broke it, or None."""
    for _ in range(runner.settings.repeats):
        runner.measure(opened, {})
        if opened.broken is not None:
            return opened.broken
        failures = opened.repeats[-1].done.failures
        if failures:
            return failures[0]
    return None


def out_of_memory(reason: str) -> bool:
    """Whether a library's words mean that memory has ended."""
    return any(words in reason.lower() for words in MEMORY_WORDS) or reason.startswith(("MemoryError", "OutOfMemoryError"))


def _no_room(walk: Walk, size: int, base_mib: float, device: str) -> str | None:
    """Why a CPU's memory will not hold the next batch: the system would end the process, and no library would say so."""
    left = memory_left_mib()
    if device != "cpu" or not walk.points or left is None:
        return None
    last = max(walk.points, key=lambda point: point.batch_size)
    grown = max(0.0, (last.peak_process_mib or 0.0) - base_mib) * size / last.batch_size
    taken = max(0.0, resident_mib() - base_mib)
    if grown - taken <= left:
        return None
    return f"out of memory, foreseen: batch {size} would take about {grown:,.0f} MiB more, and {left:,.0f} MiB are left"


def _empty(device: str) -> None:
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def _point(opened: Opened, rung: Rung, length: int, size: int, device: str) -> Point:
    repeats, last = opened.repeats, opened.repeats[-1]
    speeds = [r.done.throughput_seq_s for r in repeats]
    percentiles = summary.batch_percentiles(repeats)
    reading = last.gpu.reading() if device == "cuda" else None
    speed = median(speeds)
    return Point(
        rung=rung.name,
        sequence_length=length,
        batch_size=size,
        throughput_seq_s=speed,
        repeats_seq_s=speeds,
        throughput_tokens_s=median(r.done.real_tokens / r.done.seconds for r in repeats),
        batch_ms_p50=percentiles.p50 if percentiles else None,
        batch_ms_p99=percentiles.p99 if percentiles else None,
        device_ms=summary.phases(repeats).device_ms,
        device_ceiling_seq_s=median(r.device_ceiling_seq_s for r in repeats),
        padding_fraction=1.0 - last.done.real_tokens / last.done.computed_tokens,
        utilization_span=median(summary.span_utilization(r.done) for r in repeats),
        utilization_cores_busy=summary.middle([r.process.cores_busy for r in repeats]),
        peak_device_mib=opened.session.peak_device_mib(),
        peak_process_mib=summary.middle([r.process.peak_mib for r in repeats]),
        energy_j_per_1000=1000 * reading.power_w / speed if reading and reading.power_w else None,
        card=reading,
        notes=list(reading.reasons) if reading else [],
    )


def series_of(walk: Walk, gain: float) -> Series:
    """The knee, the fastest and the largest batch size of what was measured."""
    speeds = {p.batch_size: p.throughput_seq_s for p in walk.points}
    return Series(
        rung=walk.rung.name,
        sequence_length=walk.length,
        knee=knee(speeds, gain),
        fastest=max(speeds, key=lambda size: speeds[size], default=None),
        largest=max(speeds, default=None),
        stopped_at=walk.stopped_at,
        stopped=walk.stopped,
    )


def knee(speeds: dict[int, float], gain: float) -> int | None:
    """The smallest batch size from which on no larger one is faster by more than the share `gain`; None of nothing."""
    sizes = sorted(speeds)
    return next((s for s in sizes if all(speeds[t] <= (1 + gain) * speeds[s] for t in sizes if t > s)), None)


HEADS = {"batch": 6, "seq/s": 11, "spread": 8, "p50 ms": 9, "p99 ms": 9, "span": 6, "SM": 7, "MiB": 9, "W": 6, "J/1000": 9}


def lines(record: Sweep) -> list[str]:
    """The sweep as plain lines: a table for each pipeline and length, and what it comes to."""
    shown = []
    for series in record.series:
        shown += [f"{record.model.name}, {series.rung}, {series.sequence_length} tokens on {record.device}", ""]
        shown.append("".join(head.rjust(width) for head, width in HEADS.items()))
        for p in record.of(series):
            spread = (max(p.repeats_seq_s) - min(p.repeats_seq_s)) / p.throughput_seq_s if p.repeats_seq_s else None
            memory = p.peak_device_mib if record.device == "cuda" else p.peak_process_mib
            cells = [
                f"{p.batch_size:>6}{p.throughput_seq_s:>11,.1f}",
                _cell(spread, 8, "%"),
                _cell(p.batch_ms_p50, 9),
                _cell(p.batch_ms_p99, 9),
                _cell(p.utilization_span, 6, "%"),
                _cell(p.card.sm_active if p.card else None, 7, "%"),
                _cell(memory, 9, "f"),
                _cell(p.card.power_w if p.card else None, 6, "f"),
                _cell(p.energy_j_per_1000, 9),
            ]
            shown.append("".join(cells) + ("  <- knee" if p.batch_size == series.knee else ""))
        shown += ["", verdict(record, series), ""]
    return [*shown, *(f"Note: {note}" for note in record.notes)]


def _cell(value: float | None, width: int, how: str = "g") -> str:
    if value is None:
        return "–".rjust(width)
    text = f"{value:.0%}" if how == "%" else f"{value:,.0f}" if how == "f" or value >= 100 else f"{value:.3g}"
    return text.rjust(width)


def verdict(record: Sweep, series: Series) -> str:
    """What one series comes to, in a sentence or two."""
    points = {p.batch_size: p for p in record.of(series)}
    if series.knee is None or series.fastest is None:
        return f"Nothing was measured: {series.stopped or 'no batch size'}."
    at, best = points[series.knee], points[series.fastest]
    text = f"Knee at batch {series.knee}: {at.throughput_seq_s:,.0f} seq/s"
    if at.batch_ms_p50 is not None:
        text += f" at {at.batch_ms_p50:.1f} ms a batch"
    if series.fastest != series.knee:
        over = best.throughput_seq_s / at.throughput_seq_s - 1
        text += f"; batch {series.fastest} brings {over:.0%} more for {(best.batch_ms_p50 or 0):.1f} ms"
    if series.stopped is None:
        return f"{text}. Batch {series.largest} fits, and no larger one was tried."
    return f"{text}. The largest batch that fits is {series.largest}: {series.stopped_at} does not ({series.stopped})."
