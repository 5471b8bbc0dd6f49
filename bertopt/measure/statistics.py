"""Small statistics of repeats: median and spread, percentiles, intervals, and when two figures differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from bertopt.records import Interval, Percentiles


def percentiles(times_ms: ArrayLike) -> Percentiles | None:
    values = np.asarray(times_ms, dtype=np.float64)
    if not values.size:
        return None
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return Percentiles(float(p50), float(p90), float(p99), int(values.size))


def wilson(successes: int, rows: int, confidence_percent: float = 95.0) -> Interval | None:
    """Wilson's score interval for a proportion (Wilson, 1927)."""
    if not rows:
        return None
    z = _normal_quantile(0.5 + confidence_percent / 200)
    p, spread = successes / rows, z * z / rows
    centre = (p + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(p * (1 - p) / rows + spread / (4 * rows))
    # The ends meet the proportion itself at 0 and 1, but for rounding
    return Interval(p, max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)), rows, confidence_percent)


def compare(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """ "faster", "slower", or "no difference" where the ranges of the repeats overlap."""
    if min(ours) > max(theirs):
        return "faster"
    if max(ours) < min(theirs):
        return "slower"
    return "no difference"


def union_seconds(starts: ArrayLike, ends: ArrayLike) -> float:
    """Length of the union of intervals: time in which at least one of them runs."""
    order = np.argsort(np.asarray(starts))
    first, last = np.asarray(starts, dtype=np.float64)[order], np.asarray(ends, dtype=np.float64)[order]
    if not first.size:
        return 0.0
    reach = np.maximum.accumulate(last)
    gaps = np.maximum(first[1:] - reach[:-1], 0.0)
    return float(reach[-1] - first[0] - gaps.sum())


def _normal_quantile(probability: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(probability)
