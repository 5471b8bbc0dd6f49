"""How many cores this process may use: affinity and container quota, never what the host has."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """The smallest of the affinity mask, the container's CPU quota and OMP_NUM_THREADS; at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [affinity, _quota(), _omp_num_threads()]
    return max(1, min(limit for limit in limits if limit is not None))


def why_cores() -> str:
    """Which limit binds, for the report."""
    cores = usable_cores()
    if cores == _omp_num_threads():
        return f"{cores} (OMP_NUM_THREADS)"
    if cores == _quota():
        return f"{cores} (container quota)"
    return f"{cores} (affinity; the host has {os.cpu_count()})"


def _omp_num_threads() -> int | None:
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else None


def _quota() -> int | None:
    """Whole cores of the control group's CPU quota, version 2 and then 1; None where there is none."""
    try:
        quota, period = (CGROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (CGROUP / "cpu/cpu.cfs_quota_us").read_text()
            period = (CGROUP / "cpu/cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        cores = int(quota) / int(period)
    except ValueError:  # "max": no limit
        return None
    return max(1, math.floor(cores)) if cores > 0 else None
