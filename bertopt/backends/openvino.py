"""OpenVINO on the CPU: the newcomer's stand-in for TensorRT, from the same canonical graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.backends.base import Artifact, Options
from bertopt.backends.host import Feeds, HostSession
from bertopt.errors import BackendUnavailable
from bertopt.plan import Plan

HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
PRECISIONS = {"f32": "fp32", "bf16": "bf16", "f16": "fp16"}


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


def prepare(workspace: Any, precision: str) -> Artifact:
    """The canonical graph as it is: OpenVINO does its own fusion when it compiles."""
    if precision == "half":
        found = half_precision()
        if found is None:
            raise BackendUnavailable("this processor computes in neither BF16 nor FP16; the onnx rung is its fastest float")
        precision = found
    if precision == "int8":
        raise BackendUnavailable("INT8 wants calibration and a gate, which this version of bertopt has not yet")
    return Artifact(workspace.canonical(), precision, workspace.checkpoint.uses_type_ids)


def open(artifact: Artifact, options: Options) -> HostSession:
    """A session on a graph, or on a plan that was built from one."""
    if isinstance(artifact.content, Plan):
        from bertopt.backends.openvino_plan import OpenVinoPlanSession

        return OpenVinoPlanSession(artifact.content, options)
    return OpenVinoSession(artifact, options)


class OpenVinoSession(HostSession):
    """One compiled model, one infer request, one stream over all cores: batches are large enough to fill them."""

    def __init__(self, artifact: Artifact, options: Options) -> None:
        super().__init__(options, artifact.uses_type_ids)
        import openvino as ov

        hint = HINTS.get(artifact.precision, "bf16" if half_precision() == "bf16" else "f32")
        self._model = ov.Core().compile_model(
            artifact.content,
            "CPU",
            # FP32 means FP32: without the hint OpenVINO computes in BF16 wherever the processor can.
            {"INFERENCE_PRECISION_HINT": hint, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": self.threads},
        )
        self._request = self._model.create_infer_request()
        ran = PRECISIONS[self._model.get_property("INFERENCE_PRECISION_HINT").get_type_name()]
        self.precision = artifact.precision if artifact.precision == "int8" else ran
        used = self._model.get_property("INFERENCE_NUM_THREADS")
        self.version = f"OpenVINO {ov.__version__.split('-')[0]}, {used} threads"

    def compute(self, feeds: Feeds) -> NDArray[np.float32]:
        self._request.infer(feeds, share_inputs=True)
        return np.array(self._request.get_output_tensor(0).data, dtype=np.float32)  # a copy: the tensor is reused
