"""What the CPU sessions share: padded arrays in ordinary memory, and threads that compute.

The computation has threads of its own so that the caller can stage the next batch meanwhile, and so that Ctrl-C is
answered at once although a library is deep in a batch. A library that runs several streams gets a part of each batch's
rows on each: cores that work on rows of their own need not wait for one another after every layer.
"""

from __future__ import annotations

import concurrent.futures as futures
import itertools
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertopt.backends.base import Options, Times
from bertopt.batching import Batch, Padded
from bertopt.measure.cores import usable_cores

Feeds = dict[str, NDArray[np.int64]]
PART_ROWS = 4  # fewer rows do not fill the registers of a matrix product


def padded_arrays(batch: Batch, uses_type_ids: bool, pad_id: int, length: int | None = None) -> Feeds:
    """The batch as int64 arrays [rows, length] by input name; `length` is its layout's, or more."""
    assert isinstance(batch.layout, Padded)
    shape = (batch.layout.rows, length or batch.layout.length)
    arrays = {"input_ids": np.empty(shape, np.int64), "attention_mask": np.empty(shape, np.int64)}
    if uses_type_ids:
        arrays["token_type_ids"] = np.empty(shape, np.int64)
    batch.fill(arrays["input_ids"], arrays["attention_mask"], arrays.get("token_type_ids"), pad_id=pad_id)
    return arrays


def split_rows(feeds: Feeds, most: int) -> list[Feeds]:
    """The arrays in up to `most` runs of rows, none of fewer than PART_ROWS where there are as many."""
    rows = len(next(iter(feeds.values())))
    parts = max(1, min(most, rows // PART_ROWS))
    cuts = [rows * i // parts for i in range(parts + 1)]
    return [{name: array[a:b] for name, array in feeds.items()} for a, b in itertools.pairwise(cuts)]


@dataclass(frozen=True)
class Lengths:
    """What a library computes a batch's length as: a few more columns of padding can be faster than an odd length."""

    multiple: int = 1
    longest: int = 0  # that the model has positions for

    def computed(self, length: int) -> int:
        """The next multiple, up to the longest."""
        return max(length, min(-(-length // self.multiple) * self.multiple, self.longest))


@dataclass
class HostPending:
    """A batch, in as many parts as it was split into."""

    parts: list[futures.Future[tuple[NDArray[np.float32], float, float]]]  # logits, start and end

    def result(self) -> NDArray[np.float32]:
        found = [part.result()[0] for part in self.parts]
        return found[0] if len(found) == 1 else np.concatenate(found)

    @property
    def times(self) -> Times:
        """From the start of the first part to the end of the last; parts of another batch may run in between."""
        start = min(part.result()[1] for part in self.parts)
        return Times(start, (max(part.result()[2] for part in self.parts) - start) * 1e3)


class HostSession(ABC):
    """A CPU session: `compute` turns arrays into logits, on each of its threads; the rest is here."""

    layouts: ClassVar[tuple[str, ...]] = ("padded",)
    precision: str
    version: str

    def __init__(self, options: Options, uses_type_ids: bool, *, most_streams: int = 1, lengths: Lengths | None = None) -> None:
        self.threads = options.threads or usable_cores()
        self.streams = min(most_streams, self.threads)
        self._lengths = lengths or Lengths()
        self._uses_type_ids, self._pad_id = uses_type_ids, options.pad_id
        self._pool = futures.ThreadPoolExecutor(self.streams, thread_name_prefix="compute", initializer=self.start_thread)

    def described_threads(self) -> str:
        return f"{self.threads} threads" + (f" in {self.streams} streams" if self.streams > 1 else "")

    def start_thread(self) -> None:  # noqa: B027 - a hook that most libraries do not need
        """Runs once on each thread that computes."""

    @abstractmethod
    def compute(self, feeds: Feeds) -> NDArray[np.float32]:
        """Logits of padded rows."""

    def stage(self, batch: Batch) -> Feeds:
        assert isinstance(batch.layout, Padded)
        return padded_arrays(batch, self._uses_type_ids, self._pad_id, self._lengths.computed(batch.layout.length))

    def launch(self, staged: Feeds) -> HostPending:
        parts = split_rows(staged, self.streams) if self.streams > 1 else [staged]
        return HostPending([self._pool.submit(self._timed, part) for part in parts])

    def _timed(self, feeds: Feeds) -> tuple[NDArray[np.float32], float, float]:
        start = time.perf_counter()
        logits = self.compute(feeds)
        return logits, start, time.perf_counter()

    def peak_device_mib(self) -> float | None:
        return None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> HostSession:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
