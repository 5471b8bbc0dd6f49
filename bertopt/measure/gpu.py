"""What NVML knows of one window: SM, tensor and memory activity (GPM counters), power, energy, clocks and throttling.

GPM counters (Hopper and newer) and the energy counter are read twice, before and after, and cost nothing in between. Power,
clocks, the reasons that hold them back and nvidia-smi's figure have to be polled; a thread does that, and how much of the
window it spent is kept.
"""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Any

from bertopt.records_card import CardReading

POLL_SECONDS = 0.1
# NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_ANY_TENSOR_UTIL and NVML_GPM_METRIC_DRAM_BW_UTIL, percent
GPM_METRICS = {"sm_active": 2, "tensor_active": 5, "dram_active": 10}
# Bits of nvmlDeviceGetCurrentClocksEventReasons that take speed away; an idle card or a user's own setting does not
THROTTLE_BITS = {
    "power cap": 0x4,
    "hardware slowdown": 0x8,
    "thermal (software)": 0x20,
    "thermal (hardware)": 0x40,
    "power brake": 0x80,
}


class GpuProbe:
    """Counters of the CUDA device between entering and leaving, as fractions; None, with a reason, where not to be had."""

    sm_active: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    nvidia_smi: float | None = None
    cost_s: float = 0.0

    def __init__(self, device: str) -> None:
        self.reasons: list[str] = []
        self._nvml: Any = None
        self._gpm = False
        self._polled: dict[str, list[float]] = {}
        self._throttled: dict[str, int] = dict.fromkeys(THROTTLE_BITS, 0)
        self._energy_j: float | None = None
        self._seconds = 0.0
        if device != "cuda":
            return  # a CPU has no such counters, and the report says n/a
        try:
            import pynvml
        except ImportError:
            self.reasons.append("SM activity, power and clocks not read: pip install nvidia-ml-py")
            return
        try:
            pynvml.nvmlInit()
            self._handle = _visible(pynvml)
            self._nvml = pynvml
            self._gpm = bool(pynvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice)
        except pynvml.NVMLError as error:
            self.reasons.append(f"SM activity not read: {error}")
        if self._nvml and not self._gpm:
            self.reasons.append("SM and tensor activity want a Hopper card or newer")

    def __enter__(self) -> GpuProbe:
        self._began = time.perf_counter()
        if self._nvml is None:
            return self
        self._stop = threading.Event()
        self._energy_before = self._read("energy", "nvmlDeviceGetTotalEnergyConsumption")
        self._before = self._sample()
        self._thread = threading.Thread(target=self._poll, name="nvidia-smi", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._seconds = time.perf_counter() - self._began
        if self._nvml is None:
            return
        self._stop.set()
        self._thread.join()
        after = self._sample()
        energy = self._read("energy", "nvmlDeviceGetTotalEnergyConsumption")
        if energy is not None and self._energy_before is not None and energy > self._energy_before:
            self._energy_j = (energy - self._energy_before) / 1e3  # the counter is in mJ
        shown = self._mean("nvidia_smi")
        self.nvidia_smi = None if shown is None else shown / 100
        if self._before is not None and after is not None:
            self._read_gpm(self._before, after)
        for sample in (self._before, after):
            if sample is not None:
                self._nvml.nvmlGpmSampleFree(sample)
        if not self._polled:
            self.reasons.append(f"power and clocks not sampled: the window of {self._seconds:.2f} s is too short")

    def reading(self) -> CardReading:
        """What was read, as a record. Only after the window was left."""
        power = self._mean("power_w")
        if self._energy_j is not None:
            power = self._energy_j / self._seconds
        samples = max((len(values) for values in self._polled.values()), default=0)
        return CardReading(
            seconds=self._seconds,
            samples=samples,
            sm_active=self.sm_active,
            tensor_active=self.tensor_active,
            dram_active=self.dram_active,
            nvidia_smi=self.nvidia_smi,
            power_w=power,
            power_from=None if power is None else "samples" if self._energy_j is None else "energy counter",
            power_limit_w=self._constant("power limit", "nvmlDeviceGetEnforcedPowerLimit", 1e-3),
            energy_j=self._energy_j,
            sm_clock_mhz=self._mean("sm_clock_mhz"),
            max_sm_clock_mhz=self._constant("maximum clock", "nvmlDeviceGetMaxClockInfo", 1.0, 1),  # NVML_CLOCK_SM
            memory_used_mib=max(self._polled.get("memory_mib", []), default=None),
            throttled={name: n / samples for name, n in self._throttled.items() if n},
            reasons=list(dict.fromkeys(self.reasons)),
        )

    def _poll(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            start = time.perf_counter()
            self._keep("nvidia_smi", self._read("nvidia-smi's figure", "nvmlDeviceGetUtilizationRates"), lambda v: v.gpu)
            self._keep("power_w", self._read("power", "nvmlDeviceGetPowerUsage"), lambda v: v / 1e3)
            self._keep("sm_clock_mhz", self._read("clocks", "nvmlDeviceGetClockInfo", 1), float)
            self._keep("memory_mib", self._read("memory", "nvmlDeviceGetMemoryInfo"), lambda v: v.used / 2**20)
            # Renamed in driver 535; older bindings have the old name only
            names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
            bits = self._read("throttle reasons", next((n for n in names if hasattr(self._nvml, n)), names[0]))
            for name, bit in THROTTLE_BITS.items() if bits is not None else ():
                self._throttled[name] += bool(bits & bit)
            self.cost_s += time.perf_counter() - start

    def _keep(self, name: str, value: Any, convert: Any) -> None:
        if value is not None:
            self._polled.setdefault(name, []).append(float(convert(value)))

    def _mean(self, name: str) -> float | None:
        values = self._polled.get(name)
        return sum(values) / len(values) if values else None

    def _constant(self, what: str, function: str, factor: float, *arguments: Any) -> float | None:
        value = None if self._nvml is None else self._read(what, function, *arguments)
        return None if value is None else value * factor

    def _read(self, what: str, function: str, *arguments: Any) -> Any:
        """One call of NVML; None, with the reason kept, where this card or driver has no such figure."""
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError) as error:
            reason = f"{what} not read: {error}"
            if reason not in self.reasons:
                self.reasons.append(reason)
            return None

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


def _visible(pynvml: Any) -> Any:
    """NVML's handle of the first card that CUDA sees: NVML counts all cards, CUDA_VISIBLE_DEVICES picks some."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(first)
    return pynvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0)
