"""A session in a process of its own: what a library does to its process, it does to no request and to no other engine.

The parent sends batches and receives logits over a pipe, a few kilobytes each way. The child stages the next batch while the
library computes; it ends with its parent, and is killed where it does not answer in time.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.backends.base import Session
from bertopt.batching import Batch, Padded
from bertopt.errors import BertoptError, WorkerError
from bertopt.tokens import Tokens

WARM_S = 6.0
START_S = 120.0  # a TensorRT plan of a large model takes a while to load
Opener = Callable[[], Session]


class EngineDied(Exception):
    """The process is gone, or does not answer."""


class BatchFailed(Exception):
    """The session raised on this batch, and goes on."""


@dataclass(frozen=True)
class Ready:
    """What a started engine runs, and batches that it timed: (rows, length, seconds)."""

    version: str
    precision: str
    samples: list[tuple[int, int, float]]


@dataclass(frozen=True)
class Answered:
    logits: NDArray[np.float32]
    device_ms: float


@dataclass(frozen=True)
class Probe:
    """Shapes that a starting engine runs: all once, so that they are compiled, and `timed` ones again, for the cost."""

    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    packed: tuple[int, int] | None = None  # budget and longest row, for a session that takes packed batches only
    warm: tuple[tuple[int, int], ...] = ()  # further (rows, length) to run once, the likeliest first, for WARM_S at most


def bundle_opener(folder: Path, threads: int | None, in_flight: int) -> Opener:
    """What a child calls: the bundle's session. The files were checked by the parent."""
    return functools.partial(_open_bundle, str(folder), threads, in_flight)


def _open_bundle(folder: str, threads: int | None, in_flight: int) -> Session:
    from bertopt.bundle import Bundle, read_manifest

    home = Path(folder)
    return Bundle(home, read_manifest(home)).open(threads=threads, in_flight=in_flight)


class Engine:
    """One process with one session. `start`, then `submit` and `result` in the same order, from one thread."""

    def __init__(self, opener: Opener, probe: Probe, name: str = "engine", start_s: float = START_S) -> None:
        self._opener, self._probe, self._name, self._start_s = opener, probe, name, start_s
        self._process: Any = None
        self._pipe: Connection | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> Ready:
        """Start the process and wait until it has warmed up.

        Raises one of bertopt.errors where the model cannot be opened, EngineDied where the process ends.
        """
        self.close()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._opener, self._probe), name=self._name, daemon=True)
        self._process.start()
        theirs.close()
        found = self._receive(self._start_s)
        if isinstance(found, BertoptError):
            raise found
        return found

    def submit(self, batch: Batch) -> None:
        """Hand a batch over; its result comes after those of the batches before. Raises EngineDied."""
        tokens = batch.tokens
        assert self._pipe is not None
        try:
            self._pipe.send((tokens.ids, tokens.offsets, tokens.type_ids, batch.layout))
        except (OSError, ValueError) as error:
            raise EngineDied(f"the process of the back end is gone: {error}") from None

    def poll(self, seconds: float) -> bool:
        """Whether a result is there within these seconds; a dead process counts as one, which `result` then raises."""
        assert self._pipe is not None
        try:
            return self._pipe.poll(max(0.0, seconds))
        except OSError:
            return True

    def result(self, timeout_s: float) -> Answered:
        """The oldest batch's logits. Raises BatchFailed where the session raised, EngineDied where it does not answer."""
        found = self._receive(timeout_s)
        if isinstance(found, str):
            raise BatchFailed(found)
        return found

    def _receive(self, timeout_s: float) -> Any:
        pipe = self._pipe  # `close`, from another thread, takes it away
        assert pipe is not None
        try:
            if not pipe.poll(timeout_s):
                self.close()
                raise EngineDied(f"the back end did not answer within {timeout_s:.0f} s")
            return pipe.recv()
        except (EOFError, OSError):
            code = self._process.exitcode if self._process is not None else None
            raise EngineDied(f"the process of the back end ended (exit code {code})") from None

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.join(5.0)
            self._process = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


def _serve(pipe: Connection, opener: Opener, probe: Probe) -> None:
    """The child: one thread receives, stages and launches, this one waits for results and sends them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole group; the parent drains, and then ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        session = opener()
        samples = _warm_up(session, probe)
    except BertoptError as error:
        pipe.send(error)
        return
    except Exception as error:  # whatever a library raises: the parent says it
        pipe.send(WorkerError(f"the back end does not start: {type(error).__name__}: {error}"))
        return
    pipe.send(Ready(session.version, session.precision, samples))
    launched: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, session, launched), daemon=True).start()
    while (one := launched.get()) is not None:
        try:
            if isinstance(one, Exception):
                raise one
            logits = one.result()
            pipe.send(Answered(np.ascontiguousarray(logits), one.times.device_ms))
        except BrokenPipeError:
            break
        except Exception as error:  # whatever a library raises; its message may hold a text, so only its kind is told
            pipe.send(type(error).__name__)
    session.close()


def _receive(pipe: Connection, session: Session, launched: SimpleQueue[Any]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            ids, offsets, type_ids, layout = pipe.recv()
            batch = Batch(np.arange(len(offsets) - 1), Tokens(ids, offsets, type_ids), layout)
            try:
                launched.put(session.launch(session.stage(batch)))
            except Exception as error:  # sent in its turn
                launched.put(error)
    launched.put(None)


def _end_with_parent() -> None:
    """A parent that was killed cannot end its engines."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _warm_up(session: Session, probe: Probe) -> list[tuple[int, int, float]]:
    """Run the probe's shapes twice: libraries compile at the first sight, and the second one is timed."""
    samples = []
    for length in probe.lengths:
        for rows in probe.rows:
            batch = _made_up(rows, length, probe.packed)
            seconds = []
            for _ in range(3):
                start = time.perf_counter()
                session.launch(session.stage(batch)).result()
                seconds.append(time.perf_counter() - start)
            samples.append((rows, length, min(seconds[1:])))
    end = time.perf_counter() + WARM_S
    for rows, length in probe.warm:
        if time.perf_counter() > end:
            break
        session.launch(session.stage(_made_up(rows, length, None))).result()
    return samples


def _made_up(rows: int, length: int, packed: tuple[int, int] | None) -> Batch:
    """Rows of real tokens: a batch whose mask is empty would not be like any that comes."""
    from bertopt.batching import Layout, Packed

    tokens = Tokens(np.full(rows * length, 1, np.int32), np.arange(rows + 1, dtype=np.int64) * length)
    layout: Layout = Packed(*packed) if packed else Padded(rows, length)
    return Batch(np.arange(rows), tokens, layout)
