"""Detection by elimination: the pipeline as it is, then its parts one at a time, on the same texts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from statistics import median, median_low
from typing import Any

import numpy as np

from bertopt import feed
from bertopt.batching import Batch, Bucketed, Dynamic, Fixed, Padded, batches, waste
from bertopt.errors import Inconclusive
from bertopt.measure import arithmetic, ceilings, summary
from bertopt.measure.activity import activity, busy_share
from bertopt.measure.cores import usable_cores
from bertopt.measure.loop import Pass, replay
from bertopt.measure.summary import Repeat
from bertopt.model import Checkpoint
from bertopt.records_diagnosis import Growth, Observation
from bertopt.run import Opened, Runner, warm_up
from bertopt.tokens import Tokens

GROWN = (1, 4, 16, 64)  # times the batch size, to see whether the device has room
GROWN_ROWS = 512  # the most rows of a grown batch, unless the pipeline's own has more
FEW = 6  # batches of a replay that only compares
ROUNDS = 3  # of timing the sizes in turn
TOKENIZED = 512  # rows that show what the Rust tokenizer would cost
BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "int8": 1, "fp8": 1}
READS = 9  # clock readings per batch of the loop


def observe(runner: Runner, opened: Opened, checkpoint: Checkpoint, repeats: int) -> Observation:
    """Time the pipeline `repeats` times, its ceilings beside it, and then what each of its parts does alone.

    Raises Inconclusive where it answers nothing.
    """
    for repeat in range(repeats):
        runner.progress.stage(f"the pipeline as it is, {repeat + 1} of {repeats}")
        runner.measure(opened, {})
        if opened.broken is not None:
            raise Inconclusive(f"the pipeline cannot be timed: {opened.broken}")
    seen = _passes(runner, opened)
    runner.progress.stage("its parts alone")
    seen = replace(seen, **_host_alone(runner, opened, seen))
    seen = replace(seen, **_device_alone(runner, opened, checkpoint, seen))
    return seen


def _passes(runner: Runner, opened: Opened) -> Observation:
    """What the timed passes say."""
    done, last, settings = opened.repeats, opened.repeats[-1].done, runner.settings
    per_batch = [1e3 * r.done.seconds / len(r.done.batches) for r in done]
    batch_ms = median_low(per_batch)
    middle = done[per_batch.index(batch_ms)].done  # its phases add up to the time that is shown
    rows = last.rows / len(last.batches)
    missing = dict.fromkeys(("copy_in_ms", "copy_out_ms"), "there are no copies on a CPU") if settings.device == "cpu" else {}
    gpu = done[-1].gpu
    return Observation(
        device=settings.device,
        rows=rows,
        batches=sum(len(r.done.batches) for r in done),
        batch_ms=batch_ms,
        repeats_ms=per_batch,
        repeats_phases_ms=[_phases([r], rows) for r in done],
        workers=opened.workers,
        in_flight=opened.in_flight,
        cores=usable_cores(),
        pinned=None if settings.device == "cpu" else _pinned(opened),
        tokenizer=opened.pipeline.tokenizer,
        batching=opened.pipeline.batching,
        backend=opened.pipeline.backend,
        precision=opened.session.precision,
        window=opened.policy.window,
        requests=last.rows,
        **_phases(done, rows),
        loop_ms=loop_phases(middle),
        span=median(summary.span_utilization(r.done) for r in done),
        tokens=last.real_tokens / len(last.batches),
        padding_fraction=1.0 - last.real_tokens / last.computed_tokens,
        attention_waste_fraction=1.0 - last.real_pairs / last.computed_pairs,
        card=gpu.reading() if settings.device == "cuda" else None,
        probe_cost_fraction=gpu.cost_s / max(last.seconds, 1e-9) + READS * _clock_s() * len(last.batches) / last.seconds,
        missing=missing | ({} if settings.device == "cuda" else {"card": "a CPU has no counters of power and clocks"}),
    )


def _phases(repeats: list[Repeat], rows: float) -> dict[str, Any]:
    """Milliseconds a batch of `rows` by phase, inside the loop and alone, by the names of an observation's fields."""
    known = {name: ms for name, ms in asdict(summary.phases(repeats)).items() if ms is not None}
    ceilings_seq_s = {
        "device_alone_ms": median(r.device_ceiling_seq_s for r in repeats),
        "tokenize_alone_ms": median(r.tokenizer_ceiling_seq_s for r in repeats),
    }
    return known | {name: 1e3 * rows / speed for name, speed in ceilings_seq_s.items()}


def _pinned(opened: Opened) -> bool:
    """Whether the session's buffers are page-locked: as it says, or as rungs open it."""
    options = getattr(opened.session, "_options", None)
    return bool(options.pinned) if options is not None else opened.workers is not None


def loop_phases(done: Pass) -> dict[str, float]:
    """The time of the loop's own thread by phase, milliseconds per batch: they add up to the time of a batch.

    `input` is waiting for tokens, `device` is waiting for a result.
    """
    count = len(done.batches)
    launch = sum(b.launched_s - b.staged_s for b in done.batches)
    device = sum(b.result_s - b.waited_s for b in done.batches)
    answers = sum(b.done_s - b.result_s for b in done.batches)
    prepared = sum(b.staged_s - b.taken_s for b in done.batches)
    phases = {"input": done.waited_for_chunks_s, "collate": max(0.0, prepared - done.waited_for_chunks_s)}
    phases |= {"launch": launch, "device": device, "answers": answers}
    return {name: 1e3 * seconds / count for name, seconds in phases.items()}


def _clock_s() -> float:
    start = time.perf_counter()
    for _ in range(1000):
        time.perf_counter()
    return (time.perf_counter() - start) / 1000


def _host_alone(runner: Runner, opened: Opened, seen: Observation) -> dict[str, Any]:
    """Tokenizing with the Rust tokenizer on one core, collation, and copies of a batch's size, each with nothing around it."""
    assert seen.rows is not None
    requests, found = runner.requests, dict[str, Any]()
    few = requests.take(range(min(TOKENIZED, len(requests))))
    if opened.tokenizer is not runner.tokenizers["fast"]:
        with feed.rust_threads(False):
            start = time.perf_counter()
            runner.tokenizers["fast"].encode(few.texts, few.pairs)
            found["tokenize_fast_ms"] = 1e3 * (time.perf_counter() - start) / len(few) * seen.rows
    start = time.perf_counter()
    grouped = list(batches([runner.tokens], opened.policy))
    for batch in grouped:
        _fill(batch)
    found["collate_alone_ms"] = 1e3 * (time.perf_counter() - start) / len(grouped)
    if seen.device == "cuda":
        nbytes = int(3 * 8 * np.mean([b.computed_tokens for b in opened.batches]))
        found |= {f"copy_{kind}_ms": ceilings.copy_ms(nbytes, kind == "pinned") for kind in ("pageable", "pinned")}
    return found


def _fill(batch: Batch) -> None:
    if isinstance(batch.layout, Padded):
        shape = (batch.layout.rows, batch.layout.length)
        batch.fill(*(np.empty(shape, np.int64) for _ in range(3)))


def _device_alone(runner: Runner, opened: Opened, checkpoint: Checkpoint, seen: Observation) -> dict[str, Any]:
    """The device on batches that lie ready: in larger ones, in buckets, against its ceilings, and as CUPTI sees it."""
    found: dict[str, Any] = {"missing": dict(seen.missing)}

    def attempt(fields: tuple[str, ...], measure: Callable[[], dict[str, Any]]) -> None:
        """A figure that a library or this machine does not give is None with its reason: the others are worth having."""
        try:
            found.update(measure())
        except Exception as error:  # whatever a library raises
            first = next(iter(str(error).splitlines()), "")
            found["missing"] |= dict.fromkeys(fields, f"{type(error).__name__}: {first}")

    attempt(("growth",), lambda: {"growth": growth(runner, opened)})
    attempt(("bucketed_device_ms",), lambda: _bucketed(runner, opened, seen))
    if seen.device == "cuda":
        attempt(("kernel_busy", "kernels", "synchronizations"), lambda: _activity(opened, seen))
    else:
        found["missing"]["kernel_busy"] = "a CPU has no kernels that a profiler counts"
    computed = np.mean([b.computed_tokens for b in opened.batches])
    pairs = np.mean([b.layout.computed_pairs(b.tokens.lengths) for b in opened.batches])
    found["flops"] = arithmetic.encoder_flops(
        float(computed), float(pairs), checkpoint.hidden, checkpoint.intermediate, checkpoint.layers
    )
    if checkpoint.parameters:
        inner = checkpoint.parameters - checkpoint.vocab_size * checkpoint.hidden  # of the vocabulary few rows are read
        found["weight_bytes"] = float(max(inner, 0) * BYTES.get(opened.session.precision, 4))
    runner.progress.stage("the device's ceilings")
    attempt(("ceiling_flop_s",), lambda: _ceilings(seen.device, opened.session.precision))
    attempt(("bandwidth_b_s",), lambda: {"bandwidth_b_s": ceilings.bandwidth_b_s(seen.device)})
    return found


def _ceilings(device: str, precision: str) -> dict[str, Any]:
    half = "fp16" if device == "cuda" else "bf16"
    found = {"ceiling_flop_s": ceilings.arithmetic_flop_s(device, precision)}
    found["half_ceiling_flop_s"] = found["ceiling_flop_s"] if precision == half else ceilings.arithmetic_flop_s(device, half)
    return found


def _activity(opened: Opened, seen: Observation) -> dict[str, Any]:
    some = opened.batches[:: max(1, len(opened.batches) // FEW)][:FEW]
    ran = activity(opened.session, some)
    return {
        "kernel_busy": None if ran.kernel_ms is None else busy_share(ran.kernel_ms, opened.session, some, opened.in_flight),
        "kernels": ran.kernels,
        "synchronizations": ran.synchronizations,
        "launch_wait_ms": min(ran.wait_ms, seen.launch_ms or 0.0),
    }


def growth(runner: Runner, opened: Opened) -> list[Growth]:
    """Device time of batches that lie ready, at the pipeline's size and at larger ones, while the texts fill them.

    The sizes are timed in turn and each keeps its fastest, so that a slow moment or a card that wakes up is nobody's own.
    """
    policy = opened.policy
    if not isinstance(policy, (Fixed, Dynamic, Bucketed)):
        return []
    grown = dict[int, tuple[Fixed | Dynamic | Bucketed, list[Batch]]]()
    for rows in (times * policy.batch_size for times in GROWN):
        if grown and rows > min(len(runner.requests), GROWN_ROWS):
            break
        changes: dict[str, Any] = {"window": max(policy.window, rows)} if isinstance(policy, Bucketed) else {}
        larger = replace(policy, batch_size=rows, **changes)
        whole = [b for b in batches([runner.tokens], larger) if b.rows == rows]
        # Rows of like length at every size: the same mix of short and long batches
        grown[rows] = larger, whole[:: max(1, len(whole) // FEW)][:FEW]
        warm_up(opened.session, grown[rows][1])
    seconds: dict[int, list[float]] = {rows: [] for rows in grown}
    for _ in range(ROUNDS):
        for rows, (_, some) in grown.items():
            seconds[rows].append(replay(opened.session, some, opened.in_flight))
    device_ms = {rows: 1e3 * min(seconds[rows]) / len(some) for rows, (_, some) in grown.items()}
    return [Growth(rows, device_ms[rows], _collating_ms(*grown[rows])) for rows in grown]


def _collating_ms(policy: Fixed | Dynamic | Bucketed, some: list[Batch]) -> float:
    """Milliseconds that grouping and filling a batch of these takes, with nothing around it."""
    start = time.perf_counter()
    for batch in batches([Tokens.concat([b.tokens for b in some])], policy):
        _fill(batch)
    return 1e3 * (time.perf_counter() - start) / len(some)


def _bucketed(runner: Runner, opened: Opened, seen: Observation) -> dict[str, Any]:
    """What length buckets would bring on this very device, where the pipeline has none."""
    policy, size = opened.policy, runner.settings.batch_size
    better = Bucketed(size, runner.edges, max(runner.settings.window, size))
    found: dict[str, Any] = {"bucketed_padding_fraction": waste(runner.tokens.lengths, better)[0]}
    if not isinstance(policy, (Fixed, Dynamic)) or seen.rows is None:
        return found
    grouped = list(batches([runner.tokens], better))
    warm_up(opened.session, grouped)
    seconds = replay(opened.session, grouped, opened.in_flight)
    return found | {"bucketed_device_ms": 1e3 * seconds / len(runner.requests) * seen.rows}
