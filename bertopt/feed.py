"""Who tokenizes what when: serially before each batch, or by workers ahead of compute. Order is kept; no torch in here.

Workers are threads beside a CPU's computation: the Rust tokenizer lets go of the interpreter lock and nothing is pickled.
Beside a GPU they are processes (tokenizing_processes.py): turning its results into arrays does hold the lock, some 4 us a
row, and at tens of thousands of rows a second the loop that launches kernels would wait for it.
"""

from __future__ import annotations

import collections
import concurrent.futures as futures
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from bertopt.errors import WorkerError
from bertopt.text import Requests
from bertopt.tokenization import Tokens
from bertopt.tokenizing_processes import Processes

CHUNK_ROWS = 128  # large enough that handing over costs nothing, small enough that the first batch comes soon


Clock = Callable[[], float]


class Tokenizer(Protocol):
    def encode(self, texts: list[str], pairs: list[str | None] | None = None) -> Tokens: ...


@dataclass(frozen=True)
class Chunk:
    """Consecutive requests, tokenized, and what that cost on the core that did it."""

    tokens: Tokens
    start_s: float  # time.perf_counter, which all processes of a machine share on Linux
    seconds: float


def serial(requests: Requests, tokenizer: Tokenizer, rows: int, *, clock: Clock = time.perf_counter) -> Iterator[Chunk]:
    """Tokenize `rows` requests when they are asked for, by the caller, with the Rust tokenizer's own threads."""
    with rust_threads(True):
        for texts, pairs in _slices(requests, rows):
            yield _encode(tokenizer, texts, pairs, clock)


class Promise(Protocol):
    """A chunk that a worker was asked for."""

    def result(self) -> Chunk: ...
    def cancel(self) -> object: ...


class Pool(Protocol):
    """Workers of either kind."""

    def submit(self, texts: list[str], pairs: list[str | None] | None) -> Promise: ...
    def close(self) -> None: ...


class Workers:
    """A pool that tokenizes ahead of the caller; made once, used by every pass.

    Raises WorkerError with the worker's own words when one fails or dies; nothing hangs, and nothing is left running.
    """

    def __init__(self, tokenizer: Tokenizer, count: int, *, processes: bool = False) -> None:
        if count < 1:
            raise ValueError(f"{count} workers cannot work ahead: use serial()")
        self.count = count
        self.pool: Pool = Processes(_encode, tokenizer, count) if processes else _Threads(tokenizer, count)

    def ahead(
        self, requests: Requests, *, depth: int | None = None, rows: int = CHUNK_ROWS, first_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Chunks in order, at most `depth` of them finished or under way.

        Chunks have `rows` requests; with `first_rows` they start that small and double, a round of the workers each.
        """
        window: collections.deque[Promise] = collections.deque()
        try:
            with rust_threads(False):
                for texts, pairs in _slices(requests, rows, first_rows, self.count):
                    window.append(self.pool.submit(texts, pairs))
                    if len(window) >= (depth or 2 * self.count):
                        yield window.popleft().result()
                while window:
                    yield window.popleft().result()
        finally:
            for promise in window:
                promise.cancel()

    def close(self) -> None:
        self.pool.close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Threads:
    def __init__(self, tokenizer: Tokenizer, count: int) -> None:
        self._tokenizer, self._pool = tokenizer, futures.ThreadPoolExecutor(count, "tokenize")

    def submit(self, texts: list[str], pairs: list[str | None] | None) -> Promise:
        return self._pool.submit(self._encode, texts, pairs)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _encode(self, texts: list[str], pairs: list[str | None] | None) -> Chunk:
        try:
            return _encode(self._tokenizer, texts, pairs)
        except Exception as error:  # whatever a tokenizer raises
            raise WorkerError(f"a tokenizing worker failed: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def rust_threads(on: bool) -> Iterator[None]:
    """Whether one call of the Rust tokenizer spreads over cores. Beside workers of ours it must not: pools multiply."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if on else "false"  # read at every call
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def _encode(tokenizer: Tokenizer, texts: list[str], pairs: list[str | None] | None, clock: Clock = time.perf_counter) -> Chunk:
    start = clock()
    tokens = tokenizer.encode(texts, pairs)
    return Chunk(tokens, start, clock() - start)


def _slices(
    requests: Requests, rows: int, first_rows: int | None = None, per_round: int = 1
) -> Iterator[tuple[list[str], list[str | None] | None]]:
    size, start, taken = min(first_rows or rows, rows), 0, 0
    while start < len(requests):
        stop = start + size
        yield requests.texts[start:stop], requests.pairs[start:stop] if requests.pairs is not None else None
        start, taken = stop, taken + 1
        if taken % per_round == 0:
            size = min(2 * size, rows)
