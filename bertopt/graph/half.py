"""FP32 graph -> typed FP16 graph: FP16 tensors, and FP32 only where FP16 would hurt.

Precision lives in the graph, so that a strongly typed builder obeys it and the same file can be judged on a CPU. Token
ids stay integers and logits FP32. A node is kept in FP32, with Casts around it, when

- a tensor that it reads or writes was observed beyond `LIMIT` on real texts, or one of its constants is;
- a constant that it reads vanishes in FP16 (an epsilon of 1e-12 is 0);
- it is part of a layer normalization written out as Pow, ReduceMean, Sqrt and Div: the square of 256 overflows.
  The LayerNormalization operator of opset 17 keeps its statistics in FP32 (`stash_type` 1) and needs no such care;
- it computes positions: a float that becomes an index or a comparison must not be rounded.

Mask constants such as -3.4e38 would become -inf, and 0 * -inf is NaN: they are replaced by `MASK`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from bertopt.graph.ranges import Feeds, float_outputs, observe_ranges, tensor_types
from bertopt.graph.retype import constants, plain, retype

FP16_MAX = 65504.0
LIMIT = FP16_MAX / 4  # observed on some texts: others go higher, and TensorRT may accumulate a product in FP16
MASK = -32768.0  # far below any score that stays within LIMIT, and their sum is still finite in FP16
SMALLEST = 2.0**-24  # the smallest number above zero in FP16

# What may lie between a mask constant and the Softmax that it feeds.
MASKING = {"Where", "Mul", "Add", "Sub", "Min", "Max", "Expand", "Unsqueeze", "Squeeze", "Reshape", "Cast", "Transpose"}
INDEXING = {"Floor", "Ceil", "Round", "Range", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"}
REDUCTIONS = {"ReduceMean", "ReduceSum", "ReduceL2", "ReduceSumSquare"}
STATISTICS = {"Pow", "Mul", "Add", "Sqrt", "Reciprocal", "Div"}  # around a reduction of squares
INTEGERS = {TensorProto.INT32, TensorProto.INT64}
MASKS_FROM = 1000.0  # a scalar of this magnitude on its way to a Softmax is a mask, not a scale


@dataclass(frozen=True)
class Kept:
    """A node that stays in FP32, and why."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True)
class HalfReport:
    """What the rewrite did; `lines()` is for people."""

    half_nodes: int
    kept: list[Kept]
    clamped: dict[str, float]  # constant -> what it was before it became MASK
    casts: int
    largest: tuple[str, float]  # the FP16 tensor with the largest observed value; masked scores left out
    groups: dict[str, str]  # group of layers -> "fp16", "fp32" or "fp16, 3 of 40 nodes fp32"

    def lines(self) -> list[str]:
        """One line a fact, and one for each node kept in FP32."""
        tensor, value = self.largest
        lines = [f"{self.half_nodes} nodes in FP16, {len(self.kept)} kept in FP32, {self.casts} casts between them"]
        lines += [f"kept in FP32: {k.node} ({k.op}): {k.reason}" for k in self.kept]
        lines += [f"mask constant {name}: {was:g} became {MASK:g}" for name, was in self.clamped.items()]
        return [*lines, f"largest value observed in FP16: {value:g} of {FP16_MAX:g}, in {tensor}"]


def half(model: onnx.ModelProto, feeds: Iterable[Feeds]) -> tuple[onnx.ModelProto, HalfReport]:
    """The graph with FP16 tensors, and what was kept out of it, judged by the ranges that `feeds` reach.

    `feeds` are batches of real texts: input name -> int64 [rows, length]. Raises GraphError for a graph that is not plain
    FP32 ONNX (fused operators, control flow, FP16 already), and when a value is not finite already in FP32.
    """
    graph = plain(model)
    view = _View(graph)
    clamped, masked = view.clamp_masks()
    ranges = observe_ranges(graph, feeds)
    kept = view.keep(ranges, masked)
    names = {k.node for k in kept}
    lowered = [node for node in view.float_nodes if node.name not in names]
    inside = {name: ranges[name] for node in lowered for name in node.output if name in ranges and name not in masked}
    casts = retype(graph, names, view.types)
    onnx.checker.check_model(graph, full_check=True)
    largest = max(inside.items(), key=lambda item: item[1], default=("none", 0.0))
    return graph, HalfReport(len(lowered), kept, clamped, casts, largest, _groups(view.float_nodes, names))


class _View:
    """The FP32 graph with what deciding needs: types, consumers, producers."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph, self.types = model.graph, tensor_types(model)
        self.constants = constants(model.graph)
        self.producer = {name: node for node in model.graph.node for name in node.output}
        self.consumers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in model.graph.node:
            for name in node.input:
                self.consumers[name].append(node)
        floats = set(float_outputs(model))
        self.float_nodes = [node for node in model.graph.node if floats.intersection(node.output)]

    def clamp_masks(self) -> tuple[dict[str, float], set[str]]:
        """Replace mask constants beyond FP16; give them, and the tensors on the way from any mask constant to its Softmax."""
        clamped: dict[str, float] = {}
        masked: set[str] = set()
        for tensor in self.graph.initializer:
            value = self.constants.get(tensor.name)
            if value is None or value.size != 1 or abs(float(value.ravel()[0])) < MASKS_FROM:
                continue
            path = self._path_to_softmax(tensor.name)
            masked |= path
            if path and abs(float(value.ravel()[0])) > FP16_MAX:
                clamped[tensor.name] = float(value.ravel()[0])
                replaced = np.copysign(np.full_like(value, MASK), value)
                tensor.CopyFrom(numpy_helper.from_array(replaced, tensor.name))
                self.constants[tensor.name] = replaced
        return clamped, masked

    def _path_to_softmax(self, name: str) -> set[str]:
        """The tensors from a constant to the Softmaxes that it masks; empty when it reaches none."""
        path, reached, pending = set(), False, [name]
        while pending:
            for node in self.consumers[pending.pop()]:
                reached |= node.op_type == "Softmax"
                if node.op_type in MASKING and node.output[0] not in path:
                    path.add(node.output[0])
                    pending.append(node.output[0])
        return path if reached else set()

    def keep(self, ranges: dict[str, float], masked: set[str]) -> list[Kept]:
        """The nodes that stay in FP32, in graph order, each with the first reason found."""
        indexing, statistics = self._indexing(), self._statistics()
        kept = []
        for node in self.float_nodes:
            reason = self._beyond(node, ranges, masked)
            if reason is None and node.name in statistics:
                reason = "a reduction, or the root and quotient after it"
            if reason is None and node.name in indexing:
                reason = "ends in an index or a comparison"
            if reason is not None:
                kept.append(Kept(node.name, node.op_type, reason))
        return kept

    def _beyond(self, node: onnx.NodeProto, ranges: dict[str, float], masked: set[str]) -> str | None:
        for name in (*node.input, *node.output):
            if name in self.constants:
                highest = float(np.abs(self.constants[name]).max(initial=0.0))
                if highest > FP16_MAX:
                    return f"constant {name} reaches {highest:g}, over {FP16_MAX:g}"
                if 0.0 < highest < SMALLEST / 2:
                    return f"constant {name} is {highest:g}, which FP16 rounds to 0"
            limit = LIMIT - MASK if name in masked else LIMIT
            if ranges.get(name, 0.0) > limit:
                return f"{name} reached {ranges[name]:g}, over {limit:g}"
        return None

    def _statistics(self) -> set[str]:
        """Mean of squares, epsilon, root and division: a LayerNorm or RMS norm before opset 17, an L2 norm, a mean pool."""
        found, pending = set(), [n for n in self.float_nodes if n.op_type in REDUCTIONS]
        while pending:
            node = pending.pop()
            found.add(node.name)
            above = [self.producer.get(i) for i in node.input] if node.op_type in REDUCTIONS else []
            squares = [n for n in above if n is not None and n.op_type in ("Pow", "Mul")]
            below = [n for n in self.consumers[node.output[0]] if node.op_type != "Div" and n.op_type in STATISTICS]
            pending += [n for n in (*squares, *below) if n.name not in found]
        return found

    def _indexing(self) -> set[str]:
        """Float nodes whose values end in an index, a comparison or a rounding."""
        found: set[str] = set()
        ends = [
            n for n in self.graph.node if n.op_type in INDEXING or (n.op_type == "Cast" and self.types[n.output[0]] in INTEGERS)
        ]
        pending = [name for node in ends for name in node.input] + [o for n in ends if n.op_type in INDEXING for o in n.output]
        while pending:
            node = self.producer.get(pending.pop())
            if node is None or node.name in found or node.op_type in ("MatMul", "Gemm", "LayerNormalization"):
                continue
            if any(self.types.get(name) == TensorProto.FLOAT for name in node.output):
                found.add(node.name)
                pending += node.input
        return found


def layer_group(node: str) -> str:
    """The group of layers that a node belongs to, by its name: "embeddings", "layer 0", ..., "head", "other"."""
    layer = re.search(r"(?:layer|layers|albert_layers)[._](\d+)", node)
    if layer:
        return f"layer {int(layer[1])}"
    return "embeddings" if "embeddings" in node else "head" if re.search("pooler|classifier|outputs|dense", node) else "other"


def _groups(nodes: Iterable[onnx.NodeProto], kept: set[str]) -> dict[str, str]:
    total = Counter(layer_group(node.name) for node in nodes)
    full = Counter(layer_group(node.name) for node in nodes if node.name in kept)
    return {
        group: "fp16" if not full[group] else "fp32" if full[group] == count else f"fp16, {full[group]} of {count} nodes fp32"
        for group, count in total.items()
    }
