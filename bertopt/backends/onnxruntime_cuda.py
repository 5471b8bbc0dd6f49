"""ONNX Runtime's CUDA provider on torch's stream: inputs and outputs bound to device memory, shapes captured as CUDA graphs.

Launching a fused BERT's 90 kernels takes longer than computing them in FP16. A shape that comes again is therefore
captured, by ONNX Runtime itself, and replayed with one launch from memory of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertopt.backends.base import Artifact, Options
from bertopt.backends.cuda import CudaSession

MOST_GRAPHS = 64  # captured; ONNX Runtime cannot let go of one, and bucket edges are at most 24
CAPTURE_AT = 2  # the sighting at which a shape is captured: what comes once is not worth it
NOT_CAPTURED = -1  # ONNX Runtime's number for a run that it should neither capture nor replay


@dataclass
class Bound:
    """A shape's own memory, and how it is run. A captured graph reads and writes at the addresses that it was captured with."""

    inputs: Any  # int64 [names, rows, length] on the device
    logits: Any
    binding: Any
    options: Any


class CudaOnnxSession(CudaSession):
    def __init__(self, artifact: Artifact, options: Options) -> None:
        super().__init__(options, artifact.uses_type_ids)  # imports torch first: it brings the CUDA libraries
        import onnxruntime

        self._ort = onnxruntime
        self.precision = artifact.precision
        self._captures, graphs = True, "CUDA graphs"
        try:
            self._session = self._open(artifact, graphs=True)
        except Exception as error:  # ONNX Runtime raises its own kinds: a node that it would run on the CPU forbids capturing
            self._session = self._open(artifact, graphs=False)
            self._captures, graphs = False, f"no CUDA graphs ({str(error).splitlines()[0]})"
        self.version = f"ONNX Runtime {onnxruntime.__version__}, CUDA {self.torch.version.cuda}, {graphs}"
        self._output = self._session.get_outputs()[0]
        self._seen: Counter[tuple[int, int]] = Counter()
        self._captured: dict[tuple[int, int], Bound] = {}

    def run(self, inputs: Any) -> Any:
        """Logits; of a captured shape a copy, since the next batch may be computed before they are on the host."""
        shape = tuple(inputs.shape[1:])
        captured = self._captured.get(shape) or self._to_capture(shape, inputs)
        if captured is None:
            bound = self._bind(inputs, NOT_CAPTURED)
            self._session.run_with_iobinding(bound.binding, bound.options)
            return bound.logits
        captured.inputs.copy_(inputs)
        self._session.run_with_iobinding(captured.binding, captured.options)
        return captured.logits.clone()

    def _to_capture(self, shape: tuple[int, int], inputs: Any) -> Bound | None:
        """What the first run of a graph of this shape is bound to, where it is time for one."""
        self._seen[shape] += 1
        if self._seen[shape] < CAPTURE_AT or not self._captures or len(self._captured) >= MOST_GRAPHS:
            return None
        self._captured[shape] = self._bind(self.torch.empty_like(inputs), len(self._captured) + 1)
        return self._captured[shape]

    def _bind(self, inputs: Any, graph: int) -> Bound:
        _, rows, length = inputs.shape
        sizes = {"batch": rows, "seq": length}
        shape = [sizes[d] if isinstance(d, str) else d for d in self._output.shape]
        logits = self.torch.empty(shape, dtype=self.torch.float32, device="cuda")
        binding = self._session.io_binding()
        for name, tensor in zip(self.names, inputs.unbind(0), strict=True):
            binding.bind_input(name, "cuda", 0, np.int64, (rows, length), tensor.data_ptr())
        binding.bind_output(self._output.name, "cuda", 0, np.float32, tuple(shape), logits.data_ptr())
        options = self._ort.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        options.add_run_config_entry("gpu_graph_id", str(graph))
        return Bound(inputs, logits, binding, options)

    def _open(self, artifact: Artifact, *, graphs: bool) -> Any:
        settings = self._ort.SessionOptions()
        settings.log_severity_level = 3
        provider = {
            "user_compute_stream": str(self.stream.cuda_stream),
            "use_tf32": "1" if artifact.precision == "tf32" else "0",  # FP32 means FP32
            "enable_cuda_graph": "1" if graphs else "0",
        }
        return self._ort.InferenceSession(
            str(artifact.content), settings, providers=[("CUDAExecutionProvider", provider), "CPUExecutionProvider"]
        )
