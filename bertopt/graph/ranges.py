"""The largest magnitude that each float tensor of a graph reaches on real inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from bertopt.errors import GraphError

Feeds = Mapping[str, NDArray[Any]]


def observe_ranges(model: onnx.ModelProto, feeds: Iterable[Feeds]) -> dict[str, float]:
    """The absolute maximum of every FP32 tensor that a node computes, over all `feeds` (input name -> array).

    Each tensor is reduced to one number inside the graph, so what comes out does not grow with the batch, and batches
    stream by one at a time. Uses ONNX Runtime where it is installed, else the ONNX reference evaluator, which is slow.
    Raises GraphError when there is no batch, or when a value is NaN or infinite already in FP32.
    """
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    names = float_outputs(probed)
    for index, name in enumerate(names):
        probed.graph.node.append(helper.make_node("Abs", [name], [f"abs_{index}"], name=f"abs_{index}"))
        probed.graph.node.append(
            helper.make_node("ReduceMax", [f"abs_{index}"], [f"absmax_{index}"], name=f"absmax_{index}", keepdims=0)
        )
        probed.graph.output.append(helper.make_tensor_value_info(f"absmax_{index}", TensorProto.FLOAT, []))
    run = runner(probed, [f"absmax_{index}" for index in range(len(names))])
    highest: NDArray[np.float64] | None = None
    for feed in feeds:
        seen = np.asarray(run(feed), dtype=np.float64)
        highest = seen if highest is None else np.maximum(highest, seen)  # np.maximum hands NaN on
    if highest is None:
        raise GraphError("ranges need at least one batch of texts, and none was given")
    ranges = dict(zip(names, highest.tolist(), strict=True))
    broken = next((name for name, value in ranges.items() if not math.isfinite(value)), None)
    if broken is not None:
        raise GraphError(f"{broken} is not finite already in FP32: {ranges[broken]}")
    return ranges


def float_outputs(model: onnx.ModelProto) -> list[str]:
    """The FP32 tensors that nodes compute (constants are not among them)."""
    types = tensor_types(model)
    return [
        name
        for node in model.graph.node
        for name in node.output
        if node.op_type != "Constant" and types.get(name) == TensorProto.FLOAT
    ]


def tensor_types(model: onnx.ModelProto) -> dict[str, int]:
    """Element type of every tensor, by shape inference. Raises GraphError where an operator cannot be inferred."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    except onnx.shape_inference.InferenceError as error:
        raise GraphError(f"the types of this graph cannot be inferred: {error}") from None
    types = {v.name: v.type.tensor_type.elem_type for v in (*inferred.value_info, *inferred.input, *inferred.output)}
    types.update((tensor.name, tensor.data_type) for tensor in model.graph.initializer)
    return types


def runner(model: onnx.ModelProto, outputs: list[str]) -> Callable[[Feeds], Any]:
    """A function from feeds to the arrays of these `outputs`, in their order."""
    try:
        import onnxruntime as ort
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(model)
        return lambda feed: evaluator.run(outputs, dict(feed))
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(outputs, dict(feed))
