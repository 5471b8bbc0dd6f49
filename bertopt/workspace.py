"""A checkpoint's graphs, each made once and kept in the cache under the checkpoint's fingerprint.

`BERTOPT_CACHE` names the cache; by default it lies in the user's cache folder.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.errors import BackendUnavailable, GraphError, UsageError
from bertopt.files import replacing, write_text
from bertopt.model import Checkpoint
from bertopt.text import Requests


def cache_folder(*parts: str) -> Path:
    """A folder of the cache that can be written; one under the temporary folder where the cache cannot."""
    root = os.environ.get("BERTOPT_CACHE")
    home = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "bertopt"
    folder = home.joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    folder = Path(tempfile.gettempdir(), f"bertopt-{os.getuid()}", *parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Workspace:
    """What back ends prepare from: the checkpoint, its canonical graph, and the rewrites of it."""

    def __init__(self, checkpoint: Checkpoint, *, canonical: Path | None = None, device: str = "cpu") -> None:
        self.checkpoint = checkpoint
        self.device = device
        self._canonical = canonical
        self.texts: list[str] = []  # representative requests, for rewrites that observe ranges
        self.calibration_texts: Requests | None = None  # what INT8 is calibrated with; None: `texts`
        self.bucket_edges: tuple[int, ...] = ()
        self.batch_size = 32

    @property
    def folder(self) -> Path:
        return cache_folder("graphs", self.checkpoint.fingerprint)

    def canonical(self) -> Path:
        """The canonical FP32 graph: the one that was given, or exported and checked on first use, which needs torch.

        Raises GraphError where the export fails or loses parity, or the given one is absent; BackendUnavailable without torch.
        """
        if self._canonical is None:
            try:
                import torch
                import transformers
            except ImportError as error:
                raise BackendUnavailable(f"exporting the graph wants {error.name}: pip install 'bertopt[torch]'") from None

            from bertopt.graph.export import export

            path = self.folder / f"canonical-torch{torch.__version__}-transformers{transformers.__version__}.onnx"
            if not path.exists():
                export(self.checkpoint.torch_module(attention="eager"), self.checkpoint, path)
            self._canonical = path
        if not self._canonical.exists():
            raise GraphError(f"there is no graph {self._canonical}")
        return self._canonical

    def fused(self, *, half: bool = False) -> tuple[Path, dict[str, Any]]:
        """The canonical graph with ONNX Runtime's fused operators, and how many of each were made.

        On a GPU attention reads the mask as a length, for which it has its fast kernels: batches are padded on the right.
        Raises GraphError where fusion is incomplete: the rung would print a figure that it did not earn.
        """
        import onnxruntime

        from bertopt.graph.fuse import fuse

        source = self.canonical()
        mask = "length" if self.device == "cuda" else "raw"
        name = f"{source.stem}-fused{'-fp16' if half else ''}-{mask}-ort{onnxruntime.__version__}"
        path, counts = source.with_name(name + ".onnx"), source.with_name(name + ".json")
        if not (path.exists() and counts.exists()):
            fusion = fuse(source, path, self.checkpoint, half=half, mask=mask)
            write_text(counts, json.dumps(fusion.counts))
        return path, json.loads(counts.read_text())


def save_arrays(path: Path, **arrays: Any) -> None:
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)


def load_array(path: Path, name: str) -> NDArray[np.float32]:
    """One of the arrays that `save_arrays` wrote. Raises UsageError where it cannot be read."""
    try:
        with np.load(path) as stored:
            return np.asarray(stored[name])
    except FileNotFoundError:
        raise UsageError(f"{path.parent} is no whole run: there is no {path.name} in it") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
