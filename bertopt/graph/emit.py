"""One canonical graph -> the file that each builder wants. What differs between them is `TARGETS`, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto

from bertopt.errors import GraphError
from bertopt.graph import storage
from bertopt.graph.half import HalfReport, half
from bertopt.graph.ranges import Feeds


@dataclass(frozen=True)
class Target:
    """What a builder wants of its graph."""

    library: str  # its name for people
    typed: bool  # precision lives in the tensors; else it is a hint when the graph is compiled
    obeys_types: bool  # strongly typed; else the nodes kept in FP32 are named to the builder once more
    opset: int | None = None  # the newest that its parser knows
    ir_version: int | None = None  # likewise, of the file format


TARGETS = {
    "tensorrt-8": Target("TensorRT 8.6", typed=True, obeys_types=False, opset=17, ir_version=8),
    "tensorrt-10": Target("TensorRT 10", typed=True, obeys_types=True),
    "tensorrt-11": Target("TensorRT 11", typed=True, obeys_types=True),
    "tensorrt-rtx": Target("TensorRT for RTX", typed=True, obeys_types=True),
    "openvino": Target("OpenVINO", typed=False, obeys_types=False),
}

PRECISION, KEPT, GROUPS = "bertopt.precision", "bertopt.fp32_nodes", "bertopt.groups"  # metadata of an emitted file


@dataclass(frozen=True)
class Emitted:
    """A file for one builder, and what its graph says of itself."""

    path: Path
    precision: str  # of the tensors: "fp32" or "fp16"
    fp32_nodes: list[str]  # kept in FP32 inside an FP16 graph
    groups: dict[str, str]  # group of layers -> precision
    report: HalfReport | None = None  # None: nothing was rewritten


def emit(graph: Path, out: Path, target: str, *, precision: str = "fp16", feeds: Iterable[Feeds] | None = None) -> Emitted:
    """Write to `out` what `target` (a key of TARGETS) builds from the graph at `graph`, in `precision` "fp32" or "fp16".

    `feeds` are batches of real texts by which FP16 is judged. A graph that was emitted before, or has FP16 tensors already,
    is taken as it is. Raises GraphError where the graph cannot be rewritten or is newer than the target's parser.
    """
    wanted = TARGETS[target]
    model = storage.load(graph)
    report = None
    if precision == "fp16" and wanted.typed and not is_half(model):
        if feeds is None:
            raise GraphError("FP16 is decided from ranges on real texts, and none were given")
        model, report = half(model, feeds)
        for key, value in {
            PRECISION: "fp16",
            KEPT: json.dumps([k.node for k in report.kept]),
            GROUPS: json.dumps(report.groups),
        }.items():
            model.metadata_props.add(key=key, value=value)
    _fit(model, wanted, graph)
    storage.save(model, out)
    return describe(out, model, report)


def describe(path: Path, model: onnx.ModelProto | None = None, report: HalfReport | None = None) -> Emitted:
    """What the graph at `path` says of itself."""
    model = model or onnx.load(path, load_external_data=False)
    said = {p.key: p.value for p in model.metadata_props}
    precision = said.get(PRECISION, "fp16" if is_half(model) else "fp32")
    return Emitted(path, precision, json.loads(said.get(KEPT, "[]")), json.loads(said.get(GROUPS, "{}")), report)


def inputs(path: Path) -> list[str]:
    """The names of a graph's inputs, in its order."""
    return [i.name for i in onnx.load(path, load_external_data=False).graph.input]


def is_half(model: onnx.ModelProto) -> bool:
    """Whether any weight is FP16."""
    return any(tensor.data_type == TensorProto.FLOAT16 for tensor in model.graph.initializer)


def _fit(model: onnx.ModelProto, target: Target, graph: Path) -> None:
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    if target.opset is not None and opset > target.opset:
        raise GraphError(f"{graph} has opset {opset}, and {target.library} parses up to {target.opset}: export it again")
    if target.ir_version is not None:
        model.ir_version = min(model.ir_version, target.ir_version)
