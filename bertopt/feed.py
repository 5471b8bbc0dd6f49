"""Who tokenizes what when: serially before each batch, or by workers ahead of compute. Order is kept; no torch in here.

Workers are threads beside a CPU's computation: the Rust tokenizer lets go of the interpreter lock and nothing is pickled.
Beside a GPU they are processes: turning its results into arrays does hold the lock, some 4 us a row, and at tens of
thousands of rows a second the loop that launches kernels would wait for it.
"""

from __future__ import annotations

import collections
import concurrent.futures as futures
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Protocol

from bertopt.errors import WorkerError
from bertopt.text import Requests
from bertopt.tokenization import Tokens

KILLED = "a tokenizing worker was killed; a machine short of memory does that"
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


class Workers:
    """A pool that tokenizes ahead of the caller; made once, used by every pass.

    Raises WorkerError with the worker's own words when one fails or dies; nothing hangs, and nothing is left running.
    """

    def __init__(self, tokenizer: Tokenizer, count: int, *, processes: bool = False) -> None:
        if count < 1:
            raise ValueError(f"{count} workers cannot work ahead: use serial()")
        self.count, self.processes = count, processes
        self._tokenizer = None if processes else tokenizer  # a process has its own
        self._pool = _processes(tokenizer, count) if processes else futures.ThreadPoolExecutor(count, "tokenize")

    def ahead(
        self, requests: Requests, *, depth: int | None = None, rows: int = CHUNK_ROWS, first_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Chunks in order, at most `depth` of them finished or under way.

        Chunks have `rows` requests; with `first_rows` they start that small and double, a round of the workers each.
        """
        window: collections.deque[futures.Future[Chunk]] = collections.deque()
        try:
            with rust_threads(False):
                for texts, pairs in _slices(requests, rows, first_rows, self.count):
                    window.append(self._submit(texts, pairs))
                    if len(window) >= (depth or 2 * self.count):
                        yield _take(window.popleft())
                while window:
                    yield _take(window.popleft())
        finally:
            for future in window:
                future.cancel()

    def _submit(self, texts: list[str], pairs: list[str | None] | None) -> futures.Future[Chunk]:
        try:
            return self._pool.submit(_encode_in_worker, self._tokenizer, texts, pairs)
        except BrokenProcessPool:
            raise WorkerError(KILLED) from None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


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


def _processes(tokenizer: Tokenizer, count: int) -> futures.Executor:
    """Processes that are all there: they start when they are first asked, which should not be inside a timed pass."""
    context = multiprocessing.get_context("spawn")  # never fork: the parent has native threads, and perhaps a CUDA context
    everyone = context.Barrier(count)  # a worker that idled would be asked again, and the rest never started
    pool = futures.ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker, initargs=(tokenizer, everyone))
    futures.wait([pool.submit(_meet) for _ in range(count)])
    return pool


_worker_tokenizer: Tokenizer | None = None
_everyone: Any = None


def _start_worker(tokenizer: Tokenizer, everyone: Any) -> None:
    global _worker_tokenizer, _everyone
    _worker_tokenizer, _everyone = tokenizer, everyone
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent answers it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core a worker; the pool is the parallelism
    tokenizer.encode([""])  # its own first call is slow too


def _meet() -> None:
    _everyone.wait()


def _end_with_parent() -> None:
    """A parent that was killed cannot close its pool."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _encode_in_worker(tokenizer: Tokenizer | None, texts: list[str], pairs: list[str | None] | None) -> Chunk:
    chosen = tokenizer or _worker_tokenizer
    assert chosen is not None
    return _encode(chosen, texts, pairs)


def _encode(tokenizer: Tokenizer, texts: list[str], pairs: list[str | None] | None, clock: Clock = time.perf_counter) -> Chunk:
    start = clock()
    tokens = tokenizer.encode(texts, pairs)
    return Chunk(tokens, start, clock() - start)


def _take(future: futures.Future[Chunk]) -> Chunk:
    try:
        return future.result()
    except BrokenProcessPool:
        raise WorkerError(KILLED) from None
    except Exception as error:
        raise WorkerError(f"a tokenizing worker failed: {type(error).__name__}: {error}") from error


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
