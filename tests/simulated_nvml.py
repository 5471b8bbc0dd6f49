"""NVML without a card: a module with the names that `GpuProbe` uses, whose readings a test sets."""

from __future__ import annotations

import types
from typing import Any


class NVMLError(Exception):
    pass


class Metric:
    def __init__(self) -> None:
        self.metricId, self.value = 0, 0.0


class Metrics:
    def __init__(self) -> None:
        self.metrics = [Metric() for _ in range(8)]
        self.version = self.numMetrics = 0
        self.sample1: Any = None
        self.sample2: Any = None


class SimulatedNvml(types.ModuleType):
    """Counters advance at every reading; what is named in `lacks` raises as a card without it does."""

    NVMLError = NVMLError
    NVML_GPM_METRICS_GET_VERSION = 1
    c_nvmlGpmMetricsGet_t = Metrics

    def __init__(self, *, lacks: tuple[str, ...] = (), gpm: bool = True, throttle_bits: int = 0) -> None:
        super().__init__("pynvml")
        self.lacks, self.gpm, self.throttle_bits = lacks, gpm, throttle_bits
        self.energy_mj, self.opened, self.live_samples = 1_000_000, None, 0
        self.gpm_values = {2: 95.6, 5: 92.7, 10: 41.0}

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "lacks"):

            def refuse(*arguments: Any) -> None:
                raise NVMLError("Not Supported")

            return refuse
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self.opened = index
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.opened = uuid
        return uuid

    def nvmlGpmQueryDeviceSupport(self, handle: Any) -> Any:
        return types.SimpleNamespace(isSupportedDevice=int(self.gpm))

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return types.SimpleNamespace(gpu=99, memory=50)

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        return 650_000

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> int:
        return 700_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int:
        self.energy_mj += 90_000
        return self.energy_mj

    def nvmlDeviceGetClockInfo(self, handle: Any, clock: int) -> int:
        assert clock == 1, "the SM clock"
        return 1500

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, clock: int) -> int:
        assert clock == 1
        return 1980

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return types.SimpleNamespace(used=3 * 2**30)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        return self.throttle_bits

    def nvmlGpmSampleAlloc(self) -> object:
        self.live_samples += 1
        return object()

    def nvmlGpmSampleGet(self, handle: Any, sample: object) -> None: ...

    def nvmlGpmSampleFree(self, sample: object) -> None:
        self.live_samples -= 1

    def nvmlGpmMetricsGet(self, wanted: Metrics) -> None:
        for metric in wanted.metrics[: wanted.numMetrics]:
            metric.value = self.gpm_values[metric.metricId]
