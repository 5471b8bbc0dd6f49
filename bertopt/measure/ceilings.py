"""What the device can do at best: arithmetic on a large product, and memory on a plain copy. Both measured, none looked up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SECONDS = 0.25  # of measuring one ceiling
SIDE = {"cpu": 1536, "cuda": 8192}  # of the square product: large enough to fill the device
COPY_BYTES = {"cpu": 1 << 27, "cuda": 1 << 30}
DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def arithmetic_flop_s(device: str, precision: str) -> float:
    """FLOP/s of a square product in `precision`, a multiply-add counted as two.

    Raises LookupError for a precision in which torch multiplies no plain matrices, RuntimeError where this device refuses it.
    """
    import torch

    if precision not in DTYPES:
        raise LookupError(f"torch has no plain product in {precision} to compare with")
    side, dtype = SIDE[device], getattr(torch, DTYPES[precision])
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        a, b = (torch.ones(side, side, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        seconds = _seconds(lambda: torch.mm(a, b, out=out), device)
    finally:
        torch.set_float32_matmul_precision(before)
    return 2.0 * side**3 / seconds


def bandwidth_b_s(device: str) -> float:
    """Bytes a second that a plain copy reads and writes."""
    import torch

    source = torch.ones(COPY_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * COPY_BYTES[device] / _seconds(lambda: target.copy_(source), device)


def copy_ms(nbytes: int, pinned: bool) -> float:
    """Milliseconds to bring `nbytes` to the CUDA device from memory that is page-locked or not, waiting for each."""
    import torch

    host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned)
    device = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    return 1e3 * _seconds(lambda: device.copy_(host, non_blocking=pinned), "cuda", every=1)


def _seconds(work: Callable[[], Any], device: str, every: int = 8) -> float:
    """Seconds of one call, the fastest of those made within SECONDS; the device is waited for after `every` calls."""
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    every = every if device == "cuda" else 1
    work()
    wait()
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(every):
            work()
        wait()
        best = min(best, (time.perf_counter() - start) / every)
    return best
