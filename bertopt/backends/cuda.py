"""What the CUDA sessions that live beside torch share: pinned buffers, copies on their own streams, events.

Pinned: ids, mask and types of a batch travel as one page-locked buffer on the copy stream, the computation waits for
them on the device, and logits come back on a third stream, so that two batches can be in flight. Not pinned is the
naive service: pageable memory, blocking copies, one stream.

A small model's forward is shorter than what Python may waste around it, so buffers and events are made once and used
again, and streams are switched by the plain call: torch's own context manager costs 18 us, an event that is made 10.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertopt.backends.base import Options, Times
from bertopt.batching import Batch, Padded

ELEMENTS = 1 << 14  # of a slot at least: 32 rows of 128 tokens, three inputs


class Slot:
    """What one batch in flight needs: host memory, its twin on the device, and events. Used again for batch after batch."""

    def __init__(self, torch: Any, elements: int, pinned: bool) -> None:
        self._torch, self._pinned = torch, pinned
        self.host = torch.empty(elements, dtype=torch.int64, pin_memory=pinned)
        self.device = torch.empty(elements, dtype=torch.int64, device="cuda")
        self.elements = elements
        self.copy_start, self.copied_in, self.started, self.finished, self.copied_out = (
            torch.cuda.Event(enable_timing=True) for _ in range(5)
        )
        self._answers = torch.empty(0, dtype=torch.float32)

    def answers(self, shape: Sequence[int]) -> Any:
        """Host memory for logits of this shape; copy them before the slot is used again."""
        size = math.prod(shape)
        if self._answers.numel() < size:
            self._answers = self._torch.empty(size, dtype=self._torch.float32, pin_memory=self._pinned)
        return self._answers[:size].view(*shape)


@dataclass
class Staged:
    """A batch on its way to the device."""

    slot: Slot
    inputs: Any  # on the device; what `run` of the session takes
    blocking_copy_ms: float | None = None
    blocking_copy_start_s: float | None = None


@dataclass
class CudaPending:
    """A launched batch; its slot is free again when the result has been read."""

    session: CudaSession
    staged: Staged
    logits: Any  # on the device; held until the copy out of it is done
    host: Any
    _times: Times | None = field(default=None, init=False)

    def result(self) -> NDArray[np.float32]:
        self.staged.slot.copied_out.synchronize()
        answer = self.host.numpy().copy()
        self._times = self.session.read_times(self.staged)
        self.session.release(self.staged.slot)
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
        self.names = ("input_ids", "attention_mask", "token_type_ids")[: 2 + uses_type_ids]
        self.stream = torch.cuda.Stream()
        self._copy_in = torch.cuda.Stream() if options.pinned else self.stream
        self._copy_out = torch.cuda.Stream() if options.pinned else self.stream
        self._free: list[Slot] = []
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        self._zero = torch.cuda.Event(enable_timing=True)
        self._zero.record(self.stream)
        self._zero_s = time.perf_counter()

    @abstractmethod
    def run(self, inputs: Any) -> Any:
        """Enqueue the model on `self.stream`; logits as a float32 tensor on the device.

        `inputs` is one int64 tensor [names, rows, length], unless the session stages something else.
        """

    def stage(self, batch: Batch) -> Staged:
        assert isinstance(batch.layout, Padded)
        shape = (len(self.names), batch.layout.rows, batch.layout.length)
        used = math.prod(shape)
        slot = self._slot(used)
        arrays = slot.host[:used].view(shape).numpy()
        batch.fill(arrays[0], arrays[1], arrays[2] if self._uses_type_ids else None, pad_id=self._options.pad_id)
        return self._copy(slot, slot.device[:used], slot.host[:used], slot.device[:used].view(shape))

    def _copy(self, slot: Slot, device: Any, host: Any, inputs: Any) -> Staged:
        """Begin the copy of a filled slot; `inputs` is what `run` is given."""
        cuda, start_s = self.torch.cuda, time.perf_counter()
        before = cuda.current_stream()
        cuda.set_stream(self._copy_in)
        slot.copy_start.record(self._copy_in)
        device.copy_(host, non_blocking=self._options.pinned)
        slot.copied_in.record(self._copy_in)
        cuda.set_stream(before)
        if self._options.pinned:
            return Staged(slot, inputs)
        return Staged(slot, inputs, (time.perf_counter() - start_s) * 1e3, start_s)

    def launch(self, staged: Staged) -> CudaPending:
        slot, cuda = staged.slot, self.torch.cuda
        before = cuda.current_stream()
        cuda.set_stream(self.stream)
        try:
            self.stream.wait_event(slot.copied_in)
            slot.started.record(self.stream)
            with self.torch.inference_mode():
                logits = self.run(staged.inputs)
            slot.finished.record(self.stream)
            cuda.set_stream(self._copy_out)
            self._copy_out.wait_event(slot.finished)
            host = slot.answers(logits.shape)
            host.copy_(logits, non_blocking=self._options.pinned)
            slot.copied_out.record(self._copy_out)
        finally:
            cuda.set_stream(before)
        return CudaPending(self, staged, logits, host)

    def read_times(self, staged: Staged) -> Times:
        slot, copy_ms, copy_start = staged.slot, staged.blocking_copy_ms, staged.blocking_copy_start_s
        if copy_ms is None:
            copy_ms = slot.copy_start.elapsed_time(slot.copied_in)
            copy_start = self._zero_s + self._zero.elapsed_time(slot.copy_start) / 1e3
        return Times(
            device_start_s=self._zero_s + self._zero.elapsed_time(slot.started) / 1e3,
            device_ms=slot.started.elapsed_time(slot.finished),
            copy_in_ms=copy_ms,
            copy_out_ms=slot.finished.elapsed_time(slot.copied_out),
            copy_in_start_s=copy_start,
        )

    def release(self, slot: Slot) -> None:
        self._free.append(slot)

    def peak_device_mib(self) -> float | None:
        return float(self.torch.cuda.max_memory_allocated() / 2**20)

    def close(self) -> None:
        self.torch.cuda.synchronize()
        self._free.clear()

    def __enter__(self) -> CudaSession:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def _slot(self, elements: int) -> Slot:
        """A free slot that is large enough, or a new one; smaller ones are let go, so the pool does not grow by shapes."""
        while self._free:
            slot = self._free.pop()
            if slot.elements >= elements:
                return slot
        return Slot(self.torch, max(elements, ELEMENTS), self._options.pinned)
