"""Kernel-busy fraction and traces, from CUPTI through torch.profiler, on a few batches outside the timed window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertopt.backends.base import Session
from bertopt.batching import Batch
from bertopt.files import replacing, write_text
from bertopt.measure.activity import busy_share, kernel_time
from bertopt.measure.loop import Pass, replay


def profile(session: Session, some: list[Batch], in_flight: int, trace: Path | None = None) -> tuple[float | None, int]:
    """(share of the wall time of `some` in which a kernel ran, kernels a batch); None where the profiler saw none."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    with torch_profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        replay(session, some, in_flight)
    ran_ms, kernels = kernel_time(profiler.events())
    if trace is not None:
        with replacing(trace) as temporary:
            profiler.export_chrome_trace(str(temporary))
    if not kernels:
        return None, 0
    return busy_share(ran_ms / len(some), session, some, in_flight), kernels // len(some)


def write_trace(done: Pass, path: Path, batches: int = 8) -> None:
    """The last few batches of a pass as a Chrome trace (chrome://tracing, Perfetto): host, copy and device rows."""
    shown = done.batches[-batches:]
    if not shown:
        return
    zero = shown[0].taken_s
    events: list[dict[str, Any]] = []

    def bar(row: str, name: str, start_s: float, end_s: float) -> None:
        when = {"ts": (start_s - zero) * 1e6, "dur": (end_s - start_s) * 1e6}  # microseconds
        events.append({"ph": "X", "pid": 1, "tid": row, "name": name} | when)

    for chunk in done.chunks:
        if chunk.start_s >= zero:
            bar("tokenize", "tokenize", chunk.start_s, chunk.start_s + chunk.seconds)
    for number, b in enumerate(shown):
        bar("loop", f"prepare {number}", b.taken_s, b.ready_s)
        bar("loop", f"collate {number}", b.ready_s, b.staged_s)
        bar("loop", f"launch {number}", b.staged_s, b.launched_s)
        bar("loop", f"wait {number}", b.waited_s, b.result_s)
        bar("loop", f"answers {number}", b.result_s, b.done_s)
        if b.device.copy_in_ms and b.device.copy_in_start_s:
            bar("copy", f"copy in {number}", b.device.copy_in_start_s, b.device.copy_in_start_s + b.device.copy_in_ms / 1e3)
        start_s = b.device.device_start_s
        bar("device", f"batch {number}: {b.rows} rows", start_s, start_s + b.device.device_ms / 1e3)
    write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
