"""The few calls of the CUDA driver that pycuda lacks, through ctypes: which card this is, and captured graphs.

The driver's library is there wherever a card works, so this needs no package. `device` creates no context.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may go on allocating
STREAM, EXECUTABLE, GRAPH = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p


class DriverError(RuntimeError):
    """A driver call failed."""


@dataclass(frozen=True)
class Device:
    """A CUDA device."""

    name: str  # "NVIDIA H200"
    compute_capability: str  # "9.0"


@lru_cache(maxsize=1)
def _library() -> Any:
    """libcuda, initialized; None where there is no driver or no device."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int()
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return None
    return library


@lru_cache(maxsize=1)
def device() -> Device | None:
    """The first visible device; None where there is none."""
    library = _library()
    if library is None:
        return None
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    _check("cuDeviceGet", ctypes.byref(handle), 0)
    _check("cuDeviceGetName", name, len(name), handle)
    numbers = []
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        _check("cuDeviceGetAttribute", ctypes.byref(value), attribute, handle)
        numbers.append(str(value.value))
    return Device(name.value.decode(), ".".join(numbers))


def begin_capture(stream: int) -> None:
    """From now on work on this stream (a CUstream handle) is recorded instead of run."""
    _check("cuStreamBeginCapture_v2", STREAM(stream), THREAD_LOCAL)


def end_capture(stream: int) -> CapturedGraph:
    """What was recorded, ready to be launched. Raises DriverError when the capture was broken by what ran in it."""
    graph, executable = GRAPH(), EXECUTABLE()
    _check("cuStreamEndCapture", STREAM(stream), ctypes.byref(graph))
    if not graph:
        raise DriverError("cuStreamEndCapture gave no graph")
    try:
        _check("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    finally:
        _check("cuGraphDestroy", graph)
    return CapturedGraph(executable)


class CapturedGraph:
    """An executable graph; `close` before the memory and the stream that it names go."""

    def __init__(self, executable: ctypes.c_void_p) -> None:
        self._executable = executable

    def launch(self, stream: int) -> None:
        _check("cuGraphLaunch", self._executable, STREAM(stream))

    def close(self) -> None:
        _check("cuGraphExecDestroy", self._executable)


def _check(call: str, *arguments: Any) -> None:
    status = getattr(_library(), call)(*arguments)
    if status:
        text = ctypes.c_char_p()
        _library().cuGetErrorName(status, ctypes.byref(text))
        raise DriverError(f"{call}: {(text.value or b'error %d' % status).decode()}")
