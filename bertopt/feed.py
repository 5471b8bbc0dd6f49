"""Who tokenizes what when: serially before each batch, or by workers ahead of compute. Order is kept; no torch in here.

Workers are threads by default. The Rust tokenizer lets go of the interpreter lock, each call runs on one core, and the
chunk's arrays need no pickling; processes are there for pure-Python tokenizers, which would hold the lock.
A chunk is what one worker takes at a time; at most `depth` of them are finished or under way, so memory is bounded.
"""

from __future__ import annotations

import collections
import concurrent.futures as futures
import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from bertopt.errors import WorkerError
from bertopt.text import Requests
from bertopt.tokenization import Tokens

CHUNK_ROWS = 128  # large enough that handing over costs nothing, small enough that the first batch comes soon


class Tokenizer(Protocol):
    def encode(self, texts: list[str], pairs: list[str | None] | None = None) -> Tokens: ...


@dataclass(frozen=True)
class Chunk:
    """Consecutive requests, tokenized, and what that cost on the core that did it."""

    tokens: Tokens
    start_s: float  # time.perf_counter, which all processes of a machine share on Linux
    seconds: float


def serial(requests: Requests, tokenizer: Tokenizer, rows: int) -> Iterator[Chunk]:
    """Tokenize `rows` requests when they are asked for, by the caller, with the Rust tokenizer's own threads."""
    with rust_threads(True):
        for texts, pairs in _slices(requests, rows):
            yield _encode(tokenizer, texts, pairs)


def ahead(
    requests: Requests,
    tokenizer: Tokenizer,
    *,
    workers: int,
    depth: int | None = None,
    rows: int = CHUNK_ROWS,
    processes: bool = False,
) -> Iterator[Chunk]:
    """Tokenize chunks of `rows` requests on `workers` threads (or processes), ahead of the caller, in order.

    Raises WorkerError with the worker's own words when one fails or dies; nothing hangs, and nothing is left running.
    """
    if workers < 1:
        raise ValueError(f"{workers} workers cannot work ahead: use serial()")
    pool = _pool(tokenizer, workers, processes)
    window: collections.deque[futures.Future[Chunk]] = collections.deque()
    try:
        with rust_threads(False):
            for texts, pairs in _slices(requests, rows):
                window.append(pool.submit(_in_worker, None if processes else tokenizer, texts, pairs))
                if len(window) >= (depth or 2 * workers):
                    yield _take(window.popleft())
            while window:
                yield _take(window.popleft())
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


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


def _pool(tokenizer: Tokenizer, workers: int, processes: bool) -> futures.Executor:
    if not processes:
        return futures.ThreadPoolExecutor(workers, thread_name_prefix="tokenize")
    # Never fork: the parent has native threads, and perhaps a CUDA context.
    return futures.ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(tokenizer,)
    )


_worker_tokenizer: Tokenizer | None = None


def _start_worker(tokenizer: Tokenizer) -> None:
    global _worker_tokenizer
    _worker_tokenizer = tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core a worker; the pool is the parallelism


def _in_worker(tokenizer: Tokenizer | None, texts: list[str], pairs: list[str | None] | None) -> Chunk:
    chosen = tokenizer or _worker_tokenizer
    assert chosen is not None
    return _encode(chosen, texts, pairs)


def _encode(tokenizer: Tokenizer, texts: list[str], pairs: list[str | None] | None) -> Chunk:
    start = time.perf_counter()
    tokens = tokenizer.encode(texts, pairs)
    return Chunk(tokens, start, time.perf_counter() - start)


def _take(future: futures.Future[Chunk]) -> Chunk:
    try:
        return future.result()
    except futures.process.BrokenProcessPool:
        raise WorkerError("a tokenizing worker was killed; a machine short of memory does that") from None
    except Exception as error:
        raise WorkerError(f"a tokenizing worker failed: {type(error).__name__}: {error}") from error


def _slices(requests: Requests, rows: int) -> Iterator[tuple[list[str], list[str | None] | None]]:
    for start in range(0, len(requests), rows):
        stop = start + rows
        yield requests.texts[start:stop], requests.pairs[start:stop] if requests.pairs is not None else None
