"""The arithmetic that predicts: utilization, workers, padding and FLOPs, each from one formula.

Everything here is a pure function of times and lengths, so that the report can show prediction beside measurement.
"""

from __future__ import annotations

import math


def serial_utilization(host_ms: float, device_ms: float) -> float:
    """Busy share of the device in a loop that prepares a batch, then computes it: U = T_d / (T_h + T_d)."""
    return device_ms / (host_ms + device_ms) if host_ms + device_ms > 0 else 0.0


def overlapped_utilization(host_ms: float, device_ms: float, workers: int) -> float:
    """The same with `workers` preparing ahead on cores of their own: U = min(1, W T_d / T_h)."""
    return min(1.0, workers * device_ms / host_ms) if host_ms > 0 else 1.0


def workers_needed(host_ms: float, device_ms: float) -> int:
    """The fewest workers that keep the device busy: ceil(T_h / T_d); 18 ms over 6 ms wants 3."""
    # A ratio that is whole but for rounding (0.3 / 0.1) must not cost a worker.
    return max(1, math.ceil(round(host_ms / device_ms, 9))) if device_ms > 0 else 1


def padding_fraction(mean_length: float, padded_length: float) -> float:
    """Share of computed tokens that are padding: 1 - mean / padded; a mean of 27 in 128 wastes 79 %."""
    return 1.0 - mean_length / padded_length


def encoder_flops(tokens: float, pairs: float, hidden: int, intermediate: int, layers: int) -> float:
    """Floating-point operations of `layers` encoder layers over `tokens` computed tokens and `pairs` query-key pairs.

    8 T H^2 + 4 T H I + 4 P H a layer, a multiply-add counted as two: the four attention projections, the two feed-forward
    products, and scores plus context.
    """
    return layers * (8 * tokens * hidden**2 + 4 * tokens * hidden * intermediate + 4 * pairs * hidden)
