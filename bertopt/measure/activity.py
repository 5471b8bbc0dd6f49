"""What CUPTI saw of a few batches through torch.profiler: kernels, and waits of the host in the middle of launching."""

from __future__ import annotations

from dataclasses import dataclass

from bertopt.backends.base import Session
from bertopt.batching import Batch
from bertopt.measure.statistics import union_seconds

WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cuStreamSynchronize", "cuCtxSynchronize")


@dataclass(frozen=True)
class Activity:
    """Means per batch; None where the profiler saw no kernels."""

    kernel_ms: float | None  # time in which at least one kernel ran; the profiler slows launching, and kernels not
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
    kernels = [e for e in events if str(e.device_type).endswith("CUDA") and not e.name.startswith(("Mem", "bertopt."))]
    launches = [e.time_range for e in events if e.name == "bertopt.launch" and not str(e.device_type).endswith("CUDA")]
    waits = [
        e.time_range
        for e in events
        if e.name in WAITS and any(at.start <= e.time_range.start and e.time_range.end <= at.end for at in launches)
    ]
    ran = union_seconds([k.time_range.start for k in kernels], [k.time_range.end for k in kernels])  # microseconds
    return Activity(
        kernel_ms=ran / 1e3 / len(some) if kernels else None,
        kernels=len(kernels) / len(some) if kernels else None,
        synchronizations=len(waits) / len(some),
        wait_ms=sum(w.end - w.start for w in waits) / 1e3 / len(some),
    )
