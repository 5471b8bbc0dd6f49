"""The two products of attention, softmax(Q Kᵀ / √d + mask) V, as `encoder._plain_attention` is traced."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import onnx

from bertopt.errors import GraphError
from bertopt.graph.linears import Site, module_path

ROLES = ("query", "key", "probabilities", "value")


@dataclass(frozen=True)
class Product:
    """One layer's products. Tensors are [batch, heads, length, d], the key [batch, heads, d, length]."""

    name: str  # "bert.encoder.layer.3.attention.self"
    scores: str  # the node that computes Q Kᵀ
    context: str  # the node that computes probabilities x V
    tensors: dict[str, str]  # role -> tensor; "probabilities" are [batch, heads, length, length]

    def range_name(self, role: str) -> str:
        """Of its entry in a calibration."""
        return f"{self.name}.{role}.product"


@dataclass(frozen=True)
class Values:
    """Where the values of an attention come from: nodes by name, linear in what they lead to."""

    context: str  # probabilities x V
    projection: str  # x W
    addition: str  # + b


def products(model: onnx.ModelProto) -> list[Product]:
    """Every layer's products, in the order of the graph.

    Raises GraphError where there is none in this form, as in DeBERTa, whose scores are sums of several products.
    """
    producer = _producers(model)
    found = []
    for context in model.graph.node:
        softmax = producer.get(context.input[0]) if context.op_type == "MatMul" else None
        if softmax is None or softmax.op_type != "Softmax":
            continue
        scores = producer.get(softmax.input[0])
        while scores is not None and scores.op_type in ("Add", "Div"):  # the mask's sum, then 1 / √d
            scores = producer.get(scores.input[0])
        if scores is None or scores.op_type != "MatMul":
            continue
        tensors = dict(zip(ROLES, (*scores.input, *context.input), strict=True))
        found.append(Product(module_path(context).rpartition(".")[0], scores.name, context.name, tensors))
    if not found:
        raise GraphError("this graph has no attention of the plain form softmax(Q K / d + mask) V: its products stay in float")
    return found


def values_behind(model: onnx.ModelProto, site: Site) -> Values | None:
    """The value projection whose output reaches the site through reshapes and the product with probabilities, and nothing else.

    None where there is no such path: then a division of the site's channels cannot move there.
    """
    producer, constants = _producers(model), {t.name for t in model.graph.initializer}
    readers = Counter(name for node in model.graph.node for name in node.input)
    if readers[site.tensor] != len(site.linears):
        return None
    context = None
    node = producer.get(site.tensor)
    while node is not None and (node.output[0] == site.tensor or readers[node.output[0]] == 1):
        if node.op_type in ("Reshape", "Transpose"):
            node = producer.get(node.input[0])
        elif node.op_type == "MatMul" and context is None:
            context, node = node.name, producer.get(node.input[1])
        elif node.op_type == "Add" and context is not None and len(constants.intersection(node.input)) == 1:
            projection = producer.get(next(name for name in node.input if name not in constants))
            if projection is None or projection.op_type != "MatMul" or projection.input[1] not in constants:
                return None
            return Values(context, projection.name, node.name) if readers[projection.output[0]] == 1 else None
        else:
            return None
    return None


def _producers(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {output: node for node in model.graph.node for output in node.output}
