"""What CUPTI saw of a few batches through torch.profiler: kernels, and waits of the host in the middle of launching.

The profiler slows the host, so a stream that is bound by launching has longer gaps under it; kernels themselves take as long as
ever. Kernel-busy is therefore the kernels' time under the profiler over the wall time of the same batches without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bertopt.backends.base import Session
from bertopt.batching import Batch
from bertopt.measure.loop import replay
from bertopt.measure.statistics import union_seconds

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cuStreamSynchronize", "cuCtxSynchronize")


@dataclass(frozen=True)
class Activity:
    """Means per batch; None where the profiler saw no kernels."""

    kernel_ms: float | None  # time in which at least one kernel ran
    kernels: float | None
    synchronizations: float  # waits for a stream or the device while launching; waiting for a batch's own event is none
    wait_ms: float


def activity(session: Session, some: list[Batch]) -> Activity:
    """Launch `some` batches, staged beforehand, and look at them. Outside any timed window: the profiler costs."""
    from torch.profiler import ProfilerActivity, profile, record_function

    staged = [session.stage(batch) for batch in some]
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        waiting = []
        for one in staged:
            with record_function("bertopt.launch"):
                waiting.append(session.launch(one))
            if len(waiting) > 1:
                waiting.pop(0).result()
        for pending in waiting:
            pending.result()
    events = list(profiler.events())
    ran_ms, kernels = kernel_time(events)
    launches = [e.time_range for e in events if e.name == "bertopt.launch" and not str(e.device_type).endswith("CUDA")]
    waits = [
        e.time_range
        for e in events
        if e.name in WAITS and any(at.start <= e.time_range.start and e.time_range.end <= at.end for at in launches)
    ]
    return Activity(
        kernel_ms=ran_ms / len(some) if kernels else None,
        kernels=kernels / len(some) if kernels else None,
        synchronizations=len(waits) / len(some),
        wait_ms=sum(w.end - w.start for w in waits) / 1e3 / len(some),
    )


def kernel_time(events: Iterable[Any]) -> tuple[float, int]:
    """(milliseconds in which at least one kernel ran, their number) of a profiler's events; copies are no kernels."""
    kernels = [e for e in events if str(e.device_type).endswith("CUDA") and not e.name.startswith(("Mem", "bertopt."))]
    ran = union_seconds([k.time_range.start for k in kernels], [k.time_range.end for k in kernels])  # microseconds
    return ran / 1e3, len(kernels)


def busy_share(kernel_ms: float, session: Session, some: list[Batch], in_flight: int) -> float:
    """Share of the wall time of `some` batches, lying ready, in which a kernel ran: `kernel_ms` a batch, seen by the profiler.

    The fastest of three replays without the profiler is the wall time: what else slows one has nothing to do with launching.
    """
    wall_ms = 1e3 * min(replay(session, some, in_flight) for _ in range(3)) / len(some)
    return min(1.0, kernel_ms / wall_ms)
