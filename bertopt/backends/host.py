"""What the CPU sessions share: padded arrays in ordinary memory, and one thread that computes.

The computation has a thread of its own so that the caller can stage the next batch meanwhile, and so that Ctrl-C is
answered at once although a library is deep in a batch.
"""

from __future__ import annotations

import concurrent.futures as futures
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


def padded_arrays(batch: Batch, uses_type_ids: bool, pad_id: int) -> Feeds:
    """The batch as int64 arrays [rows, length] by input name."""
    assert isinstance(batch.layout, Padded)
    shape = (batch.layout.rows, batch.layout.length)
    arrays = {"input_ids": np.empty(shape, np.int64), "attention_mask": np.empty(shape, np.int64)}
    if uses_type_ids:
        arrays["token_type_ids"] = np.empty(shape, np.int64)
    batch.fill(arrays["input_ids"], arrays["attention_mask"], arrays.get("token_type_ids"), pad_id=pad_id)
    return arrays


@dataclass
class HostPending:
    future: futures.Future[tuple[NDArray[np.float32], Times]]

    def result(self) -> NDArray[np.float32]:
        return self.future.result()[0]

    @property
    def times(self) -> Times:
        return self.future.result()[1]


class HostSession(ABC):
    """A CPU session: `compute` turns arrays into logits; the rest is here."""

    layouts: ClassVar[tuple[str, ...]] = ("padded",)
    precision: str
    version: str

    def __init__(self, options: Options, uses_type_ids: bool) -> None:
        self.threads = options.threads or usable_cores()
        self._uses_type_ids, self._pad_id = uses_type_ids, options.pad_id
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="compute", initializer=self.start_thread)

    def start_thread(self) -> None:  # noqa: B027 - a hook that most libraries do not need
        """Runs once on the thread that computes."""

    @abstractmethod
    def compute(self, feeds: Feeds) -> NDArray[np.float32]:
        """Logits of one padded batch."""

    def stage(self, batch: Batch) -> Feeds:
        return padded_arrays(batch, self._uses_type_ids, self._pad_id)

    def launch(self, staged: Feeds) -> HostPending:
        return HostPending(self._thread.submit(self._timed, staged))

    def _timed(self, feeds: Feeds) -> tuple[NDArray[np.float32], Times]:
        start = time.perf_counter()
        logits = self.compute(feeds)
        return logits, Times(start, (time.perf_counter() - start) * 1e3)

    def peak_device_mib(self) -> float | None:
        return None

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> HostSession:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
