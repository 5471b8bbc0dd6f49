"""PyTorch, eager: what most services start from, and the FP32 reference of everything else."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.backends.base import Artifact, Options, Session
from bertopt.backends.host import Feeds, HostSession


def available(device: str) -> str | None:
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed: pip install 'bertopt[torch]'"
    if device == "cuda" and not torch.cuda.is_available():
        return "PyTorch sees no CUDA device: nvidia-smi tells whether the driver does; --device cpu runs the ladder without one"
    return None


def prepare(workspace: Any, precision: str) -> Artifact:
    return Artifact(workspace.checkpoint, precision, workspace.checkpoint.uses_type_ids)


def open(artifact: Artifact, options: Options) -> Session:
    if options.device == "cuda":
        from bertopt.backends.eager_cuda import CudaEagerSession

        return CudaEagerSession(artifact, options)
    return EagerSession(artifact, options)


class EagerSession(HostSession):
    """FP32 on the CPU."""

    precision = "fp32"

    def __init__(self, artifact: Artifact, options: Options) -> None:
        super().__init__(options, artifact.uses_type_ids)
        import torch

        self._torch = torch
        self._module = artifact.content.torch_module()
        self.version = f"PyTorch {torch.__version__}, {self.threads} threads"

    def start_thread(self) -> None:
        self._torch.set_num_threads(self.threads)  # per thread: OpenMP's setting does not reach others

    def compute(self, feeds: Feeds) -> NDArray[np.float32]:
        with self._torch.inference_mode():
            logits = self._module(**{name: self._torch.from_numpy(array) for name, array in feeds.items()})
        return logits.float().numpy()
