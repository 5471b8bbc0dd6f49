"""PyTorch, eager, on CUDA."""

from __future__ import annotations

from typing import Any

from bertopt.backends.base import Artifact, Options
from bertopt.backends.cuda import CudaSession


class CudaEagerSession(CudaSession):
    """FP32 with TF32 off unless the artifact says "tf32"; "fp16" halves the module."""

    def __init__(self, artifact: Artifact, options: Options) -> None:
        super().__init__(options, artifact.uses_type_ids)
        self._module = artifact.content.torch_module().cuda()
        if artifact.precision == "fp16":
            self._module.half()
        self.precision = artifact.precision
        self.version = f"PyTorch {self.torch.__version__}, CUDA {self.torch.version.cuda}"

    def run(self, inputs: Any) -> Any:
        # A process-wide switch, so it is set where it is needed: other sessions of this run may want the other.
        self.torch.set_float32_matmul_precision("high" if self.precision == "tf32" else "highest")
        return self._module(**dict(zip(self.names, inputs.unbind(0), strict=True))).float()
