"""Processes that tokenize, each at the end of a pipe of its own. No thread of the parent carries anything.

A pool of the standard library hands tasks and results over in threads. They take the interpreter lock whenever the loop
that launches kernels lets go of it, which is at every kernel, and that loop then waits its turn a thousand times a second.
Here the caller writes a task into a pipe (30 KB) and reads the result when it wants it; tasks go round the workers in
turn, so results come in the order of their tasks and nothing has to be matched.
"""

from __future__ import annotations

import collections
import itertools
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from bertopt.errors import WorkerError

KILLED = "a tokenizing worker was killed; a machine short of memory does that"
PICKLED_AS = 5


class Processes:
    """`count` processes that call `work(tokenizer, *task)`; all of them have started when this returns.

    Raises WorkerError with the worker's own words when one fails, and when one dies.
    """

    def __init__(self, work: Any, tokenizer: Any, count: int) -> None:
        context = multiprocessing.get_context("spawn")  # never fork: the parent has native threads, and perhaps a CUDA context
        self._ends: list[Connection] = []
        self._children = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            child = context.Process(target=_serve, args=(theirs, work, tokenizer), daemon=True, name="tokenize")
            child.start()
            theirs.close()  # or a child that dies would leave its pipe open
            self._ends.append(ours)
            self._children.append(child)
        self._turns = itertools.cycle(range(count))
        self._unread: list[collections.deque[Promise]] = [collections.deque() for _ in range(count)]
        for end in self._ends:
            _receive(end)

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children if child.pid is not None]

    def submit(self, *task: Any) -> Promise:
        turn = next(self._turns)
        promise = Promise(self._ends[turn], self._unread[turn])
        try:
            self._ends[turn].send_bytes(pickle.dumps(task, PICKLED_AS))
        except OSError:
            raise WorkerError(KILLED) from None
        self._unread[turn].append(promise)
        return promise

    def close(self) -> None:
        """A worker whose pipe is closed ends at once, whatever it is doing."""
        for end in self._ends:
            end.close()


class Promise:
    """The result of one task, which lies in the pipe behind those of earlier ones."""

    def __init__(self, end: Connection, unread: collections.deque[Promise]) -> None:
        self._end, self._unread = end, unread
        self._arrived: Any = None
        self._wanted = True

    def result(self) -> Any:
        while self._arrived is None:
            first = self._unread.popleft()
            reply = _receive(self._end)
            if first._wanted:
                first._arrived = reply
        if isinstance(self._arrived, _Failure):
            raise WorkerError(f"a tokenizing worker failed: {self._arrived.words}")
        return self._arrived

    def cancel(self) -> None:
        """Nobody will ask for it: it is thrown away when what comes behind it is read."""
        self._wanted, self._arrived = False, None


class _Failure:
    def __init__(self, error: Exception) -> None:
        self.words = f"{type(error).__name__}: {error}"


def _receive(end: Connection) -> Any:
    try:
        return pickle.loads(end.recv_bytes())
    except (EOFError, OSError):
        raise WorkerError(KILLED) from None


def _serve(end: Connection, work: Any, tokenizer: Any) -> None:
    """A worker's life. A thread reads the tasks, so that the parent can always write, also while results wait to be read."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent answers it
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core a worker; the pool is the parallelism
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(end, tasks), daemon=True).start()
    tokenizer.encode([""])  # its own first call is slow too
    end.send_bytes(pickle.dumps(time.perf_counter(), PICKLED_AS))
    while True:
        task = pickle.loads(tasks.get())
        try:
            reply = work(tokenizer, *task)
        except Exception as error:  # whatever a tokenizer raises: the parent says it
            reply = _Failure(error)
        try:
            end.send_bytes(pickle.dumps(reply, PICKLED_AS))
        except OSError:  # the pool was closed; whichever thread sees it first
            os._exit(0)


def _read(end: Connection, tasks: queue.SimpleQueue[bytes]) -> None:
    """Until the pipe closes: the pool was closed, or the parent was killed and cannot close it."""
    while True:
        try:
            tasks.put(end.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
