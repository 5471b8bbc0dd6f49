"""What a TensorRT session owns on the device: the primary context, slots, the engine, its contexts and captured graphs."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.backends import driver
from bertopt.builders import versions
from bertopt.builders.tensorrt import make_log
from bertopt.errors import PlanError
from bertopt.plan import Plan
from bertopt.profiles import Profile, Shape

ALIGNMENT = 256  # bytes, of every tensor that TensorRT is given
NUMPY = {"INT32": np.int32, "INT64": np.int64, "HALF": np.float16, "FLOAT": np.float32}  # trt.nptype breaks with numpy 1.26
MOST_GRAPHS = 32  # captured at once; bucket edges are at most 24
REMEMBERED = 256  # shapes whose sightings are counted
CAPTURE_AT = 2  # the sighting at which a shape is captured: what comes once is not worth it


class Primary:
    """The first device's primary context, current on this thread until `close`; the one that torch uses too."""

    def __init__(self) -> None:
        import pycuda.driver as cuda

        cuda.init()
        self.cuda = cuda
        self._context = cuda.Device(0).retain_primary_context()
        self._context.push()

    def synchronize(self) -> None:
        self._context.synchronize()

    def close(self) -> None:
        self._context.pop()


class Layout:
    """Where each input of a batch lies in one buffer, so that a batch is one copy: aligned, one after the other."""

    def __init__(self, names: Sequence[str], dtype: np.dtype[Any]) -> None:
        self.names, self.dtype = tuple(names), dtype

    def step(self, shape: Shape) -> int:
        """Bytes from one input to the next."""
        return -(-shape[0] * shape[1] * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT

    def size(self, shape: Shape) -> int:
        """Bytes of all inputs."""
        return len(self.names) * self.step(shape)

    def views(self, buffer: NDArray[np.uint8], shape: Shape) -> dict[str, NDArray[Any]]:
        """The inputs as arrays [rows, length] in a buffer of bytes, by name."""
        step, used = self.step(shape), shape[0] * shape[1] * self.dtype.itemsize
        return {name: buffer[i * step : i * step + used].view(self.dtype).reshape(shape) for i, name in enumerate(self.names)}


class Slot:
    """Page-locked buffers, their twins on the device, and the events of one batch in flight."""

    def __init__(self, cuda: Any, layout: Layout, input_bytes: int, output_bytes: int) -> None:
        self.layout = layout
        self.host_in, self.host_out = (cuda.pagelocked_empty(n, np.uint8) for n in (input_bytes, output_bytes))
        self.device_in, self.device_out = (cuda.mem_alloc(n) for n in (input_bytes, output_bytes))
        self.copy_start, self.copied_in, self.started, self.finished, self.moved, self.copied_out = (
            cuda.Event() for _ in range(6)
        )

    def inputs(self, shape: Shape) -> dict[str, NDArray[Any]]:
        """Its page-locked memory as this shape's inputs."""
        return self.layout.views(self.host_in, shape)

    def logits(self, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Its page-locked memory as logits of this shape; copy them before the slot is used again."""
        used = int(np.prod(shape)) * dtype.itemsize
        return self.host_out[:used].view(dtype).reshape(shape)

    def close(self) -> None:
        self.device_in.free()
        self.device_out.free()
        self.host_in.base.free()
        self.host_out.base.free()


class Captured:
    """A graph with the execution context that it was captured from, which nothing else may touch."""

    def __init__(self, graph: driver.CapturedGraph, context: Any, output: tuple[int, ...]) -> None:
        self.graph, self.context, self.output = graph, context, output

    def close(self) -> None:
        self.graph.close()
        del self.context


class Engine:
    """A deserialized plan: one execution context a profile, and one more for each shape that is captured.

    All contexts run on one stream, one after the other, so they share one piece of scratch memory.
    """

    def __init__(self, plan: Plan, cuda: Any, stream: Any) -> None:
        self.cuda, self.stream = cuda, stream
        self.profiles: tuple[Profile, ...] = plan.profiles
        self.capture_failure: str | None = None
        self._memory: list[Any] = []
        self._contexts: list[Any] = []
        self._graphs: OrderedDict[tuple[int, Shape], Captured] = OrderedDict()
        self._seen: OrderedDict[tuple[int, Shape], int] = OrderedDict()
        try:
            self._open(plan)
        except BaseException:
            self.close()
            raise
        self.lowest_free = cuda.mem_get_info()[0]

    def _open(self, plan: Plan) -> None:
        self._row = versions.dialect(plan.manifest.library, plan.manifest.library_version)
        self._trt = versions.load(self._row)
        self._log = make_log(self._trt)
        self._runtime = self._trt.Runtime(self._log)
        self._engine = self._runtime.deserialize_cuda_engine(plan.read())
        if self._engine is None:
            raise PlanError(f"{plan.path} is refused by {plan.manifest.version}: {self._log.last() or 'it gives no reason'}")
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        ins = [n for n in names if self._engine.get_tensor_mode(n) == self._trt.TensorIOMode.INPUT]
        (self._output,) = (n for n in names if n not in ins)
        self.layout = Layout(ins, self._numpy_type(ins[0]))
        self.output_type = self._numpy_type(self._output)
        self.input_bytes = max(self.layout.size(p.max) for p in self.profiles)
        self._scratch_bytes = max(versions.scratch_bytes(self._engine, self._row), ALIGNMENT)
        self.scratch, self.inputs = self._allocate(self._scratch_bytes), self._allocate(self.input_bytes)
        self.output: Any = None
        self._contexts += [self._context(index) for index in range(len(self.profiles))]
        self.output_bytes = max(self._largest_output(c, p) for c, p in zip(self._contexts, self.profiles, strict=True))
        self.output = self._allocate(self.output_bytes)

    def run(self, profile: int, shape: Shape) -> tuple[int, ...]:
        """Enqueue a batch whose inputs lie at `inputs`; the shape of the logits that will lie at `output`."""
        key = (profile, shape)
        captured = self._graphs.get(key)
        if captured is not None:
            self._graphs.move_to_end(key)
            captured.graph.launch(self.stream.handle)
            return captured.output
        if self._sightings(key) >= CAPTURE_AT and self.capture_failure is None:
            return self._capture(key)
        context = self._contexts[profile]
        self._bind(context, shape)
        self._enqueue(context)
        return tuple(context.get_tensor_shape(self._output))

    def close(self) -> None:
        """Graphs before contexts, contexts before the engine, and what they used last."""
        while self._graphs:
            self._graphs.popitem()[1].close()
        self._contexts.clear()
        self._engine = self._runtime = None
        for memory in self._memory:
            memory.free()
        self._memory.clear()

    def _capture(self, key: tuple[int, Shape]) -> tuple[int, ...]:
        """Run a shape in a context of its own, then record it for the next time.

        The first enqueue after a change of shape does more than launch kernels, so it must not be the recorded one.
        """
        context = self._context(key[0])
        self._bind(context, key[1])
        self._enqueue(context)
        output = tuple(context.get_tensor_shape(self._output))
        try:
            graph = self._record(context)
        except RuntimeError as error:  # some kernels cannot be recorded: they go on being enqueued
            self.capture_failure = str(error)
            return output
        if len(self._graphs) >= MOST_GRAPHS:
            self.stream.synchronize()
            self._graphs.popitem(last=False)[1].close()
        self._graphs[key] = Captured(graph, context, output)
        self.lowest_free = min(self.lowest_free, self.cuda.mem_get_info()[0])
        return output

    def _record(self, context: Any) -> driver.CapturedGraph:
        driver.begin_capture(self.stream.handle)
        try:
            self._enqueue(context)
        except RuntimeError:
            with contextlib.suppress(driver.DriverError):  # it may be broken; the stream must stop recording in any case
                driver.end_capture(self.stream.handle).close()
            raise
        return driver.end_capture(self.stream.handle)

    def _sightings(self, key: tuple[int, Shape]) -> int:
        count = self._seen.pop(key, 0) + 1
        self._seen[key] = count
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return count

    def _context(self, profile: int) -> Any:
        context = versions.context_without_memory(self._engine, self._row, self._trt)
        if context is None:
            raise RuntimeError(f"TensorRT makes no execution context: {self._log.last() or 'it gives no reason'}")
        versions.give_scratch(context, self._row, int(self.scratch), self._scratch_bytes)
        if not context.set_optimization_profile_async(profile, self.stream.handle):
            raise RuntimeError(f"TensorRT refuses profile {profile}: {self._log.last() or 'it gives no reason'}")
        self.stream.synchronize()
        return context

    def _bind(self, context: Any, shape: Shape) -> None:
        step = self.layout.step(shape)
        for index, name in enumerate(self.layout.names):
            if not context.set_input_shape(name, shape):
                raise RuntimeError(f"TensorRT refuses {name} of {shape[0]} x {shape[1]}: {self._log.last() or 'no reason'}")
            context.set_tensor_address(name, int(self.inputs) + index * step)
        if self.output is not None:
            context.set_tensor_address(self._output, int(self.output))

    def _enqueue(self, context: Any) -> None:
        if not context.execute_async_v3(self.stream.handle):
            raise RuntimeError(f"TensorRT could not enqueue a batch: {self._log.last() or 'it gives no reason'}")

    def _largest_output(self, context: Any, profile: Profile) -> int:
        self._bind(context, profile.max)
        return int(np.prod(tuple(context.get_tensor_shape(self._output)))) * self.output_type.itemsize

    def _numpy_type(self, name: str) -> np.dtype[Any]:
        return np.dtype(NUMPY[self._engine.get_tensor_dtype(name).name])

    def _allocate(self, size: int) -> Any:
        memory = self.cuda.mem_alloc(size)
        self._memory.append(memory)
        return memory
