"""The loop that is timed: from raw text to answers on the host, the same for every rung.

It reads clocks and nothing else. Device times are asked for when a batch's result has been waited for anyway.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.backends.base import Pending, Session, Times
from bertopt.batching import Batch, Layout, Policy, batches
from bertopt.errors import BertoptError
from bertopt.feed import Chunk
from bertopt.tokenization import Tokens

Clock = Callable[[], float]


@dataclass(frozen=True)
class BatchTimes:
    """One batch on the caller's clock (seconds), and on the device's."""

    rows: int
    taken_s: float  # the loop asked for it
    ready_s: float  # tokenized and grouped
    staged_s: float  # in its buffers, the copy begun
    launched_s: float
    waited_s: float  # the loop began to wait for its result
    result_s: float  # logits on the host
    done_s: float  # answers written
    device: Times


@dataclass
class Pass:
    """One run over all requests."""

    answers: Answers
    started_s: float = 0.0
    seconds: float = 0.0
    batches: list[BatchTimes] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)  # their tokens are dropped
    waited_for_chunks_s: float = 0.0
    work: list[tuple[NDArray[np.int64], Layout]] = field(default_factory=list)  # lengths and layout of each batch
    failures: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Requests that were answered: a failed batch is no work done."""
        return sum(b.rows for b in self.batches)

    @property
    def throughput_seq_s(self) -> float:
        return self.rows / self.seconds

    @property
    def real_tokens(self) -> int:
        return sum(int(lengths.sum()) for lengths, _ in self.work)

    @property
    def computed_tokens(self) -> int:
        return sum(layout.computed_tokens for _, layout in self.work)

    @property
    def real_pairs(self) -> int:
        return sum(int((lengths**2).sum()) for lengths, _ in self.work)

    @property
    def computed_pairs(self) -> int:
        return sum(layout.computed_pairs(lengths) for lengths, layout in self.work)


class Answers:
    """Logits by the requests' original positions. Filler rows never get here; a request that failed stays NaN."""

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self.logits: NDArray[np.float32] | None = None  # [requests, labels]
        self.per_token: list[NDArray[np.float32] | None] = []  # [length, labels] each, for per-token heads

    def put(self, batch: Batch, logits: NDArray[np.float32]) -> None:
        if logits.ndim == 3:
            self.per_token = self.per_token or [None] * self._requests
            for row, (position, length) in enumerate(zip(batch.positions, batch.tokens.lengths, strict=True)):
                self.per_token[position] = logits[row, :length].copy()
            return
        if self.logits is None:
            self.logits = np.full((self._requests, logits.shape[1]), np.nan, dtype=np.float32)
        self.logits[batch.positions] = logits[: batch.rows]

    def stacked(self) -> NDArray[np.float32]:
        """Logits as one array [requests, labels], or [tokens, labels] for per-token heads."""
        if self.logits is not None:
            return self.logits
        return np.concatenate([rows for rows in self.per_token if rows is not None])


def run_pass(
    chunks: Iterable[Chunk],
    policy: Policy,
    session: Session,
    requests: int,
    in_flight: int,
    *,
    first_window: int | None = None,
    clock: Clock = time.perf_counter,
) -> Pass:
    """Answer every request once. Batches that raise are counted as failed and their rows as not answered."""
    done = Pass(Answers(requests))
    waiting: collections.deque[tuple[Batch, Pending, tuple[float, float, float, float]]] = collections.deque()

    def finish() -> None:
        batch, pending, before = waiting.popleft()
        waited = clock()
        try:
            logits = pending.result()
        except BertoptError:
            raise
        except Exception as error:  # whatever a library raises: counted, shown, and no answer made up
            done.failures.append(f"{type(error).__name__}: {error}")
            return
        arrived = clock()
        done.answers.put(batch, logits)
        done.work.append((batch.tokens.lengths, batch.layout))
        done.batches.append(BatchTimes(batch.rows, *before, waited, arrived, clock(), pending.times))

    done.started_s = clock()
    source = batches(_watched(chunks, done, clock), policy, first_window=first_window)
    while True:
        taken = clock()
        batch = next(source, None)
        if batch is None:
            break
        ready = clock()
        try:
            staged = session.stage(batch)
            in_buffers = clock()
            pending = session.launch(staged)
        except BertoptError:
            raise
        except Exception as error:
            done.failures.append(f"{type(error).__name__}: {error}")
            continue
        waiting.append((batch, pending, (taken, ready, in_buffers, clock())))
        if len(waiting) >= in_flight:
            finish()
    while waiting:
        finish()
    done.seconds = clock() - done.started_s
    return done


def _watched(chunks: Iterable[Chunk], done: Pass, clock: Clock) -> Iterator[Tokens]:
    source = iter(chunks)
    while True:
        start = clock()
        chunk = next(source, None)
        done.waited_for_chunks_s += clock() - start
        if chunk is None:
            return
        done.chunks.append(Chunk(Tokens.concat([]), chunk.start_s, chunk.seconds))
        yield chunk.tokens


def replay(session: Session, staged_batches: list[Batch], in_flight: int, clock: Clock = time.perf_counter) -> float:
    """Seconds for these batches with nothing to prepare: staged beforehand, a group at a time, launched in order.

    This is the device's ceiling: staging is outside the clock, and `in_flight` is what the rung runs with.
    """
    seconds, group = 0.0, 16  # bounded, so that page-locked memory is too
    for start in range(0, len(staged_batches), group):
        staged = [session.stage(batch) for batch in staged_batches[start : start + group]]
        waiting: collections.deque[Any] = collections.deque()
        begin = clock()
        for one in staged:
            waiting.append(session.launch(one))
            if len(waiting) >= in_flight:
                waiting.popleft().result()
        while waiting:
            waiting.popleft().result()
        seconds += clock() - begin
    return seconds
