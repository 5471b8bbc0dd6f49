"""What the process itself costs: peak memory and the busy share of its cores."""

from __future__ import annotations

import contextlib
import resource
import time
from pathlib import Path
from types import TracebackType

from bertopt.measure.cores import usable_cores


class ProcessProbe:
    """Peak resident memory, and CPU time over cores and wall time, between entering and leaving."""

    peak_mib: float | None = None
    cores_busy: float | None = None

    def __enter__(self) -> ProcessProbe:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark; not every container allows it
        self._cpu, self._wall = _cpu_seconds(), time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        wall = time.perf_counter() - self._wall
        self.cores_busy = min(1.0, (_cpu_seconds() - self._cpu) / (wall * usable_cores())) if wall > 0 else None
        self.peak_mib = _high_water_mib()


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _high_water_mib() -> float:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident_mib() -> float:
    """What the process has in memory now."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory_left_mib() -> float | None:
    """What the machine or the container would still give; None where the system does not say."""
    left: list[float] = []
    with contextlib.suppress(OSError, ValueError):
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        left.append((int(Path("/sys/fs/cgroup/memory.max").read_text()) - used) / 2**20)
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        left.append(int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) / 1024)
    return min(left, default=None)
