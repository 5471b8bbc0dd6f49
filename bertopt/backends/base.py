"""The contract that every back end keeps.

A back end is a module of this package with three functions:

    available(device) -> None | reason          "what is missing", or "what is missing: the command that brings it"
    prepare(workspace, precision) -> Artifact   exports, rewrites or builds what it opens; may be slow, is cached
    open(artifact, options) -> Session          a context manager

A session is asynchronous: `stage` fills its own host memory and starts the copy, `launch` starts the work, and
`Pending.result` is the only wait. Times are read after that wait, so no probe ever waits inside the loop.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from bertopt.batching import Batch


@dataclass(frozen=True)
class Times:
    """Where one batch spent its time. None: this back end has no such step."""

    device_start_s: float  # on the clock of `time.perf_counter`
    device_ms: float
    copy_in_ms: float | None = None
    copy_out_ms: float | None = None
    copy_in_start_s: float | None = None


@dataclass(frozen=True)
class Options:
    """How a session is opened."""

    device: str = "cpu"  # "cpu" or "cuda"
    in_flight: int = 1  # batches that may be staged or running at once
    pinned: bool = False  # page-locked buffers and asynchronous copies; no meaning without a device
    threads: int | None = None  # CPU threads of the computation; None: the cores that this process may use
    pad_id: int = 0


@dataclass(frozen=True)
class Artifact:
    """What a back end opens: a checkpoint, a graph or a plan, and what is known of how it was made."""

    content: Any  # a Checkpoint or a path; the back end that made it knows
    precision: str
    uses_type_ids: bool = True
    info: dict[str, Any] = field(default_factory=dict)  # fused-operator counts and the like, shown in the record
    notes: tuple[str, ...] = ()


class Pending(Protocol):
    """A batch that was launched."""

    def result(self) -> NDArray[np.float32]:
        """Wait, and give the logits on the host: [rows, labels], or [rows, length, labels] for per-token heads."""

    @property
    def times(self) -> Times:
        """Only after `result`."""


class Session(Protocol):
    """One opened model on one device."""

    precision: str  # what really runs, read back from the library: "fp32", "tf32", "bf16", "fp16", "int8", "fp8"
    version: str  # "OpenVINO 2026.4.1, 2 threads"
    layouts: ClassVar[tuple[str, ...]]  # "padded", "packed"

    def stage(self, batch: Batch) -> Any: ...
    def launch(self, staged: Any) -> Pending: ...
    def peak_device_mib(self) -> float | None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Session: ...
    def __exit__(self, *exc: object) -> None: ...


class Backend(Protocol):
    """The three functions of a back end's module."""

    def available(self, device: str) -> str | None: ...
    def prepare(self, workspace: Any, precision: str) -> Artifact: ...
    def open(self, artifact: Artifact, options: Options) -> Session: ...


def backend(name: str) -> Backend:
    """The back end of that name: `bertopt/backends/<name>.py`."""
    return importlib.import_module(f"bertopt.backends.{name}")
