"""What differs between TensorRT 8.6, 10, 11 and TensorRT for RTX: one row each. Everything else is the same API since 8.5."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from typing import Any

from bertopt.errors import BackendUnavailable

INSTALL = "pip install 'bertopt[cuda]'"


@dataclass(frozen=True)
class Dialect:
    """One generation of the library; names are members of its enums."""

    library: str  # "TensorRT"
    target: str  # key of graph.emit.TARGETS
    network_flags: tuple[str, ...]  # NetworkDefinitionCreationFlag
    half_flags: tuple[str, ...]  # BuilderFlag, where the graph has FP16 tensors
    int8_flags: tuple[str, ...]  # BuilderFlag, where it has Q/DQ pairs
    obey_flags: tuple[str, ...]  # BuilderFlag that makes layer precisions binding; () where types always are
    preview: tuple[str, ...]  # PreviewFeature: several contexts may use one profile
    scratch: str  # how a context gets its scratch memory: "attribute" or "call"
    needs_gpu: bool  # to build
    timing_cache: bool
    module: str = "tensorrt"


TENSORRT_8 = Dialect(
    library="TensorRT",
    target="tensorrt-8",
    network_flags=("EXPLICIT_BATCH",),
    half_flags=("FP16",),
    int8_flags=("INT8",),
    obey_flags=("OBEY_PRECISION_CONSTRAINTS",),
    preview=("PROFILE_SHARING_0806",),
    scratch="attribute",
    needs_gpu=True,
    timing_cache=True,
)
TENSORRT_10 = Dialect(
    library="TensorRT",
    target="tensorrt-10",
    network_flags=("STRONGLY_TYPED",),
    half_flags=(),
    int8_flags=(),
    obey_flags=(),
    preview=(),
    scratch="call",
    needs_gpu=True,
    timing_cache=True,
)
TENSORRT_11 = Dialect(
    library="TensorRT",
    target="tensorrt-11",
    network_flags=(),  # every network is strongly typed, the flag is ignored
    half_flags=(),
    int8_flags=(),
    obey_flags=(),
    preview=(),
    scratch="call",
    needs_gpu=True,
    timing_cache=True,
)
TENSORRT_RTX = Dialect(
    library="TensorRT for RTX",
    target="tensorrt-rtx",
    network_flags=(),
    half_flags=(),
    int8_flags=(),
    obey_flags=(),
    preview=(),
    scratch="call",
    needs_gpu=False,  # kernels are compiled where the plan is loaded
    timing_cache=False,
    module="tensorrt_rtx",
)


def dialect(library: str, version: str) -> Dialect:
    """The row for a library's version. Raises BackendUnavailable for one that is too old."""
    if library == TENSORRT_RTX.library:
        return TENSORRT_RTX
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < (8, 6):
        raise BackendUnavailable(f"TensorRT {version} is too old: 8.6 or newer is needed; {INSTALL}")
    return TENSORRT_8 if major < 10 else TENSORRT_10 if major < 11 else TENSORRT_11


def installed(library: str) -> str | None:
    """The version of "TensorRT", "TensorRT for RTX" or "OpenVINO" that Python would import; None where it is absent.

    Read from package metadata: nothing is imported, so a plan can be refused before any library is loaded.
    """
    module, packages = {
        "TensorRT": ("tensorrt", ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu13-bindings")),
        "TensorRT for RTX": ("tensorrt_rtx", ("tensorrt-rtx-cu13", "tensorrt-rtx-cu12", "tensorrt-rtx")),
        "OpenVINO": ("openvino", ("openvino",)),
    }[library]
    if importlib.util.find_spec(module) is None:
        return None
    for package in packages:
        try:
            return plain_version(importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            continue
    return plain_version(importlib.import_module(module).__version__)  # not from a wheel


def plain_version(version: str) -> str:
    """`8.6.1.post1` and `2026.4.1-22982-e213a147257` without what only packaging or the build added."""
    return version.split("-")[0].split(".post")[0]


def load(row: Dialect) -> Any:
    """The library's module. Raises BackendUnavailable where it, or what it links, is absent."""
    try:
        return importlib.import_module(row.module)
    except ImportError as error:
        raise BackendUnavailable(f"{row.library} cannot be loaded ({error}): {INSTALL}") from None


def flags(enum: Any, names: tuple[str, ...]) -> int:
    """Members of an enum as one bit set."""
    return sum(1 << int(getattr(enum, name)) for name in names)


def context_without_memory(engine: Any, row: Dialect, trt: Any) -> Any:
    """An execution context that is given its scratch memory afterwards, by `give_scratch`."""
    if row.scratch == "attribute":
        return engine.create_execution_context_without_device_memory()
    return engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)


def scratch_bytes(engine: Any, row: Dialect) -> int:
    """What the hungriest profile needs."""
    return int(engine.device_memory_size if row.scratch == "attribute" else engine.device_memory_size_v2)


def give_scratch(context: Any, row: Dialect, address: int, size: int) -> None:
    if row.scratch == "attribute":
        context.device_memory = address
    else:
        context.set_device_memory(address, size)
