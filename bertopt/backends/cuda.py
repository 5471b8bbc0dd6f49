"""What the CUDA sessions that live beside torch share: pinned buffers, copies on their own streams, events.

Pinned: ids, mask and types of a batch travel as one page-locked buffer on the copy stream, the computation waits for
them on the device, and logits come back on a third stream, so that two batches can be in flight. Not pinned is the
naive service: pageable memory, blocking copies, one stream.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertopt.backends.base import Options, Times
from bertopt.batching import Batch, Padded


class Arena:
    """A page-locked buffer and its twin on the device, large enough for the batches that it is given."""

    def __init__(self, torch: Any, elements: int, pinned: bool) -> None:
        self.host = torch.empty(elements, dtype=torch.int64, pin_memory=pinned)
        self.device = torch.empty(elements, dtype=torch.int64, device="cuda")
        self.elements = elements


@dataclass
class Staged:
    arena: Arena
    inputs: dict[str, Any]  # tensors on the device, by input name
    copy_start: Any
    copy_end: Any
    blocking_copy_ms: float | None
    blocking_copy_start_s: float | None


@dataclass
class CudaPending:
    """A launched batch; its buffers go back to the pool when the result has been read."""

    session: CudaSession
    staged: Staged
    logits: Any  # on the device; held until the copy out of it is done
    host: Any
    compute_start: Any
    compute_end: Any
    copied: Any
    _times: Times | None = field(default=None, init=False)

    def result(self) -> NDArray[np.float32]:
        self.copied.synchronize()
        answer = self.host.numpy().copy()  # the pinned buffer is reused
        self._times = self.session.read_times(self)
        self.session.release(self.staged.arena)
        return answer

    @property
    def times(self) -> Times:
        assert self._times is not None, "times are known after result()"
        return self._times


class CudaSession(ABC):
    """A session on the current CUDA device; `run` enqueues the model on the compute stream and returns its logits."""

    layouts: ClassVar[tuple[str, ...]] = ("padded",)
    precision: str
    version: str

    def __init__(self, options: Options, uses_type_ids: bool) -> None:
        import torch

        self.torch = torch
        self._options, self._uses_type_ids = options, uses_type_ids
        self.stream = torch.cuda.Stream()
        self._copy_in = torch.cuda.Stream() if options.pinned else self.stream
        self._copy_out = torch.cuda.Stream() if options.pinned else self.stream
        self._free: list[Arena] = []
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        self._zero, self._zero_s = self._event(self.stream), time.perf_counter()

    @abstractmethod
    def run(self, inputs: dict[str, Any]) -> Any:
        """Enqueue the model on `self.stream`; logits as a float32 tensor on the device."""

    def stage(self, batch: Batch) -> Staged:
        assert isinstance(batch.layout, Padded)
        names = ["input_ids", "attention_mask"] + ["token_type_ids"] * self._uses_type_ids
        shape = (batch.layout.rows, batch.layout.length)
        arena = self._arena(len(names) * shape[0] * shape[1])
        used = len(names) * shape[0] * shape[1]
        arrays = arena.host[:used].view(len(names), *shape).numpy()
        batch.fill(arrays[0], arrays[1], arrays[2] if self._uses_type_ids else None, pad_id=self._options.pad_id)
        start_s = time.perf_counter()
        with self.torch.cuda.stream(self._copy_in):
            start = self._event(self._copy_in)
            arena.device[:used].copy_(arena.host[:used], non_blocking=self._options.pinned)
            end = self._event(self._copy_in)
        blocking = None if self._options.pinned else (time.perf_counter() - start_s) * 1e3
        inputs = dict(zip(names, arena.device[:used].view(len(names), *shape).unbind(0), strict=True))
        return Staged(arena, inputs, start, end, blocking, None if self._options.pinned else start_s)

    def launch(self, staged: Staged) -> CudaPending:
        torch = self.torch
        with torch.cuda.stream(self.stream), torch.inference_mode():
            self.stream.wait_event(staged.copy_end)
            start = self._event(self.stream)
            logits = self.run(staged.inputs)
            end = self._event(self.stream)
        with torch.cuda.stream(self._copy_out):
            self._copy_out.wait_event(end)
            host = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=self._options.pinned)
            host.copy_(logits, non_blocking=self._options.pinned)
            copied = self._event(self._copy_out)
        return CudaPending(self, staged, logits, host, start, end, copied)

    def read_times(self, pending: CudaPending) -> Times:
        staged = pending.staged
        copy_ms, copy_start = staged.blocking_copy_ms, staged.blocking_copy_start_s
        if copy_ms is None:
            copy_ms = staged.copy_start.elapsed_time(staged.copy_end)
            copy_start = self._zero_s + self._zero.elapsed_time(staged.copy_start) / 1e3
        return Times(
            device_start_s=self._zero_s + self._zero.elapsed_time(pending.compute_start) / 1e3,
            device_ms=pending.compute_start.elapsed_time(pending.compute_end),
            copy_in_ms=copy_ms,
            copy_out_ms=pending.compute_end.elapsed_time(pending.copied),
            copy_in_start_s=copy_start,
        )

    def release(self, arena: Arena) -> None:
        self._free.append(arena)

    def peak_device_mib(self) -> float | None:
        return float(self.torch.cuda.max_memory_allocated() / 2**20)

    def close(self) -> None:
        self.torch.cuda.synchronize()
        self._free.clear()

    def __enter__(self) -> CudaSession:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def _arena(self, elements: int) -> Arena:
        """A free arena that is large enough, or a new one; smaller ones are let go, so the pool does not grow by shapes."""
        while self._free:
            arena = self._free.pop()
            if arena.elements >= elements:
                return arena
        return Arena(self.torch, max(elements, 1 << 14), self._options.pinned)

    def _event(self, stream: Any) -> Any:
        event = self.torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event
