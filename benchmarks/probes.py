"""What the probes cost: the same passes with everything that a ladder reads and with nothing of it, in turn.

    python benchmarks/probes.py [--model FOLDER] [--data FILE.jsonl] [--device cuda] [--limit 192] [--pairs 12]

With probes is what a repeat of the ladder does: the process's memory and cores, the card's counters, a clock reading at every
step of a batch, what padding it had, and on CUDA the read-out of its events after each result. Without them is a loop that
stages, launches and takes answers. The events themselves are recorded in both: without them no stream waits for another.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from bertopt import ladder
from bertopt.batching import batches
from bertopt.environment import environment
from bertopt.errors import BertoptError
from bertopt.files import write_text
from bertopt.measure.gpu import GpuProbe
from bertopt.measure.loop import Answers
from bertopt.measure.process import ProcessProbe
from bertopt.measuring import runner_of
from bertopt.prepare import Climb, prepare
from bertopt.progress import Lines
from bertopt.run import Opened, Runner

LIMIT = 0.02  # of throughput, that the probes may cost
RESAMPLES = 10_000


def with_probes(runner: Runner, opened: Opened) -> float:
    """Seconds of a pass as the ladder times it."""
    start = time.perf_counter()
    with ProcessProbe(), GpuProbe(runner.settings.device):
        done = runner.run_pass(opened)
    assert not done.failures, done.failures[0]
    return time.perf_counter() - start


def without(runner: Runner, opened: Opened) -> float:
    """Seconds of the same pass with no probe: two clock readings in all."""
    answers, waiting = Answers(len(runner.requests)), collections.deque[tuple[Any, Any]]()
    with _no_times(opened.session):
        start = time.perf_counter()
        chunks = (chunk.tokens for chunk in runner._chunks(opened))
        for batch in batches(chunks, opened.policy, first_window=runner._first_window):
            waiting.append((batch, opened.session.launch(opened.session.stage(batch))))
            if len(waiting) >= opened.in_flight:
                _answer(answers, *waiting.popleft())
        while waiting:
            _answer(answers, *waiting.popleft())
        return time.perf_counter() - start


def _answer(answers: Answers, batch: Any, pending: Any) -> None:
    answers.put(batch, pending.result())


@contextlib.contextmanager
def _no_times(session: Any) -> Iterator[None]:
    """The session without the read-out of its events, where it has one."""
    session.read_times = lambda *_: None
    try:
        yield
    finally:
        del session.read_times


def in_turn(runner: Runner, opened: Opened, pairs: int) -> tuple[list[float], list[float]]:
    """Seconds of `pairs` passes with probes and as many without; which of a pair goes first changes from pair to pair."""
    seconds: dict[Any, list[float]] = {with_probes: [], without: []}
    for warm in seconds:
        warm(runner, opened)
    for pair in range(pairs):
        for one in (with_probes, without)[:: 1 if pair % 2 else -1]:
            seconds[one].append(one(runner, opened))
    return seconds[with_probes], seconds[without]


def ratio(probed: list[float], bare: list[float]) -> tuple[float, float, float]:
    """Throughput with probes over that without, as the ratio of medians, and its 95 % interval (pairs resampled)."""
    both = np.array([probed, bare])
    drawn = np.random.default_rng(0).integers(0, both.shape[1], (RESAMPLES, both.shape[1]))
    ratios = np.median(both[1][drawn], axis=1) / np.median(both[0][drawn], axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return statistics.median(bare) / statistics.median(probed), float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rung", default="bucketed")
    parser.add_argument("--bs", type=int, default=32)
    parser.add_argument("--limit", type=int, default=192, help="requests of a pass")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--out", type=Path, help="all seconds, as JSON")
    asked = parser.parse_args()
    how: dict[str, Any] = {"device": asked.device, "random_weights": asked.random_weights}
    climb = Climb(asked.model, asked.data, batch_size=asked.bs, limit=asked.limit, **how)
    try:
        ready = prepare(climb, None)
    except BertoptError as error:
        parser.exit(error.exit_code, f"probes.py: {error}\n")
    runner = runner_of(climb, ready, Lines(quiet=True))
    try:
        rung = next(r for r in ladder.RUNGS if r.name == asked.rung)
        opened = runner.open(rung, ladder.RUNGS, cast(Any, lambda of: None))
        if not isinstance(opened, Opened):
            raise SystemExit(f"{asked.rung}: {opened.reason}")
        probed, bare = in_turn(runner, opened, asked.pairs)
    finally:
        runner.close()
    middle, low, high = ratio(probed, bare)
    facts = environment(asked.device)
    print(f"{facts.get('gpu') or facts['cpu']}; {ready.checkpoint.name}, {asked.rung}, {len(ready.requests)} texts a pass")
    for name, seconds in (("with probes", probed), ("without", bare)):
        speed = len(ready.requests) / statistics.median(seconds)
        print(f"{name:<12} {speed:>9,.1f} seq/s, median of {len(seconds)} passes of {min(seconds):.3f} to {max(seconds):.3f} s")
    held = "under" if low > 1 - LIMIT else "not shown to be under"
    print(f"throughput with probes over without: {middle:.4f} ({low:.4f} to {high:.4f}): a cost {held} {LIMIT:.0%}")
    if asked.out:
        found = {"ratio": middle, "low": low, "high": high, "with_s": probed, "without_s": bare, "environment": facts}
        write_text(asked.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
