"""FP32 graph + calibration -> a graph with explicit Q/DQ pairs on the inputs of the Linears, for every builder.

int8 with its zero point written and 0; activations per tensor, weights per output channel; query, key and value read one
quantized tensor. Embeddings, LayerNorm, mask, softmax and residual additions are untouched, and so are the heads. What
smoothing divides an activation by is folded into what comes before where that is linear (the attention's output, into the
value projection); a post-LayerNorm block also feeds its residual, so there it is one Mul.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bertopt.errors import GraphError
from bertopt.graph.calibrate import LEVELS, Calibration, SiteRange
from bertopt.graph.linears import Linear, Site, sites

SAFE_LEVELS = 63  # of a weight where u8 x s8 products are added in 16 bits: 255 * 127 * 2 does not fit, 255 * 63 * 2 does


@dataclass(frozen=True)
class Placement:
    """What was quantized and what was left alone."""

    quantized: list[str]  # names of sites
    left: list[str]
    linears: int
    quantized_linears: int
    folded: int  # smoothings that cost no operation

    def lines(self) -> list[str]:
        kept = f"; left in float: {', '.join(self.left)}" if self.left else ""
        return [f"{self.quantized_linears} of {self.linears} Linears in INT8{kept}"]


def quantize(
    model: onnx.ModelProto, calibration: Calibration, *, leave: Collection[str] = (), weight_levels: int = LEVELS
) -> tuple[onnx.ModelProto, Placement]:
    """The graph with Q/DQ pairs on every site of the calibration but those named in `leave`.

    Weights stay FP32 with a Q/DQ pair (what TensorRT 8.6 wants); `fold_weights` stores them as int8.
    Raises GraphError where the calibration lacks a site of this graph, or `leave` names one that there is not.
    """
    found = sites(model)
    missing = [s.name for s in found if s.name not in calibration.sites]
    if missing:
        raise GraphError(f"the calibration has no range for {missing[0]}: it belongs to another graph")
    unknown = [name for name in leave if name not in {s.name for s in found}]
    if unknown:
        raise GraphError(f"there is no {unknown[0]} to leave in float; there are {', '.join(s.name for s in found)}")
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = _Graph(result)
    chosen = [s for s in found if s.name not in leave]
    folded = graph.fold(chosen, calibration)
    for site in chosen:
        graph.place(site, calibration.sites[site.name], site.name in folded, weight_levels)
    graph.finish()
    placement = Placement(
        quantized=list(dict.fromkeys(s.name for s in chosen)),
        left=[s.name for s in found if s.name in leave],
        linears=sum(len(s.linears) for s in found),
        quantized_linears=sum(len(s.linears) for s in chosen),
        folded=len(folded),
    )
    check(result, placement.quantized_linears)
    return result, placement


class _Graph:
    """A model that is being rewritten: its initializers by name, and the nodes to put in front of others."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.initializers = {t.name: t for t in model.graph.initializer}
        self.nodes = {n.name: n for n in model.graph.node}
        self.producers = {o: n for n in model.graph.node for o in n.output}
        self.before: dict[str, list[onnx.NodeProto]] = {}
        self._weights: dict[str, str] = {}  # weight -> its quantized tensor; shared layers have one

    def fold(self, chosen: list[Site], calibration: Calibration) -> set[str]:
        """Divide value projections by what smooths the attention outputs that they lead to; names of those sites."""
        done: set[str] = set()
        for site in chosen:
            factors = calibration.sites[site.name].smoothing
            if factors is None or site.kind != "attention-output" or site.name in done:
                continue
            value = self._value_projection(site.tensor)
            if value is None:
                continue
            weight, bias = value
            self._scale(weight, 1.0 / np.asarray(factors), axis=1)
            self._scale(bias, 1.0 / np.asarray(factors), axis=0)
            done.add(site.name)
        return done

    def _value_projection(self, tensor: str) -> tuple[str, str] | None:
        """(weight, bias) of the Linear whose output reaches `tensor` through reshapes and the product with probabilities."""
        seen_product = False
        for _ in range(12):
            node = self.producers.get(tensor)
            if node is None:
                return None
            if node.op_type == "Add":  # MatMul + bias, in either order
                bias = next((i for i in node.input if i in self.initializers), None)
                product = self.producers.get(next(i for i in node.input if i != bias))
                if bias is None or product is None or product.input[1] not in self.initializers or not seen_product:
                    return None
                return product.input[1], bias
            if node.op_type == "MatMul":
                if seen_product:
                    return None
                seen_product, tensor = True, node.input[1]  # probabilities x values
            elif node.op_type in ("Reshape", "Transpose"):
                tensor = node.input[0]
            else:
                return None
        return None

    def place(self, site: Site, found: SiteRange, folded: bool, weight_levels: int) -> None:
        source = site.tensor
        factors = None if found.smoothing is None else np.asarray(found.smoothing)
        first = self.nodes[site.linears[0].node]
        if factors is not None and not folded:
            inverse = self._constant(f"{site.tensor}_smoothing", (1.0 / factors).astype(np.float32))
            source = self._add(first, helper.make_node("Mul", [site.tensor, inverse], [f"{site.tensor}_smooth"]))
        scale = self._constant(f"{site.tensor}_scale", np.float32(found.scale))
        quantized = self._pair(first, source, scale, axis=None)
        for linear in site.linears:
            node = self.nodes[linear.node]
            if linear.weight not in self._weights:
                if factors is not None:
                    self._scale(linear.weight, factors, axis=1 if linear.transposed else 0)
                self._weights[linear.weight] = self._quantized_weight(node, linear, weight_levels)
            node.input[0], node.input[1] = quantized, self._weights[linear.weight]

    def _quantized_weight(self, node: onnx.NodeProto, linear: Linear, levels: int) -> str:
        axis = 0 if linear.transposed else 1
        weight = numpy_helper.to_array(self.initializers[linear.weight])
        highest = np.abs(weight).max(axis=1 - axis)
        scale = np.maximum(highest, 1e-8).astype(np.float32) / np.float32(levels)
        return self._pair(node, linear.weight, self._constant(f"{linear.weight}_scale", scale), axis=axis)

    def _pair(self, before: onnx.NodeProto, source: str, scale: str, axis: int | None) -> str:
        """QuantizeLinear and DequantizeLinear of `source`. The zero point is written: left away, ONNX means uint8."""
        shape = numpy_helper.to_array(self.initializers[scale]).shape
        zero = self._constant(f"{source}_zero", np.zeros(shape, np.int8))
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        low = self._add(before, helper.make_node("QuantizeLinear", [source, scale, zero], [f"{source}_int8"], **attributes))
        return self._add(before, helper.make_node("DequantizeLinear", [low, scale, zero], [f"{source}_float"], **attributes))

    def _add(self, before: onnx.NodeProto, node: onnx.NodeProto) -> str:
        node.name = f"{node.output[0]}_{node.op_type}"
        self.before.setdefault(before.name, []).append(node)
        return node.output[0]

    def _constant(self, name: str, array: NDArray[np.generic]) -> str:
        if name not in self.initializers:
            tensor = numpy_helper.from_array(np.asarray(array), name)
            self.model.graph.initializer.append(tensor)
            self.initializers[name] = self.model.graph.initializer[-1]
        return name

    def _scale(self, name: str, factors: NDArray[np.float64], axis: int) -> None:
        array = numpy_helper.to_array(self.initializers[name])
        shape = [1] * array.ndim
        shape[axis] = -1
        scaled = (array * factors.reshape(shape)).astype(np.float32)
        self.initializers[name].CopyFrom(numpy_helper.from_array(scaled, name))

    def finish(self) -> None:
        nodes = [n for old in self.model.graph.node for n in (*self.before.get(old.name, ()), old)]
        del self.model.graph.node[:]
        self.model.graph.node.extend(nodes)


def fold_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with quantized weights stored as int8, a quarter of the size; TensorRT 8.6 does not take it."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    tensors = {t.name: t for t in result.graph.initializer}
    kept = []
    for node in result.graph.node:
        if node.op_type != "QuantizeLinear" or node.input[0] not in tensors:
            kept.append(node)
            continue
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        weight, scale = (numpy_helper.to_array(tensors[name]) for name in node.input[:2])
        shape = [1] * weight.ndim
        shape[axis] = -1
        low = np.clip(np.round(weight / scale.reshape(shape)), -128, 127).astype(np.int8)
        result.graph.initializer.append(numpy_helper.from_array(low, node.output[0]))
        result.graph.initializer.remove(tensors[node.input[0]])
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in kept]
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    return result


def check(model: onnx.ModelProto, linears: int) -> None:
    """Raises GraphError where a zero point is not int8 0, or fewer than `linears` products read quantized inputs."""
    tensors = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            zero = tensors.get(node.input[2]) if len(node.input) > 2 else None
            if zero is None or zero.data_type != TensorProto.INT8 or numpy_helper.to_array(zero).any():
                raise GraphError(f"{node.name} has no int8 zero point of 0: TensorRT would compute it wrongly")
    count = int8_products(model)
    if count < linears or not count:
        raise GraphError(f"INT8 was asked for and not applied: {count} of {linears} Linears read quantized inputs")


def int8_products(model: onnx.ModelProto) -> int:
    """MatMul and Gemm nodes whose two inputs both come from a DequantizeLinear."""
    dequantized = {o for n in model.graph.node if n.op_type == "DequantizeLinear" for o in n.output}
    return sum(n.op_type in ("MatMul", "Gemm") and set(n.input[:2]) <= dequantized for n in model.graph.node)
