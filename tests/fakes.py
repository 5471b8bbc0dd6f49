"""A back end that sleeps and answers with a value derived from each row, so that mix-ups are visible."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

import numpy as np

from bertopt.backends.base import Times
from bertopt.batching import Batch
from bertopt.text import Requests
from bertopt.tokenization import Tokens


class FakeClock:
    """A clock that only its own sleep moves, so that what is measured does not depend on the machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class WordTokenizer:
    """A token a word: its length. `slow_ms` is spent on every call without holding the interpreter's lock."""

    def __init__(self, slow_ms: float = 0.0, fails_on: str | None = None, clock: FakeClock | None = None) -> None:
        self.slow_ms, self.fails_on, self.clock = slow_ms, fails_on, clock

    def encode(self, texts: list[str], pairs: list[str | None] | None = None) -> Tokens:
        (self.clock.sleep if self.clock else time.sleep)(self.slow_ms / 1e3)
        if self.fails_on is not None and self.fails_on in texts:
            raise ValueError(f"cannot tokenize {self.fails_on!r}")
        return Tokens.from_rows([[len(word) for word in text.split()] or [0] for text in texts])


class FakePending:
    def __init__(self, session: FakeSession, logits: np.ndarray, start_s: float) -> None:
        self._session, self._logits, self._start_s = session, logits, start_s

    def result(self) -> np.ndarray:
        end = self._start_s + self._session.device_ms / 1e3
        while (left := end - self._session.clock()) > 1e-9:
            self._session.sleep(left)
        return self._logits

    @property
    def times(self) -> Times:
        return Times(self._start_s, self._session.device_ms)


class FakeSession:
    """Its launch returns at once and the device is done `device_ms` after it was free; `fails` batches raise."""

    precision = "fp32"
    version = "fake"
    layouts: ClassVar[tuple[str, ...]] = ("padded", "packed")

    def __init__(self, device_ms: float = 0.0, fails: tuple[int, ...] = (), clock: FakeClock | None = None) -> None:
        self.device_ms, self.fails, self.launched = device_ms, fails, 0
        self.clock = clock or time.perf_counter
        self.sleep = clock.sleep if clock else time.sleep
        self._free_s = 0.0

    def stage(self, batch: Batch) -> Batch:
        return batch

    def launch(self, staged: Batch) -> FakePending:
        self.launched += 1
        if self.launched in self.fails:
            raise RuntimeError("out of memory")
        start = max(self.clock(), self._free_s)
        self._free_s = start + self.device_ms / 1e3
        starts = staged.tokens.offsets[:-1]
        rows = np.add.reduceat(staged.tokens.ids, starts).astype(np.float32)
        return FakePending(self, np.stack([rows, staged.tokens.lengths.astype(np.float32)], axis=1), start)

    def peak_device_mib(self) -> None:
        return None

    def close(self) -> None:
        return None

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


def requests(count: int) -> Requests:
    generator = np.random.default_rng(0)
    return Requests([" ".join("x" * int(n) for n in generator.integers(1, 9, 1 + i % 13)) for i in range(count)])


def right_answers(of: Requests) -> np.ndarray:
    return np.array([[sum(map(len, t.split())), len(t.split())] for t in of.texts], dtype=np.float32)


def threads_named(prefix: str) -> int:
    return sum(t.name.startswith(prefix) for t in threading.enumerate())
