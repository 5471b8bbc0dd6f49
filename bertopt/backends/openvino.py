"""OpenVINO on the CPU: the newcomer's stand-in for TensorRT, from the same canonical graph."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.backends.base import Artifact, Options
from bertopt.backends.host import Feeds, HostSession, Lengths
from bertopt.environment import cpu_features
from bertopt.errors import BackendUnavailable, GraphError
from bertopt.plan import Plan

HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
LEAST_SHARE = 0.9  # of the products that were placed in INT8 and must run so
STREAMS = 4  # at most; each holds the activations of its rows
PRECISIONS = {"f32": "fp32", "bf16": "bf16", "f16": "fp16"}
TILE = 16  # OpenVINO computes attention of 64 tokens faster than that of 56 (benchmarks/results/int8-methods.md)
PER_TOKEN = ("token_classification", "question_answering")  # whose logits have the length that was computed


def available(device: str) -> str | None:
    if device != "cpu":
        return "OpenVINO runs on the CPU here; on a GPU the same rung is a TensorRT plan"
    try:
        import openvino  # noqa: F401
    except ImportError:
        return "OpenVINO is not installed: pip install 'bertopt[cpu]'"
    return None


def half_precision() -> str | None:
    """The lowered float precision that this processor computes in ("bf16", "fp16"); None where it has neither."""
    import openvino as ov

    capabilities = ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return next((low for low, name in (("bf16", "BF16"), ("fp16", "FP16")) if name in capabilities), None)


def around_int8() -> str:
    """The float precision that runs between quantized layers."""
    return "bf16" if half_precision() == "bf16" else "fp32"


def prepare(workspace: Any, precision: str) -> Artifact:
    """The canonical graph as it is: OpenVINO does its own fusion when it compiles."""
    if precision == "half":
        found = half_precision()
        if found is None:
            raise BackendUnavailable("this processor computes in neither BF16 nor FP16; the onnx rung is its fastest float")
        precision = found
    if precision == "int8":
        return _int8(workspace)
    return Artifact(workspace.canonical(), precision, workspace.checkpoint.uses_type_ids, *_aligned(workspace, precision))


def _aligned(workspace: Any, precision: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What an artifact says of the lengths that its sessions compute, and a note on it."""
    checkpoint = workspace.checkpoint
    lengths = lengths_for(precision, checkpoint.task, checkpoint.max_positions)
    if lengths.multiple == 1:
        return {}, ()
    info = {"length_multiple": lengths.multiple, "longest_computed": lengths.longest}
    return info, (f"lengths are computed in multiples of {TILE}, which AMX is faster at than at those in between",)


def on_tiles(precision: str) -> bool:
    """Whether attention runs on AMX's tiles: in BF16, which is around INT8 too, where the processor has them."""
    around = around_int8() if precision == "int8" else precision
    return around == "bf16" and "amx_bf16" in cpu_features()


def lengths_for(precision: str, task: str | None, longest: int) -> Lengths:
    """The lengths that suit this processor; those of the batches where logits are told by token, or nobody knows the task."""
    return Lengths(TILE, longest) if task and task not in PER_TOKEN and on_tiles(precision) else Lengths()


def properties(precision: str) -> dict[str, Any]:
    """What OpenVINO is told. FP32 means FP32: without the hint it computes in BF16 wherever the processor can."""
    return {"INFERENCE_PRECISION_HINT": HINTS[around_int8() if precision == "int8" else precision]}


def _int8(workspace: Any) -> Artifact:
    """The Q/DQ graph of the workspace's calibration, kept under the hash of everything that went into it."""
    from bertopt.calibration import of_workspace
    from bertopt.graph.emit import Int8, describe, emit
    from bertopt.graph.quantize import levels_for

    calibration, notes = of_workspace(workspace)
    path = workspace.folder / f"int8-openvino-{calibration.sha256[:16]}-{levels_for(cpu_features())}.onnx"
    if not path.exists():
        emit(workspace.canonical(), path, "openvino", precision="int8", int8=Int8(calibration, attention=calibration.attention))
    placement = describe(path).placement
    assert placement is not None
    info, said = _aligned(workspace, "int8")
    info |= placement.info(calibration.sha256)
    return Artifact(path, "int8", workspace.checkpoint.uses_type_ids, info, (*notes, *placement.lines(), *said))


def int8_layers(compiled: Any) -> int:
    """Products of a compiled model that run in INT8, read back from what OpenVINO will execute."""
    ran = [layer.get_rt_info() for layer in compiled.get_runtime_model().get_ordered_ops()]
    return sum(
        layer["layerType"].value in ("FullyConnected", "MatMul") and layer["runtimePrecision"].value in ("i8", "u8")
        for layer in ran
    )


def check_int8(compiled: Any, wanted: int) -> int:
    """The number of products in INT8. Raises GraphError where they are fewer than LEAST_SHARE of those `wanted`, or none."""
    ran = int8_layers(compiled)
    if ran < max(1.0, LEAST_SHARE * wanted):
        raise GraphError(f"INT8 was asked for and not applied: OpenVINO runs {ran} of {wanted} products in INT8")
    return ran


def open(artifact: Artifact, options: Options) -> HostSession:
    """A session on a graph, or on a plan that was built from one."""
    if isinstance(artifact.content, Plan):
        from bertopt.backends.openvino_plan import OpenVinoPlanSession

        return OpenVinoPlanSession(artifact.content, options)
    return OpenVinoSession(artifact, options)


class OpenVinoSession(HostSession):
    """One compiled model on a few streams, which share its weights; each of them computes a part of a batch's rows.

    Two streams of a core each are a fifth faster than one stream of two cores (benchmarks/results/streams-cpu.md).
    """

    def __init__(self, artifact: Artifact, options: Options) -> None:
        info = artifact.info
        lengths = Lengths(info.get("length_multiple", 1), info.get("longest_computed", 0))
        super().__init__(options, artifact.uses_type_ids, most_streams=STREAMS, lengths=lengths)
        import openvino as ov

        settings = {**properties(artifact.precision if artifact.precision in HINTS else "int8"), **on_streams(self)}
        self._model = ov.Core().compile_model(artifact.content, "CPU", settings)
        self._requests = threading.local()
        ran = PRECISIONS[self._model.get_property("INFERENCE_PRECISION_HINT").get_type_name()]
        self.precision = ran
        if artifact.precision == "int8":
            wanted = artifact.info.get("int8_linears", 1)
            artifact.info["int8_in_effect"] = f"{check_int8(self._model, wanted)} of {artifact.info.get('linears', wanted)}"
            self.precision = "int8"
        self.version = f"OpenVINO {ov.__version__.split('-')[0]}, {self.described_threads()}"

    def compute(self, feeds: Feeds) -> NDArray[np.float32]:
        return infer(self._model, self._requests, feeds)


def on_streams(session: HostSession) -> dict[str, Any]:
    """Properties that give a model the session's streams and threads."""
    return {"NUM_STREAMS": session.streams, "INFERENCE_NUM_THREADS": session.threads}


def infer(model: Any, requests: threading.local, feeds: Feeds) -> NDArray[np.float32]:
    """Logits by the calling thread's own request."""
    if not hasattr(requests, "own"):
        requests.own = model.create_infer_request()
    requests.own.infer(feeds, share_inputs=True)
    return np.array(requests.own.get_output_tensor(0).data, dtype=np.float32)  # a copy: the tensor is reused
