"""Where a run was made: what another reader needs to judge its figures by."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from bertopt.measure.cores import why_cores

LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "openvino",
    "tensorrt",
    "pycuda",
    "numpy",
)
CPU_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8")


def environment(device: str) -> dict[str, Any]:
    """Processor, cores, card, operating system and the versions of the libraries that matter; plain JSON."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_model(),
        "cpu_features": cpu_features(),
        "cores": why_cores(),
        "libraries": {name: version for name in LIBRARIES if (version := _version(name))},
    }
    if threads := os.environ.get("OMP_NUM_THREADS"):
        facts["OMP_NUM_THREADS"] = threads
    if device == "cuda":
        facts |= _card()
    return facts


def cpu_features() -> list[str]:
    """Of CPU_FEATURES, those that this processor has; empty where the system does not say."""
    flags = set(_cpuinfo("flags").split())
    return [feature for feature in CPU_FEATURES if feature in flags]


def _cpu_model() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpuinfo(field: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _card() -> dict[str, Any]:
    try:
        import pynvml
    except ImportError:
        return {"gpu": "not read: nvidia-ml-py is not installed"}
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        return {
            "gpu": pynvml.nvmlDeviceGetName(handle),
            "compute_capability": f"{major}.{minor}",
            "driver": pynvml.nvmlSystemGetDriverVersion(),
        }
    except pynvml.NVMLError as error:
        return {"gpu": f"not read: {error}"}


def has_cuda() -> bool:
    """Whether a CUDA driver and a card are there, asked of the driver library: no torch, no context."""
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
