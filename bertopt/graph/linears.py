"""The Linear layers of a canonical graph: products with a constant weight, grouped by the tensor that they read.

A site is what quantization acts on: one activation, and every Linear that reads it (query, key and value share one). Its
name comes from the weights, so that it survives a new export: "encoder.layer.3.intermediate.dense".
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bertopt.errors import GraphError

HEADS = (
    "classifier",
    "pooler",
    "qa_outputs",
    "pre_classifier",
    "out_proj",
    "sequence_summary",
)  # a row or two of work: left alone
QUERY_KEY_VALUE = ("query", "key", "value", "q_lin", "k_lin", "v_lin", "query_proj", "key_proj", "value_proj")


@dataclass(frozen=True)
class Linear:
    """One product x W with a constant W [inputs, outputs]."""

    node: str
    weight: str  # initializer
    name: str  # of its module
    transposed: bool  # Gemm with transB: W is stored [outputs, inputs]


@dataclass(frozen=True)
class Site:
    """One activation [.., inputs] and the Linears that read it."""

    name: str
    tensor: str
    linears: tuple[Linear, ...]
    producer: str | None = field(default=None)  # the node that computes the tensor

    @property
    def kind(self) -> str:
        """The part of a layer: "qkv", "attention-output", "up" or "down", else the module's own last name."""
        last = self.linears[0].name.rsplit(".", 1)[-1]
        if last in QUERY_KEY_VALUE:
            return "qkv"
        tail = self.linears[0].name
        for pattern, kind in KINDS:
            if re.search(pattern, tail):
                return kind
        return last


# Modules of the families that are served, by what they do
KINDS = (
    (r"attention\.output\.dense$|attention\.out_lin$|attention\.dense$", "attention-output"),
    (r"intermediate\.dense$|ffn\.lin1$|\.ffn$", "up"),
    (r"output\.dense$|ffn\.lin2$|ffn_output$", "down"),
)


def sites(model: onnx.ModelProto) -> list[Site]:
    """Every site of the encoder, in the order of the graph; heads are left out.

    Raises GraphError where there is none: a fused graph, or one whose weights are computed.
    """
    weights = {t.name for t in model.graph.initializer if len(t.dims) == 2}
    producers = {output: node.name for node in model.graph.node for output in node.output}
    found: dict[str, list[Linear]] = defaultdict(list)
    for node in model.graph.node:
        if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in weights:
            continue
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        linear = Linear(node.name, node.input[1], _module(node, node.input[1]), transposed)
        if not any(part in HEADS for part in linear.name.split(".")):
            found[node.input[0]].append(linear)
    if not found:
        raise GraphError("this graph has no Linear layer with a constant weight: quantization starts from the canonical graph")
    return [Site(_shared(linears), tensor, tuple(linears), producers.get(tensor)) for tensor, linears in found.items()]


def weight_of(model: onnx.ModelProto, linear: Linear) -> NDArray[np.float32]:
    """The weight as [inputs, outputs]."""
    tensor = next(t for t in model.graph.initializer if t.name == linear.weight)
    array = numpy_helper.to_array(tensor).astype(np.float32)
    return array.T if linear.transposed else array


def _module(node: onnx.NodeProto, weight: str) -> str:
    """The module's name: from the weight where the exporter kept it, else from the node's path."""
    stem = weight.removesuffix(".weight") if weight.endswith(".weight") else node.name.strip("/").replace("/", ".")
    return re.sub(r"\.(MatMul|Gemm)(_\d+)?$", "", stem)


def _shared(linears: list[Linear]) -> str:
    """A site's name: the Linear's, or what several have in common."""
    if len(linears) == 1:
        return linears[0].name
    common = linears[0].name.rsplit(".", 1)[0]
    return f"{common}.{'+'.join(linear.name.rsplit('.', 1)[-1] for linear in linears)}"
