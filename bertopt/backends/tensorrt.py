"""TensorRT plans on pycuda, without torch; the primary context is shared, so torch can live beside it.

Copies in, computation and copies out have a stream each. A slot is what one batch in flight owns: page-locked memory
and its twin on the device. Inputs move from the slot to one fixed place and logits back, inside the device, so that every
execution context and captured graph sees the same addresses whichever slot a batch came in.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertopt.backends.base import Artifact, Options, Times
from bertopt.batching import Batch, Padded
from bertopt.builders import versions
from bertopt.errors import BackendUnavailable, PlanError
from bertopt.plan import Plan, open_plan
from bertopt.profiles import Part, from_edges, split

if TYPE_CHECKING:
    from bertopt.graph.emit import Int8

OBSERVED = 1024  # texts that FP16 is judged by are picked from so many


def available(device: str) -> str | None:
    """Why TensorRT cannot run here; None when it can."""
    if device != "cuda":
        return "TensorRT runs on a CUDA device; on a CPU the same rung is an OpenVINO plan"
    missing = [name for name in ("tensorrt", "pycuda") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed: {versions.INSTALL}"
    from bertopt.backends import driver

    return None if driver.device() else "there is no CUDA device: nvidia-smi tells whether the driver sees one"


def prepare(workspace: Any, precision: str) -> Artifact:
    """A plan for the workspace's bucket edges: the cached one, if its manifest fits, else built."""
    if precision not in ("half", "fp16", "fp32", "int8"):
        raise BackendUnavailable(f"a TensorRT plan in {precision} is built with bertopt build-engine, not by the ladder")
    plan, notes = cached(workspace, "fp16" if precision == "half" else precision)
    info = {"plan": plan.path.name, "profiles": plan.manifest.profiles, "layers": plan.manifest.layers}
    if precision == "int8":
        info |= _placed(plan)
    return Artifact(plan, plan.manifest.precision, workspace.checkpoint.uses_type_ids, info, tuple(notes))


def cached(workspace: Any, precision: str) -> tuple[Plan, list[str]]:
    """The workspace's plan in this precision, and what building it said; the manifest is the key of the cache.

    INT8 is placed by the workspace's calibration (`calibration.of_workspace`).
    """
    from bertopt import build
    from bertopt.graph import storage

    checkpoint, graph = workspace.checkpoint, workspace.canonical()
    profiles = from_edges(workspace.bucket_edges, workspace.batch_size)
    who = build.identify(checkpoint)
    int8, notes = _int8(workspace) if precision == "int8" else (None, [])
    demands: dict[str, Any] = {
        "graph_sha256": storage.digest(graph),
        "tokenizer_fingerprint": who.tokenizer_fingerprint,
        "profiles": [str(profile) for profile in profiles],
        "precision": precision,
        "options": build.options("tensorrt"),
        "calibration_sha256": int8.calibration.sha256 if int8 is not None else None,
    }
    name = hashlib.sha256(repr(demands).encode()).hexdigest()[:12]
    path = Path(workspace.folder) / f"{precision}-{name}.plan"
    with contextlib.suppress(PlanError):
        return open_plan(path, **demands), notes
    tokenizer = checkpoint.tokenizer(max(workspace.bucket_edges))
    result = build.build_plan(
        graph,
        path,
        target="tensorrt",
        precision=precision,
        profiles=profiles,
        tokens=tokenizer.encode(workspace.texts[:OBSERVED]),
        pad_id=checkpoint.pad_id,
        identity=who,
        bucket_edges=workspace.bucket_edges,
        int8=int8,
    )
    return result.plan, [*notes, *result.lines()]


def _int8(workspace: Any) -> tuple[Int8, list[str]]:
    from bertopt.calibration import of_workspace
    from bertopt.graph.emit import Int8

    calibration, notes = of_workspace(workspace)
    return Int8(calibration, attention=calibration.attention), notes


def _placed(plan: Plan) -> dict[str, Any]:
    """How much of a plan is in INT8, from the graph that it was built from, which lies beside it."""
    from bertopt.graph.emit import describe

    placement = describe(plan.path.with_name(f"{plan.path.name}.onnx")).placement
    assert placement is not None
    return placement.info(plan.manifest.calibration_sha256)


def open(artifact: Artifact, options: Options) -> TensorRtSession:
    return TensorRtSession(artifact.content, options)


@dataclass
class Staged:
    """A batch on its way to the device, in one part or, where no profile holds it whole, several."""

    parts: list[tuple[Part, Any]]  # with the slot of each


@dataclass
class TensorRtPending:
    """A launched batch; its slots are free again when the result has been read."""

    session: TensorRtSession
    staged: Staged
    shapes: list[tuple[int, ...]]  # of the logits of each part
    _times: Times | None = field(default=None, init=False)

    def result(self) -> NDArray[np.float32]:
        rows = []
        for (part, slot), shape in zip(self.staged.parts, self.shapes, strict=True):
            slot.copied_out.synchronize()
            rows.append(slot.logits(shape, self.session.engine.output_type)[: part.stop - part.start].astype(np.float32))
        self._times = self.session.read_times([slot for _, slot in self.staged.parts])
        self.session.release([slot for _, slot in self.staged.parts])
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    @property
    def times(self) -> Times:
        assert self._times is not None, "times are known after result()"
        return self._times


class TensorRtSession:
    """One plan on the first CUDA device. Raises PlanError where the plan does not fit this machine."""

    layouts: ClassVar[tuple[str, ...]] = ("padded",)

    def __init__(self, plan: Plan, options: Options) -> None:
        from bertopt.backends.tensorrt_engine import Engine, Primary

        self._pad_id = options.pad_id
        self._closing = contextlib.ExitStack()
        try:
            self._primary = Primary()
            self._closing.callback(self._primary.close)
            self.cuda = self._primary.cuda
            self.free_before = self.cuda.mem_get_info()[0]
            self._lowest_free = self.free_before
            self.copy_in, self.compute, self.copy_out = (self.cuda.Stream() for _ in range(3))
            self.engine = Engine(plan, self.cuda, self.compute)
            self._closing.callback(self.engine.close)
            self._slots: list[Any] = []
            self._free: list[Any] = []
            self._closing.callback(self._free_slots)
            self._free += [self._new_slot() for _ in range(options.in_flight)]
            self._zero = self.cuda.Event()
            self._closing.callback(self._primary.synchronize)
            self._zero.record(self.compute).synchronize()
            self._zero_s = time.perf_counter()
        except BaseException:
            self._closing.close()
            raise
        self.precision = plan.manifest.precision
        self._version = plan.manifest.version

    @property
    def version(self) -> str:
        """How results name it; shapes that could not be captured make a difference worth telling."""
        failure = self.engine.capture_failure
        return f"{self._version}, " + (f"no CUDA graphs ({failure})" if failure else "CUDA graphs")

    def stage(self, batch: Batch) -> Staged:
        assert isinstance(batch.layout, Padded)
        parts = split(self.engine.profiles, batch.rows, batch.layout.length)
        staged = Staged([(part, self._free.pop() if self._free else self._new_slot()) for part in parts])
        for part, slot in staged.parts:
            arrays = slot.inputs(part.shape)
            tokens = batch.tokens if len(parts) == 1 else batch.tokens.take(np.arange(part.start, part.stop))
            fill(Batch(batch.positions[part.start : part.stop], tokens, batch.layout), arrays, self._pad_id)
            size = slot.layout.size(part.shape)
            slot.copy_start.record(self.copy_in)
            self.cuda.memcpy_htod_async(slot.device_in, slot.host_in[:size], self.copy_in)
            slot.copied_in.record(self.copy_in)
        return staged

    def launch(self, staged: Staged) -> TensorRtPending:
        cuda, engine, shapes = self.cuda, self.engine, []
        for part, slot in staged.parts:
            self.compute.wait_for_event(slot.copied_in)
            cuda.memcpy_dtod_async(engine.inputs, slot.device_in, slot.layout.size(part.shape), self.compute)
            slot.started.record(self.compute)
            shape = engine.run(part.index, part.shape)
            slot.finished.record(self.compute)
            size = int(np.prod(shape)) * engine.output_type.itemsize
            cuda.memcpy_dtod_async(slot.device_out, engine.output, size, self.compute)
            slot.moved.record(self.compute)
            self.copy_out.wait_for_event(slot.moved)
            cuda.memcpy_dtoh_async(slot.host_out[:size], slot.device_out, self.copy_out)
            slot.copied_out.record(self.copy_out)
            shapes.append(shape)
        return TensorRtPending(self, staged, shapes)

    def read_times(self, slots: list[Any]) -> Times:
        """Of the parts together; only after the last of them was waited for."""
        return Times(
            device_start_s=self._zero_s + slots[0].started.time_since(self._zero) / 1e3,
            device_ms=sum(slot.finished.time_since(slot.started) for slot in slots),
            copy_in_ms=sum(slot.copied_in.time_since(slot.copy_start) for slot in slots),
            copy_out_ms=sum(slot.copied_out.time_since(slot.moved) for slot in slots),
            copy_in_start_s=self._zero_s + slots[0].copy_start.time_since(self._zero) / 1e3,
        )

    def release(self, slots: list[Any]) -> None:
        self._free += slots
        self._lowest_free = min(self._lowest_free, self.engine.lowest_free)

    def peak_device_mib(self) -> float | None:
        """What the driver lost since this session began: weights, scratch, buffers, captured graphs."""
        lowest = min(self._lowest_free, self.cuda.mem_get_info()[0])
        return max(0.0, (self.free_before - lowest) / 2**20)

    def close(self) -> None:
        self._closing.close()

    def __enter__(self) -> TensorRtSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _new_slot(self) -> Any:
        from bertopt.backends.tensorrt_engine import Slot

        slot = Slot(self.cuda, self.engine.layout, self.engine.input_bytes, self.engine.output_bytes)
        self._slots.append(slot)
        return slot

    def _free_slots(self) -> None:
        for slot in self._slots:
            slot.close()
        self._slots.clear()
        self._free.clear()


def fill(batch: Batch, arrays: dict[str, NDArray[Any]], pad_id: int) -> None:
    """Write a batch's rows into arrays of at least its shape; rows beyond them are fillers with one attended token.

    A row without any attended token is a softmax over nothing, whose NaN no kernel is obliged to keep to itself.
    """
    rows = batch.rows
    ids, mask, types = arrays["input_ids"], arrays["attention_mask"], arrays.get("token_type_ids")
    batch.fill(ids[:rows], mask[:rows], None if types is None else types[:rows], pad_id=pad_id)
    for array in arrays.values():
        array[rows:] = 0
    ids[rows:], mask[rows:, 0] = pad_id, 1
