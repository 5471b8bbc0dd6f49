"""FP32 graph + calibration -> a graph with explicit Q/DQ pairs on the inputs of the Linears, for every builder.

int8 with its zero point written and 0; activations per tensor, weights per output channel; query, key and value read one
quantized tensor. Embeddings, LayerNorm, mask, softmax and residual additions are untouched, and so are the heads. What
smoothing divides an activation by is folded into what comes before where that is linear (the attention's output, into the
value projection); a post-LayerNorm block also feeds its residual, so there it is one Mul.
"""

from __future__ import annotations

import platform
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bertopt.calibration import Calibration, SiteRange
from bertopt.errors import GraphError
from bertopt.graph.attention import Product, Values, products, values_behind
from bertopt.graph.calibrate import LEVELS
from bertopt.graph.linears import Site, count, sites

SAFE_LEVELS = 63  # of a weight where u8 x s8 products are added in 16 bits: 255 * 127 * 2 does not fit, 255 * 63 * 2 does
ADDS_IN_32_BITS = {"avx512_vnni", "avx_vnni", "amx_int8"}


@dataclass(frozen=True)
class Placement:
    """What was quantized and what was left alone."""

    quantized: list[str]  # names of sites
    left: list[str]
    linears: int
    quantized_linears: int
    folded: int  # smoothings that cost no operation
    products: int  # of attention, quantized
    weight_levels: int  # on either side of zero: 127 is 8 bits, 63 is 7

    def lines(self) -> list[str]:
        """For people: how much is in INT8 and what is not."""
        kept = f"; left in float: {', '.join(self.left)}" if self.left else ""
        more = f" and {self.products} attention products" * bool(self.products)
        bits = "" if self.weight_levels == LEVELS else f", weights within +/-{self.weight_levels}"
        return [f"{self.quantized_linears} of {self.linears} Linears{more} in INT8{bits}{kept}"]

    def info(self, calibration: str | None) -> dict[str, Any]:
        """What a back end's artifact says of its INT8; `calibration` is its SHA-256."""
        return {
            "linears": self.linears,
            "int8_linears": self.quantized_linears,
            "weight_levels": self.weight_levels,
            "calibration": calibration,
        }


def quantize(
    model: onnx.ModelProto,
    calibration: Calibration,
    *,
    leave: Collection[str] = (),
    weight_levels: int = LEVELS,
    attention: bool = False,
) -> tuple[onnx.ModelProto, Placement]:
    """The graph with Q/DQ pairs on every site of the calibration but those named in `leave`.

    Weights stay FP32 with a Q/DQ pair (what TensorRT 8.6 wants); `fold_weights` stores them as int8. `weight_levels` are
    LEVELS, or SAFE_LEVELS for a processor that adds products in 16 bits. `attention` quantizes the products of attention
    too, except where a layer's attention output is left in float.

    Raises GraphError where the calibration lacks a site of this graph or has another width, `leave` names a site that there
    is not, or nothing is left to quantize.
    """
    found = sites(model)
    _check_names(model, found, calibration, leave)
    chosen = [s for s in found if s.name not in leave]
    behind = {s.tensor: values for s in found if (values := values_behind(model, s))}
    pairs = _chosen_products(model, found, leave, behind, calibration) if attention else []
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = _Graph(result, weight_levels)
    folded = 0
    for site in chosen:
        smoothing = calibration.sites[site.name].smoothing
        values = behind.get(site.tensor)
        if smoothing is not None and values is not None:
            graph.divide_values(values, np.asarray(smoothing), site.name)
            folded += 1
    for site in chosen:
        graph.place(site, calibration.sites[site.name], folded=site.tensor in behind)
    for product in pairs:
        graph.place_product(product, calibration.sites)
    graph.finish()
    placement = Placement(
        quantized=list(dict.fromkeys(s.name for s in chosen)),
        left=list(dict.fromkeys(s.name for s in found if s.name in leave)),
        linears=count(found),
        quantized_linears=count(chosen),
        folded=folded,
        products=2 * len(pairs),
        weight_levels=weight_levels,
    )
    check(result, placement.quantized_linears + placement.products)
    return result, placement


def _check_names(model: onnx.ModelProto, found: list[Site], calibration: Calibration, leave: Collection[str]) -> None:
    shapes = {t.name: t.dims for t in model.graph.initializer}
    names = list(dict.fromkeys(s.name for s in found))
    for site in found:
        known = calibration.sites.get(site.name)
        if known is None:
            raise GraphError(f"the calibration has no range for {site.name}: it belongs to another graph")
        first = site.linears[0]
        width = shapes[first.weight][1 if first.transposed else 0]
        if known.smoothing is not None and len(known.smoothing) != width:
            raise GraphError(
                f"the calibration has {len(known.smoothing)} smoothing factors for {site.name}, and its input has {width} "
                "channels: it belongs to another graph"
            )
    unknown = next((name for name in leave if name not in names), None)
    if unknown is not None:
        raise GraphError(f"there is no {unknown} to leave in float; there are {', '.join(names)}")
    if set(names) <= set(leave):
        raise GraphError(f"INT8 was asked for and not applied: all {count(found)} Linears are left in float")


def _chosen_products(
    model: onnx.ModelProto, found: list[Site], leave: Collection[str], behind: dict[str, Values], calibration: Calibration
) -> list[Product]:
    left = {behind[s.tensor].context for s in found if s.name in leave and s.tensor in behind}
    chosen = [p for p in products(model) if p.context not in left]  # ranges of their values are those of smoothed ones
    missing = next((p for p in chosen if p.range_name("query") not in calibration.sites), None)
    if missing is not None:
        raise GraphError(f"the calibration has no ranges for the attention products of {missing.name}: calibrate with them")
    return chosen


class _Graph:
    """A model that is being rewritten: its initializers by name, and the nodes to put in front of others."""

    def __init__(self, model: onnx.ModelProto, weight_levels: int) -> None:
        self.model, self.weight_levels = model, weight_levels
        self.initializers = {t.name: t for t in model.graph.initializer}
        self.nodes = {n.name: n for n in model.graph.node}
        self.first: list[onnx.NodeProto] = []  # of weights, which several layers may read
        self.before: dict[str, list[onnx.NodeProto]] = {}

    def divide_values(self, values: Values, factors: NDArray[np.float64], site: str) -> None:
        """Divide a value projection by what smooths the attention output that it leads to."""
        projection, addition = self.nodes[values.projection], self.nodes[values.addition]
        projection.input[1] = self._scaled(projection.input[1], 1.0 / factors, 1, site)
        bias = next(i for i, name in enumerate(addition.input) if name in self.initializers)
        addition.input[bias] = self._scaled(addition.input[bias], 1.0 / factors, 0, site)

    def place(self, site: Site, found: SiteRange, *, folded: bool) -> None:
        """Q/DQ pairs for one activation and for the weights that read it."""
        into = self.before.setdefault(site.linears[0].node, [])
        source = site.tensor
        factors = None if found.smoothing is None else np.asarray(found.smoothing)
        if factors is not None and not folded:
            inverse = self._constant(f"{source}_smoothing", (1.0 / factors).astype(np.float32))
            source = self._add(into, helper.make_node("Mul", [source, inverse], [f"{source}_smooth"]))
        quantized = self._pair(into, source, np.float32(found.scale))
        for linear in site.linears:
            node = self.nodes[linear.node]
            axis = 0 if linear.transposed else 1
            weight = node.input[1] if factors is None else self._scaled(node.input[1], factors, 1 - axis, site.name)
            node.input[0], node.input[1] = quantized, self._quantized_weight(weight, axis)

    def place_product(self, product: Product, ranges: dict[str, SiteRange]) -> None:
        """Q/DQ pairs for the four inputs of one layer's attention products."""
        for role, tensor in product.tensors.items():
            name = product.scores if role in ("query", "key") else product.context
            node, scale = self.nodes[name], np.float32(ranges[product.range_name(role)].scale)
            quantized = self._pair(self.before.setdefault(name, []), tensor, scale)
            node.input[0 if role in ("query", "probabilities") else 1] = quantized

    def finish(self) -> None:
        """Put the new nodes in their places, and drop what nothing reads any more."""
        old = list(self.model.graph.node)
        nodes = [*self.first, *(n for node in old for n in (*self.before.get(node.name, ()), node))]
        used = {name for node in nodes for name in node.input} | {o.name for o in self.model.graph.output}
        kept = [t for t in self.model.graph.initializer if t.name in used]
        _replace(self.model.graph.node, nodes)
        _replace(self.model.graph.initializer, kept)

    def _quantized_weight(self, weight: str, axis: int) -> str:
        if f"{weight}_scale" not in self.initializers:
            highest = np.abs(numpy_helper.to_array(self.initializers[weight])).max(axis=1 - axis)
            self._pair(self.first, weight, highest.astype(np.float32) / np.float32(self.weight_levels), axis=axis)
        return f"{weight}_float"

    def _pair(self, into: list[onnx.NodeProto], source: str, scale: NDArray[np.float32] | np.float32, **axis: Any) -> str:
        """QuantizeLinear and DequantizeLinear of `source`. The zero point is written: left away, ONNX means uint8."""
        step = self._constant(f"{source}_scale", half_up(scale))
        zero = self._constant(f"{source}_zero", np.zeros(np.shape(scale), np.int8))
        low = self._add(into, helper.make_node("QuantizeLinear", [source, step, zero], [f"{source}_int8"], **axis))
        return self._add(into, helper.make_node("DequantizeLinear", [low, step, zero], [f"{source}_float"], **axis))

    def _add(self, into: list[onnx.NodeProto], node: onnx.NodeProto) -> str:
        node.name = f"{node.output[0]}_{node.op_type}"
        into.append(node)
        return node.output[0]

    def _constant(self, name: str, array: NDArray[Any]) -> str:
        if name not in self.initializers:
            self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
            self.initializers[name] = self.model.graph.initializer[-1]
        return name

    def _scaled(self, name: str, factors: NDArray[np.float64], axis: int, site: str) -> str:
        """A copy of a constant: others may read it too, and layers that share it share the copy."""
        array = numpy_helper.to_array(self.initializers[name])
        shape = [1] * array.ndim
        shape[axis] = -1
        return self._constant(f"{name}_for_{site}", (array * factors.reshape(shape)).astype(np.float32))


def levels_for(features: Collection[str] | None, machine: str | None = None) -> int:
    """Weight levels that no processor with these `features` (environment.cpu_features) adds up wrongly; None: a GPU.

    x86 without VNNI saturates; what an x86 does that does not tell is not known, and so it gets the safe ones too.
    """
    x86 = (machine or platform.machine()).lower() in ("x86_64", "amd64", "i686", "x86")
    return LEVELS if features is None or not x86 or ADDS_IN_32_BITS.intersection(features) else SAFE_LEVELS


def half_up(scale: NDArray[np.float32] | np.float32) -> NDArray[np.float32]:
    """The next number that FP16 holds, and above zero: one scale serves FP32 and FP16 files, and clips nothing."""
    near = np.asarray(scale, np.float32).astype(np.float16)
    up = np.where(near.astype(np.float32) < scale, np.nextafter(near, np.float16(np.inf)), near)
    return np.maximum(up, np.nextafter(np.float16(0), np.float16(1))).astype(np.float32)


def fold_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with quantized weights stored as int8, a quarter of the size; TensorRT 8.6 does not take it."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    tensors = {t.name: t for t in result.graph.initializer}
    nodes, folded = [], {}
    for node in result.graph.node:
        if node.op_type != "QuantizeLinear" or node.input[0] not in tensors:
            nodes.append(node)
            continue
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        weight, scale = (numpy_helper.to_array(tensors[name]) for name in node.input[:2])
        shape = [1] * weight.ndim
        shape[axis] = -1
        low = np.clip(np.round(weight / scale.reshape(shape)), -LEVELS, LEVELS).astype(np.int8)
        folded[node.input[0]] = numpy_helper.from_array(low, node.output[0])
    read = {name for node in nodes for name in node.input}
    kept = [t for t in result.graph.initializer if t.name not in folded or t.name in read]
    _replace(result.graph.initializer, [*kept, *folded.values()])
    _replace(result.graph.node, nodes)
    return result


def check(model: onnx.ModelProto, wanted: int) -> None:
    """Raises GraphError where a zero point is not int8 0, or fewer than `wanted` products read quantized inputs."""
    tensors = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            zero = tensors.get(node.input[2]) if len(node.input) > 2 else None
            if zero is None or zero.data_type != TensorProto.INT8 or numpy_helper.to_array(zero).any():
                raise GraphError(f"{node.name} has no int8 zero point of 0: TensorRT would compute it wrongly")
    found = int8_products(model)
    if found < wanted or not found:
        raise GraphError(f"INT8 was asked for and not applied: {found} of {wanted} products read quantized inputs")


def int8_products(model: onnx.ModelProto) -> int:
    """MatMul and Gemm nodes whose two inputs both come from a DequantizeLinear."""
    dequantized = {o for n in model.graph.node if n.op_type == "DequantizeLinear" for o in n.output}
    return sum(n.op_type in ("MatMul", "Gemm") and set(n.input[:2]) <= dequantized for n in model.graph.node)


def _replace(repeated: Any, items: list[Any]) -> None:
    """A protobuf list's items. Copies: they may be the list's own."""
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del repeated[:]
    repeated.extend(copies)
