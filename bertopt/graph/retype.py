"""The mechanics of a graph in two float types: constants in both, and Casts where a tensor crosses over."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bertopt.errors import GraphError

NUMPY: dict[int, type[np.floating]] = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}
SUFFIX: dict[int, str] = {TensorProto.FLOAT: "_fp32", TensorProto.FLOAT16: "_fp16"}


def plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose constants are all initializers and whose nodes all have a name of their own.

    Raises GraphError for what no other back end can take or what cannot be rewritten: operators fused for ONNX Runtime, control
    flow, tensors in FP16 or FP64 already.
    """
    graph = onnx.ModelProto()
    graph.CopyFrom(model)
    foreign = next((n for n in graph.graph.node if n.domain not in ("", "ai.onnx")), None)
    if foreign is not None:
        raise GraphError(f"{foreign.op_type} is an operator of {foreign.domain}, not of ONNX: start from the canonical graph")
    if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for n in graph.graph.node for a in n.attribute):
        raise GraphError("the graph has control flow (If, Loop or Scan), which is not rewritten: export without it")
    typed = next((t for t in graph.graph.initializer if t.data_type in (TensorProto.FLOAT16, TensorProto.DOUBLE)), None)
    if typed is not None:
        raise GraphError(f"{typed.name} is {TensorProto.DataType.Name(typed.data_type)}: start from the FP32 graph")
    _constants_to_initializers(graph.graph)
    seen: set[str] = set()
    for index, node in enumerate(graph.graph.node):
        if not node.name or node.name in seen:
            node.name = f"{node.name or node.op_type}_{index}"
        seen.add(node.name)
    return graph


def _constants_to_initializers(graph: onnx.GraphProto) -> None:
    """Constant nodes, and Identity nodes on a constant (weights that the exporter found to be equal)."""
    constants = {tensor.name for tensor in graph.initializer}
    alias: dict[str, str] = {}
    kept = []
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None) if node.op_type == "Constant" else None
        if value is not None:
            tensor = graph.initializer.add()
            tensor.CopyFrom(value)
            tensor.name = node.output[0]
            constants.add(tensor.name)
        elif node.op_type == "Identity" and alias.get(node.input[0], node.input[0]) in constants:
            alias[node.output[0]] = alias.get(node.input[0], node.input[0])
        else:
            kept.append(node)
    for node in kept:
        for position, name in enumerate(node.input):
            node.input[position] = alias.get(name, name)
    del graph.node[:]
    graph.node.extend(kept)


def constants(graph: onnx.GraphProto) -> dict[str, NDArray]:
    """Every FP32 constant by name."""
    return {t.name: numpy_helper.to_array(t) for t in graph.initializer if t.data_type == TensorProto.FLOAT}


def retype(model: onnx.ModelProto, full: Set[str], types: dict[str, int]) -> int:
    """Turn every float tensor that no node of `full` (names) computes into FP16, in place; give the number of Casts added.

    `types` are the element types of the FP32 graph's tensors. Graph outputs stay FP32 under their names.
    """
    return _Retyping(model.graph, full, types).run()


class _Retyping:
    def __init__(self, graph: onnx.GraphProto, full: Set[str], types: dict[str, int]) -> None:
        self.graph, self.full, self.types = graph, full, types
        self.constants = constants(graph)
        self.now: dict[str, int] = {v.name: TensorProto.FLOAT for v in graph.input if types[v.name] == TensorProto.FLOAT}
        self.nodes: list[onnx.NodeProto] = []
        self.made: set[str] = set()  # constants and casts in a second type
        self.casts = 0

    def run(self) -> int:
        outputs = {v.name for v in self.graph.output}
        for node in list(self.graph.node):
            wanted = TensorProto.FLOAT if node.name in self.full else TensorProto.FLOAT16
            self._read(node, wanted)
            self.nodes.append(node)
            self._write(node, wanted, outputs)
        used = {name for node in self.nodes for name in node.input}
        kept = [tensor for tensor in self.graph.initializer if tensor.name in used]
        del self.graph.node[:], self.graph.initializer[:], self.graph.value_info[:]
        self.graph.node.extend(self.nodes)
        self.graph.initializer.extend(kept)
        return self.casts

    def _read(self, node: onnx.NodeProto, wanted: int) -> None:
        if node.op_type == "Cast":
            return  # takes whichever type comes
        for position, name in enumerate(node.input):
            if name in self.constants:
                node.input[position] = self._constant(name, wanted)
            elif name in self.now and self.now[name] != wanted:
                node.input[position] = self._cast(name, wanted)

    def _write(self, node: onnx.NodeProto, wanted: int, outputs: Set[str]) -> None:
        floats = [p for p, name in enumerate(node.output) if name and self.types.get(name) == TensorProto.FLOAT]
        if not floats:
            return
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to":
                attribute.i = wanted
            elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT:
                value = numpy_helper.to_array(attribute.t).astype(NUMPY[wanted])  # ConstantOfShape
                attribute.t.CopyFrom(numpy_helper.from_array(value))
        for position in floats:
            name = node.output[position]
            if name in outputs and wanted == TensorProto.FLOAT16:
                node.output[position] = name + SUFFIX[wanted]
                self.nodes.append(
                    helper.make_node("Cast", [node.output[position]], [name], name=f"{name}_out", to=TensorProto.FLOAT)
                )
                self.casts += 1
                self.now[name] = TensorProto.FLOAT
            else:
                self.now[name] = wanted

    def _constant(self, name: str, wanted: int) -> str:
        if wanted == TensorProto.FLOAT:
            return name
        if name not in self.made:
            self.made.add(name)
            self.graph.initializer.append(
                numpy_helper.from_array(self.constants[name].astype(np.float16), name + SUFFIX[wanted])
            )
        return name + SUFFIX[wanted]

    def _cast(self, name: str, wanted: int) -> str:
        target = name + SUFFIX[wanted]
        if target not in self.made:
            self.made.add(target)
            self.nodes.append(helper.make_node("Cast", [name], [target], name=target, to=wanted))
            self.casts += 1
        return target
