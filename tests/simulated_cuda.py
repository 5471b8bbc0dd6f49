"""A card made of numpy, for what a machine without one can still find out about a session.

Work on a stream happens late: an operation runs only when something waits for it, and which of the streams goes on is drawn
at random. A copy that starts before its event, or a buffer that is used again too early, therefore gives wrong logits
for some seed. TensorRT's objects offer exactly the names that the real bindings of a version offer
(`data/tensorrt_api.json`, read from their wheels), so a call that this version lacks fails here too.
"""

from __future__ import annotations

import json
import random
import types
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

API: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "tensorrt_api.json").read_text())
BASE = 0x10000


class Card:
    """Memory, streams and a clock that counts operations."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.streams: dict[int, Stream] = {}
        self.memory: dict[int, np.ndarray] = {}
        self.next_address = BASE
        self.clock = 0
        self.recording: list[Callable[[], None]] | None = None
        self.live_graphs = 0

    def enqueue(self, stream: Stream, work: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> None:
        if self.recording is not None:
            self.recording.append(work)
        else:
            stream.work.append((ready, work))

    def run_until(self, done: Callable[[], bool]) -> None:
        while not done():
            ready = [s for s in self.streams.values() if s.work and s.work[0][0]()]
            assert ready, "everything waits for something that was never enqueued"
            _, work = self.random.choice(ready).work.popleft()
            self.clock += 1
            work()

    def begin_capture(self, stream: int) -> None:
        """In place of `driver.begin_capture`."""
        self.recording = []

    def end_capture(self, stream: int) -> SimulatedGraph:
        """In place of `driver.end_capture`."""
        recorded, self.recording = self.recording, None
        assert recorded is not None
        return SimulatedGraph(self, recorded)

    def bytes_at(self, address: int, size: int) -> np.ndarray:
        for base, block in self.memory.items():
            if base <= address and address + size <= base + len(block):
                return block[address - base : address - base + size]
        raise AssertionError(f"{size} bytes at {address:#x} are not allocated")


class Stream:
    def __init__(self, card: Card) -> None:
        self.card, self.work = card, deque[tuple[Callable[[], bool], Callable[[], None]]]()
        self.handle = len(card.streams) + 1
        card.streams[self.handle] = self

    def wait_for_event(self, event: Event) -> None:
        wanted = event.recorded
        self.card.enqueue(self, lambda: None, lambda: event.reached >= wanted)

    def synchronize(self) -> None:
        self.card.run_until(lambda: not self.work)


class Event:
    def __init__(self, card: Card) -> None:
        self.card, self.recorded, self.reached, self.at = card, 0, 0, 0

    def record(self, stream: Stream) -> Event:
        self.recorded += 1
        mine = self.recorded

        def reach() -> None:
            self.reached, self.at = mine, self.card.clock

        self.card.enqueue(stream, reach)
        return self

    def synchronize(self) -> None:
        wanted = self.recorded
        self.card.run_until(lambda: self.reached >= wanted)

    def time_since(self, other: Event) -> float:
        assert self.reached == self.recorded, "a time was read before anybody waited for it"
        return float(self.at - other.at)


class Allocation:
    def __init__(self, card: Card, size: int) -> None:
        self.card, self.address = card, card.next_address
        card.next_address += -(-size // 512) * 512
        card.memory[self.address] = np.full(size, 0xAB, np.uint8)  # never zero: what was not written must show

    def __int__(self) -> int:
        return self.address

    def free(self) -> None:
        del self.card.memory[self.address]


def driver_module(card: Card) -> types.ModuleType:
    """What the session uses of pycuda.driver."""
    module = types.ModuleType("pycuda.driver")
    pushed: list[int] = []

    class Context:
        def push(self) -> None:
            pushed.append(1)

        def pop(self) -> None:
            pushed.pop()

        def synchronize(self) -> None:
            card.run_until(lambda: not any(s.work for s in card.streams.values()))

    class Device:
        def __init__(self, index: int) -> None: ...
        def retain_primary_context(self) -> Context:
            return Context()

    def pagelocked_empty(size: int, dtype: Any) -> np.ndarray:
        holder = Allocation(card, size)
        return _Based(card.memory[holder.address], holder)  # type: ignore[return-value]

    def htod(target: Allocation, source: np.ndarray, stream: Stream) -> None:
        card.enqueue(stream, lambda: np.copyto(card.bytes_at(int(target), source.nbytes), source))

    def dtoh(target: np.ndarray, source: Allocation, stream: Stream) -> None:
        card.enqueue(stream, lambda: np.copyto(target, card.bytes_at(int(source), target.nbytes)))

    def dtod(target: Allocation, source: Allocation, size: int, stream: Stream) -> None:
        card.enqueue(stream, lambda: np.copyto(card.bytes_at(int(target), size), card.bytes_at(int(source), size)))

    module.__dict__.update(
        init=lambda: None,
        Device=Device,
        Stream=lambda: Stream(card),
        Event=lambda: Event(card),
        mem_alloc=lambda size: Allocation(card, int(size)),
        pagelocked_empty=pagelocked_empty,
        memcpy_htod_async=htod,
        memcpy_dtoh_async=dtoh,
        memcpy_dtod_async=dtod,
        mem_get_info=lambda: (10**9 - sum(map(len, card.memory.values())), 10**9),
        pushed=pushed,
    )
    return module


class _Based:
    """A page-locked array: indexes like one, and its `base` can be freed."""

    def __init__(self, array: np.ndarray, base: Allocation) -> None:
        self.array, self.base = array, base

    def __getitem__(self, key: Any) -> np.ndarray:
        return self.array[key]


def answer(ids: np.ndarray, mask: np.ndarray, types_: np.ndarray) -> np.ndarray:
    """Logits that tell every row, its length and its segments apart, whatever it is padded to."""
    return np.stack([(ids * mask).sum(1), (types_ * mask).sum(1) + 1000 * mask.sum(1)], axis=1).astype(np.float32)


class Offered:
    """Offers the names that a class of the real bindings has, and no other."""

    offered: frozenset[str]

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name not in type(self).offered:
            raise AttributeError(f"this version of TensorRT has no {type(self).__name__}.{name}")
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in type(self).offered:
            raise AttributeError(f"this version of TensorRT has no {type(self).__name__}.{name}")
        super().__setattr__(name, value)


def tensorrt_module(
    card: Card,
    version: str,
    profiles: list[str],
    *,
    binding: str,
    refuse_capture: bool = False,
    refuse_profile: int | None = None,
) -> Any:
    """TensorRT as far as a session uses it; its one engine computes `answer` for the profiles' shapes."""
    api, made = API[version], types.ModuleType("tensorrt")
    limits = [[tuple(map(int, shape.split("x"))) for shape in text.split(":")] for text in profiles]
    names = ("input_ids", "attention_mask", "token_type_ids")
    dtype = np.dtype({"INT32": np.int32, "INT64": np.int64}[binding])

    def offered(name: str, body: dict[str, Any]) -> type:
        listed = frozenset(api["classes"][name])
        absent = {n for n in body if not n.startswith("_")} - listed
        return type(name, (Offered,), {k: v for k, v in body.items() if k not in absent} | {"offered": listed})

    def enum(name: str) -> Any:
        members = {m: types.SimpleNamespace(name=m) for m in api["enums"][name]}
        return types.SimpleNamespace(**members)

    class ILogger:
        Severity = types.SimpleNamespace(WARNING=2, ERROR=1)

        def __init__(self) -> None: ...

    def context(scratch: bool) -> Any:
        state: dict[str, Any] = {"profile": None, "shapes": {}, "addresses": {}, "scratch": scratch, "frozen": False}

        def touch() -> None:
            assert not state["frozen"], "a context that was captured from must not change"

        def set_profile(self: Any, index: int, stream: int) -> bool:
            touch()
            state["profile"] = index
            return index != refuse_profile

        def set_shape(self: Any, name: str, shape: tuple[int, int]) -> bool:
            touch()
            low, _, high = limits[state["profile"]]
            if not all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True)):
                return False
            state["shapes"][name] = tuple(shape)
            return True

        def set_address(self: Any, name: str, address: int) -> bool:
            touch()
            assert address % 256 == 0
            state["addresses"][name] = address
            return True

        def give(self: Any, address: int, size: int) -> None:
            card.bytes_at(address, size)
            state["scratch"] = True

        def execute(self: Any, handle: int) -> bool:
            assert state["scratch"], "no scratch memory"
            (shape,) = set(state["shapes"].values())
            addresses = dict(state["addresses"])
            if card.recording is not None:
                if refuse_capture:
                    return False
                state["frozen"] = True

            def work() -> None:
                size = shape[0] * shape[1] * dtype.itemsize
                arrays = [card.bytes_at(addresses[n], size).view(dtype).reshape(shape) for n in names]
                assert arrays[1].any(axis=1).all(), "a row without any attended token"
                logits = answer(*arrays)
                np.copyto(card.bytes_at(addresses["logits"], logits.nbytes), logits.view(np.uint8).ravel())

            card.enqueue(card.streams[handle], work)
            return True

        body = {
            "set_optimization_profile_async": set_profile,
            "set_input_shape": set_shape,
            "set_tensor_address": set_address,
            "set_device_memory": give,
            "device_memory": property(lambda self: 0, lambda self, address: give(self, address, 4096)),
            "execute_async_v3": execute,
            "get_tensor_shape": lambda self, name: (state["shapes"]["input_ids"][0], 2),
        }
        return offered("IExecutionContext", body)()

    engine = offered(
        "ICudaEngine",
        {
            "num_io_tensors": 4,
            "device_memory_size": 4096,
            "device_memory_size_v2": 4096,
            "get_tensor_name": lambda self, i: (*names, "logits")[i],
            "get_tensor_mode": lambda self, n: made.TensorIOMode.OUTPUT if n == "logits" else made.TensorIOMode.INPUT,
            "get_tensor_dtype": lambda self, n: getattr(made.DataType, "FLOAT" if n == "logits" else binding),
            "create_execution_context": lambda self, strategy=None: context(scratch=strategy is None),
            "create_execution_context_without_device_memory": lambda self: context(scratch=False),
        },
    )
    runtime = offered("Runtime", {"deserialize_cuda_engine": lambda self, data: engine() if data == b"engine" else None})
    made.__dict__.update({name: enum(name) for name in api["enums"]})
    made.__dict__.update(ILogger=ILogger, Runtime=lambda log: runtime())
    return made


class SimulatedGraph:
    """In place of `driver.CapturedGraph`."""

    def __init__(self, card: Card, recorded: list[Callable[[], None]]) -> None:
        self.card, self.recorded = card, recorded
        card.live_graphs += 1

    def launch(self, stream: int) -> None:
        for work in self.recorded:
            self.card.enqueue(self.card.streams[stream], work)

    def close(self) -> None:
        self.card.live_graphs -= 1
