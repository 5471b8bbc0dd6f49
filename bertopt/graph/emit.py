"""One canonical graph -> the file that each builder wants. What differs between them is `TARGETS`, and nothing else."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper, version_converter

from bertopt import calibration as caches
from bertopt.calibration import Calibration
from bertopt.environment import cpu_features
from bertopt.errors import GraphError
from bertopt.graph import storage
from bertopt.graph.half import MASK, HalfReport, half, layer_group
from bertopt.graph.linears import kind_of
from bertopt.graph.quantize import Placement, fold_weights, int8_products, levels_for, quantize
from bertopt.graph.ranges import Feeds
from bertopt.graph.retype import plain


@dataclass(frozen=True)
class Target:
    """What a builder wants of its graph."""

    library: str  # its name for people
    typed: bool  # precision lives in the tensors; else it is a hint when the graph is compiled
    obeys_types: bool  # strongly typed; else the nodes kept in FP32 are named to the builder once more
    opset: int | None = None  # the newest that its parser knows
    ir_version: int | None = None  # likewise, of the file format
    on_cpu: bool = False  # how exact INT8 is depends on the processor


TARGETS = {
    "tensorrt-8": Target("TensorRT 8.6", typed=True, obeys_types=False, opset=17, ir_version=8),
    "tensorrt-10": Target("TensorRT 10", typed=True, obeys_types=True),
    "tensorrt-11": Target("TensorRT 11", typed=True, obeys_types=True),
    "tensorrt-rtx": Target("TensorRT for RTX", typed=True, obeys_types=True),
    "openvino": Target("OpenVINO", typed=False, obeys_types=False, on_cpu=True),
}

# Metadata of an emitted file
PRECISION, KEPT, GROUPS, PLACEMENT = "bertopt.precision", "bertopt.fp32_nodes", "bertopt.groups", "bertopt.int8"
HALF_QUANTIZES = 19  # the opset whose QuantizeLinear takes FP16


@dataclass(frozen=True)
class Emitted:
    """A file for one builder, and what its graph says of itself."""

    path: Path
    precision: str  # of the tensors: "fp32", "fp16" or "int8"
    fp32_nodes: list[str]  # kept in FP32 where the rest is FP16
    groups: dict[str, str]  # group of layers -> precision
    report: HalfReport | None = None  # None: nothing was rewritten to FP16
    placement: Placement | None = None  # None: there is no INT8 that was placed here
    products: int = 0  # that read quantized inputs


@dataclass(frozen=True)
class Int8:
    """What INT8 is placed by."""

    calibration: Calibration
    leave: Collection[str] = ()  # sites that stay in float
    attention: bool = False  # whether the products of attention are quantized too


def emit(
    graph: Path,
    out: Path,
    target: str,
    *,
    precision: str = "fp16",
    feeds: Iterable[Feeds] | None = None,
    int8: Int8 | None = None,
) -> Emitted:
    """Write to `out` what `target` (a key of TARGETS) builds from the graph at `graph`, in "fp32", "fp16" or "int8".

    `feeds` are batches of real texts by which FP16 is judged, the FP16 around INT8 too. A graph that was emitted before, or
    has FP16 tensors or Q/DQ pairs already, is taken as it is. Raises GraphError where the graph cannot be rewritten or is
    newer than the target's parser, and PlanError where the calibration belongs to another graph.
    """
    wanted = TARGETS[target]
    model = storage.load(graph)
    report = placement = None
    if precision == "int8" and not int8_products(model):
        if int8 is None:
            raise GraphError("INT8 is placed by a calibration, and none was given: there are no default scales")
        caches.check(int8.calibration, "the cache", graph=storage.digest(graph))
        model, report, placement = _quantized(model, wanted, int8, feeds)
    elif precision == "fp16" and wanted.typed and not is_half(model):
        model, report = _half(model, feeds)
    if report is not None or placement is not None:
        for key, value in _said(precision, report, placement, wanted).items():
            model.metadata_props.add(key=key, value=value)
    _fit(model, wanted, graph)
    storage.save(model, out)
    return describe(out, model, report)


def describe(path: Path, model: onnx.ModelProto | None = None, report: HalfReport | None = None) -> Emitted:
    """What the graph at `path` says of itself."""
    model = model or onnx.load(path, load_external_data=False)
    said = {p.key: p.value for p in model.metadata_props}
    found = "int8" if int8_products(model) else "fp16" if is_half(model) else "fp32"
    placement = Placement(**json.loads(said[PLACEMENT])) if PLACEMENT in said else None
    kept, groups = json.loads(said.get(KEPT, "[]")), json.loads(said.get(GROUPS, "{}"))
    return Emitted(path, said.get(PRECISION, found), kept, groups, report, placement, int8_products(model))


def inputs(path: Path) -> list[str]:
    """The names of a graph's inputs, in its order."""
    return [i.name for i in onnx.load(path, load_external_data=False).graph.input]


def is_half(model: onnx.ModelProto) -> bool:
    """Whether any weight is FP16."""
    return any(tensor.data_type == TensorProto.FLOAT16 for tensor in model.graph.initializer)


def _half(model: onnx.ModelProto, feeds: Iterable[Feeds] | None) -> tuple[onnx.ModelProto, HalfReport]:
    if feeds is None:
        raise GraphError("FP16 is decided from ranges on real texts, and none were given")
    return half(model, feeds)


def _quantized(
    model: onnx.ModelProto, target: Target, int8: Int8, feeds: Iterable[Feeds] | None
) -> tuple[onnx.ModelProto, HalfReport | None, Placement]:
    """The graph in INT8 as the target takes it. Where types are hints, it stays FP32 around INT8, and FP16 is the builder's."""
    levels = levels_for(cpu_features() if target.on_cpu else None)
    quantized, placement = quantize(
        plain(model), int8.calibration, leave=int8.leave, weight_levels=levels, attention=int8.attention
    )
    if not target.typed:
        return fold_weights(quantized), None, placement
    if target.obeys_types:
        folded = fold_weights(quantized)
        newer = folded if _opset(folded) >= HALF_QUANTIZES else version_converter.convert_version(folded, HALF_QUANTIZES)
        typed, report = _half(newer, feeds)
        return typed, report, placement
    _, report = _half(model, feeds)
    for tensor in quantized.graph.initializer:
        if tensor.name in report.clamped:
            tensor.CopyFrom(numpy_helper.from_array(np.copysign(np.float32(MASK), numpy_helper.to_array(tensor)), tensor.name))
    return quantized, report, placement


def _said(precision: str, report: HalfReport | None, placement: Placement | None, target: Target) -> dict[str, str]:
    """The metadata of an emitted file."""
    groups = dict(report.groups) if report is not None else {}
    said = {PRECISION: precision, KEPT: json.dumps([k.node for k in report.kept] if report is not None else [])}
    if placement is not None:
        around = "fp16" if target.typed else "float"
        low, kept = _parts(placement.quantized), _parts(placement.left)
        for group in low:
            groups[group] = f"int8, {', '.join(kept[group])} in {around}" if group in kept else "int8"
        groups |= {group: around for group in kept if group not in low}
        said[PLACEMENT] = json.dumps(dataclasses.asdict(placement))
    return said | {GROUPS: json.dumps(groups)}


def _parts(names: list[str]) -> dict[str, list[str]]:
    """The kinds of these sites by group of layers."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(layer_group(name), []).append(kind_of(name))
    return found


def _fit(model: onnx.ModelProto, target: Target, graph: Path) -> None:
    opset = _opset(model)
    if target.opset is not None and opset > target.opset:
        raise GraphError(f"{graph} has opset {opset}, and {target.library} parses up to {target.opset}: export it again")
    if target.ir_version is not None:
        model.ir_version = min(model.ir_version, target.ir_version)


def _opset(model: onnx.ModelProto) -> int:
    return next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
