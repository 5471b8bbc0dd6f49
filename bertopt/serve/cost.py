"""What a batch costs by its shape, fitted on measured ones: batch_s + rows * (token_s * length + pair_s * length^2) seconds.

The three terms are a launch, the products with weights, and attention. A scheduler that knows them sees when a further row is
cheaper in this batch than in one of its own (Fang et al. 2021, TurboTransformers, choose batches by such a table).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

OVERHEAD = 0.05  # share of a batch's time that its launch may take where batches are as large as they should be


@dataclass(frozen=True)
class Cost:
    """Seconds; see above. None of the three is negative."""

    batch_s: float
    token_s: float
    pair_s: float = 0.0

    def of(self, rows: int, length: int) -> float:
        """Seconds of a batch of `rows` sequences, each padded to `length` tokens."""
        return self.batch_s + rows * self.row(length)

    def row(self, length: int) -> float:
        return self.token_s * length + self.pair_s * length**2

    def efficient_tokens(self, length: int) -> int:
        """Padded tokens of a batch of this length in which the launch takes OVERHEAD of the time."""
        rows = self.batch_s * (1 / OVERHEAD - 1) / max(self.row(length), 1e-9)
        return max(length, int(rows * length))


def fit(samples: Sequence[tuple[int, int, float]]) -> Cost:
    """The cost of measured (rows, length, seconds), by least squares on relative errors with no negative term."""
    rows, lengths, seconds = (np.array(column, dtype=np.float64) for column in zip(*samples, strict=True))
    terms = np.stack([np.ones_like(rows), rows * lengths, rows * lengths**2], axis=1) / seconds[:, None]
    found = _without_negative(terms, np.ones_like(seconds))
    return Cost(*(float(value) for value in found))


def _without_negative(terms: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """The best of the fits with any of the terms left out that are not negative: with three terms there are eight."""
    best, least = np.zeros(terms.shape[1]), np.inf
    for mask in range(1, 2 ** terms.shape[1]):
        used = [i for i in range(terms.shape[1]) if mask >> i & 1]
        found = np.linalg.lstsq(terms[:, used], wanted, rcond=None)[0]
        error = float(((terms[:, used] @ found - wanted) ** 2).sum())
        if (found >= 0).all() and error < least - 1e-12:
            best, least = np.zeros(terms.shape[1]), error
            best[used] = found
    return best
