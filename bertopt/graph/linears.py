"""The Linear layers of a canonical graph: products with a constant weight, grouped by the tensor that they read.

A site is what quantization acts on: one activation, and every Linear that reads it (query, key and value share one). It
has the name that its weights have in the checkpoint ("bert.encoder.layer.3.intermediate.dense"), so that it survives a new
export. Layers that share their weights (ALBERT) are sites of one name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bertopt.errors import GraphError

# A row or two of work: left alone
HEADS = {"classifier", "pooler", "qa_outputs", "pre_classifier", "out_proj", "sequence_summary"}
QUERY_KEY_VALUE = {"query", "key", "value", "q_lin", "k_lin", "v_lin", "query_proj", "key_proj", "value_proj"}

# Modules of the families that are served, by what they do
KINDS = (
    (r"attention\.output\.dense$|attention\.out_lin$|attention\.dense$", "attention-output"),
    (r"intermediate\.dense$|ffn\.lin1$|\.ffn$", "up"),
    (r"output\.dense$|ffn\.lin2$|ffn_output$", "down"),
)


@dataclass(frozen=True)
class Linear:
    """One product x W with a constant W [inputs, outputs]."""

    node: str
    weight: str  # initializer
    name: str  # of its module
    transposed: bool  # Gemm with transB: W is stored [outputs, inputs]


@dataclass(frozen=True)
class Site:
    """One activation [batch, length, inputs] and the Linears that read it."""

    name: str
    tensor: str
    linears: tuple[Linear, ...]

    @property
    def kind(self) -> str:
        return kind_of(self.name)


def kind_of(site: str) -> str:
    """A site's part of its layer, from its name: "qkv", "attention-output", "up" or "down", else the module's own last name."""
    module = site.partition("+")[0]
    last = module.rsplit(".", 1)[-1]
    if last in QUERY_KEY_VALUE:
        return "qkv"
    return next((kind for pattern, kind in KINDS if re.search(pattern, module)), last)


def sites(model: onnx.ModelProto) -> list[Site]:
    """Every site of the encoder, in the order of the graph; heads are left out, and products of constants (relative positions).

    Raises GraphError where there is none: a fused graph, or one whose weights are computed.
    """
    weights = {t.name for t in model.graph.initializer if len(t.dims) == 2}
    live = _activations(model.graph)
    found: dict[str, list[Linear]] = defaultdict(list)
    for node in model.graph.node:
        if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in weights or node.input[0] not in live:
            continue
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        linear = Linear(node.name, node.input[1], _module(node), transposed)
        if HEADS.isdisjoint(linear.name.split(".")):
            found[node.input[0]].append(linear)
    if not found:
        raise GraphError("this graph has no Linear layer with a constant weight: quantization starts from the canonical graph")
    first: dict[tuple[str, ...], list[Linear]] = {}  # the exporter numbers the calls of a module: the first has its name
    result = []
    for tensor, linears in found.items():
        named = first.setdefault(tuple(linear.weight for linear in linears), linears)
        own = [Linear(x.node, x.weight, y.name, x.transposed) for x, y in zip(linears, named, strict=True)]
        result.append(Site(_shared([x.name for x in own]), tensor, tuple(own)))
    return result


def count(found: list[Site]) -> int:
    """Linears of these sites."""
    return sum(len(site.linears) for site in found)


def weight_of(model: onnx.ModelProto, linear: Linear) -> NDArray[np.float32]:
    """The weight as [inputs, outputs]."""
    tensor = next(t for t in model.graph.initializer if t.name == linear.weight)
    array = numpy_helper.to_array(tensor).astype(np.float32)
    return array.T if linear.transposed else array


def module_path(node: onnx.NodeProto) -> str:
    """The dotted path of a node that TorchScript exported, without the wrapper around the model: its name in the checkpoint."""
    return node.name.strip("/").replace("/", ".").removeprefix("model.")


def _activations(graph: onnx.GraphProto) -> set[str]:
    """The tensors that depend on the values of the inputs, and not on their shapes alone."""
    live = {value.name for value in graph.input}
    for node in graph.node:
        if node.op_type not in ("Shape", "ConstantOfShape") and not live.isdisjoint(node.input):
            live.update(node.output)
    return live


def _module(node: onnx.NodeProto) -> str:
    return re.sub(r"\.(MatMul|Gemm)(_\d+)?$", "", module_path(node))


def _shared(names: list[str]) -> str:
    """A site's name: the Linear's, or what several have in common."""
    if len(names) == 1:
        return names[0]
    return f"{names[0].rpartition('.')[0]}.{'+'.join(name.rpartition('.')[2] for name in names)}"
