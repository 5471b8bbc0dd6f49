"""ONNX Runtime: the fused graph on the CPU, or on CUDA with inputs and outputs bound to device memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.backends.base import Artifact, Options, Session
from bertopt.backends.host import Feeds, HostSession


def available(device: str) -> str | None:
    extra = "cuda" if device == "cuda" else "cpu"
    try:
        import onnxruntime
    except ImportError:
        return f"ONNX Runtime is not installed: pip install 'bertopt[{extra}]'"
    if device == "cuda" and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return "this ONNX Runtime has no CUDA provider: pip uninstall onnxruntime && pip install 'bertopt[cuda]'"
    return None


def prepare(workspace: Any, precision: str) -> Artifact:
    """The canonical graph, fused for ONNX Runtime; fails when nothing was fused."""
    half = precision in ("half", "fp16")
    path, fusion = workspace.fused(half=half)
    return Artifact(path, "fp16" if half else "fp32", workspace.checkpoint.uses_type_ids, info=fusion)


def open(artifact: Artifact, options: Options) -> Session:
    if options.device == "cuda":
        from bertopt.backends.onnxruntime_cuda import CudaOnnxSession

        return CudaOnnxSession(artifact, options)
    return OnnxSession(artifact, options)


class OnnxSession(HostSession):
    def __init__(self, artifact: Artifact, options: Options) -> None:
        super().__init__(options, artifact.uses_type_ids)
        import onnxruntime as ort

        settings = ort.SessionOptions()
        settings.intra_op_num_threads = self.threads
        settings.log_severity_level = 3
        self._session = ort.InferenceSession(str(artifact.content), settings, providers=["CPUExecutionProvider"])
        self.precision = artifact.precision
        self.version = f"ONNX Runtime {ort.__version__}, {self.threads} threads"

    def compute(self, feeds: Feeds) -> NDArray[np.float32]:
        return self._session.run(None, feeds)[0]
