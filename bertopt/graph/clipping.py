"""Where a range ends when it is not at the largest value: three choices from a histogram of magnitudes.

Each takes `counts` [BINS] of equally wide bins from 0 to the largest magnitude, and gives the clip as a number of bins.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BINS = 4096
PERCENTILE = 99.99
STEPS = 127  # of int8, on one side of zero

Counts = NDArray[np.float64]


def percentile(counts: Counts) -> float:
    """The clip that leaves out one value in ten thousand."""
    return float(np.searchsorted(np.cumsum(counts), counts.sum() * PERCENTILE / 100) + 1)


def mse(counts: Counts) -> float:
    """The clip of the least squared error of rounding and clipping."""
    centres = np.arange(BINS) + 0.5
    candidates = np.linspace(BINS / 40, BINS, 120)
    steps = candidates / STEPS
    rounded = np.minimum(np.round(centres / steps[:, None]), STEPS) * steps[:, None]
    return float(candidates[((rounded - centres) ** 2 * counts).sum(axis=1).argmin()])


def entropy(counts: Counts) -> float:
    """The clip of the least Kullback-Leibler divergence from the clipped to the quantized histogram (Migacz, 2017)."""
    levels, best, chosen = STEPS + 1, np.inf, BINS
    for stop in range(levels, BINS + 1, 32):
        clipped = counts[:stop].copy()
        present = clipped > 0
        clipped[-1] += counts[stop:].sum()
        edges = np.linspace(0, stop, levels + 1).astype(np.int64)
        group = np.searchsorted(edges, np.arange(stop), side="right") - 1
        total = np.bincount(group, counts[:stop], levels)
        members = np.bincount(group, present, levels)
        spread = np.where(present, (total / np.maximum(members, 1))[group], 0.0)
        p, q = clipped / clipped.sum(), spread / max(spread.sum(), 1e-30)
        mass = p > 0
        divergence = float((p[mass] * np.log(p[mass] / np.maximum(q[mass], 1e-10))).sum())
        if divergence < best:
            best, chosen = divergence, stop
    return float(chosen)
