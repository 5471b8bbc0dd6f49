"""What NVML knows of one window: SM and tensor activity (GPM counters), and what nvidia-smi would show beside them.

GPM counters (Hopper and newer) are read twice, before and after, and cost nothing in between. nvidia-smi's figure has to be
polled; a thread does that, and how much of the window it spent is kept.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

POLL_SECONDS = 0.1
# NVML_GPM_METRIC_SM_UTIL and NVML_GPM_METRIC_ANY_TENSOR_UTIL, percent
GPM_METRICS = {"sm_active": 2, "tensor_active": 5}


class GpuProbe:
    """Utilization of CUDA device 0 between entering and leaving, as fractions; None, with a reason, where not to be had."""

    sm_active: float | None = None
    tensor_active: float | None = None
    nvidia_smi: float | None = None
    cost_s: float = 0.0

    def __init__(self, device: str) -> None:
        self.reasons: list[str] = []
        self._nvml: Any = None
        if device != "cuda":
            return  # a CPU has no such counters, and the report says n/a
        try:
            import pynvml
        except ImportError:
            self.reasons.append("SM activity not read: pip install nvidia-ml-py")
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            self._nvml = pynvml
            self._gpm = bool(pynvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)
        except pynvml.NVMLError as error:
            self.reasons.append(f"SM activity not read: {error}")
            self._gpm = False
        if self._nvml and not self._gpm:
            self.reasons.append("SM and tensor activity want a Hopper card or newer")

    def __enter__(self) -> GpuProbe:
        if self._nvml is None:
            return self
        self._stop, self._polled = threading.Event(), [0.0, 0.0]  # sum and count
        self._before = self._sample()
        self._thread = threading.Thread(target=self._poll, name="nvidia-smi", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._nvml is None:
            return
        self._stop.set()
        self._thread.join()
        if self._polled[1]:
            self.nvidia_smi = self._polled[0] / self._polled[1] / 100
        after = self._sample()
        if self._before is not None and after is not None:
            self._read_gpm(self._before, after)
        for sample in (self._before, after):
            if sample is not None:
                self._nvml.nvmlGpmSampleFree(sample)

    def _poll(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            start = time.perf_counter()
            self._polled[0] += self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
            self._polled[1] += 1
            self.cost_s += time.perf_counter() - start

    def _sample(self) -> Any:
        if not self._gpm:
            return None
        start = time.perf_counter()
        sample = self._nvml.nvmlGpmSampleAlloc()
        self._nvml.nvmlGpmSampleGet(self._handle, sample)
        self.cost_s += time.perf_counter() - start
        return sample

    def _read_gpm(self, before: Any, after: Any) -> None:
        wanted = self._nvml.c_nvmlGpmMetricsGet_t()
        wanted.version, wanted.numMetrics = self._nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM_METRICS)
        wanted.sample1, wanted.sample2 = before, after
        for at, metric in enumerate(GPM_METRICS.values()):
            wanted.metrics[at].metricId = metric
        try:
            self._nvml.nvmlGpmMetricsGet(wanted)
        except self._nvml.NVMLError as error:
            self.reasons.append(f"SM activity not read: {error} (the window may be too short)")
            return
        for at, name in enumerate(GPM_METRICS):
            setattr(self, name, wanted.metrics[at].value / 100)
