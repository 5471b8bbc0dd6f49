"""ONNX Runtime's CUDA provider on torch's stream, with inputs and outputs bound to device memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from bertopt.backends.base import Artifact, Options
from bertopt.backends.cuda import CudaSession


class CudaOnnxSession(CudaSession):
    def __init__(self, artifact: Artifact, options: Options) -> None:
        super().__init__(options, artifact.uses_type_ids)  # imports torch first: it brings the CUDA libraries
        import onnxruntime as ort

        settings = ort.SessionOptions()
        settings.log_severity_level = 3
        provider = {
            "user_compute_stream": str(self.stream.cuda_stream),
            "use_tf32": "1" if artifact.precision == "tf32" else "0",  # FP32 means FP32
        }
        self._session = ort.InferenceSession(
            str(artifact.content), settings, providers=[("CUDAExecutionProvider", provider), "CPUExecutionProvider"]
        )
        self._asynchronous = ort.RunOptions()
        self._asynchronous.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._output = self._session.get_outputs()[0]
        self.precision = artifact.precision
        self.version = f"ONNX Runtime {ort.__version__}, CUDA {self.torch.version.cuda}"

    def run(self, inputs: dict[str, Any]) -> Any:
        rows, length = inputs["input_ids"].shape
        names = {"batch": rows, "seq": length}
        shape = [names[d] if isinstance(d, str) else d for d in self._output.shape]
        logits = self.torch.empty(shape, dtype=self.torch.float32, device="cuda")
        binding = self._session.io_binding()
        for name, tensor in inputs.items():
            binding.bind_input(name, "cuda", 0, np.int64, tuple(tensor.shape), tensor.data_ptr())
        binding.bind_output(self._output.name, "cuda", 0, np.float32, tuple(shape), logits.data_ptr())
        self._session.run_with_iobinding(binding, self._asynchronous)
        return logits
