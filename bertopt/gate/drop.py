"""How far a metric fell, with its interval, and what two one-sided tests make of it.

- accuracy and agreement: Tango's score interval on the flips, confirmed by exact tail probabilities. Where rows share
  documents, counts are divided by the design effect, and the interval is widened to that of a bootstrap of whole documents
  where that one is wider.
- F1, Matthews correlation: the percentile bootstrap with flips not yet seen, of whole documents where rows share them.
- Pearson, Spearman, cosine: the same, corrected for bias and skewness (BCa: B. Efron, JASA 82 (1987) 171-185), each end at
  half the error asked for: on simulated pairs with heavy tails, ends at all of it pass 6 to 9 % of candidates at the margin,
  and these 4 to 6 %.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertopt.gate.align import Answers, Rows
from bertopt.gate.intervals import (
    design_effect,
    normal_quantile,
    rows_to_decide,
    tost,
    wilson_centre,
)
from bertopt.gate.metrics import RESAMPLES, Metric, resample, rows_right, skewness, value
from bertopt.gate.verdict import FAILED, INCONCLUSIVE, PASSED, Drop
from bertopt.records import Interval

Array = NDArray[Any]

NEAREST = 0.05  # of the rows, the nearest to another answer, whose clustering stands for that of a few flips
FEW_UNITS = {True: 30, False: 100}  # a bootstrap of fewer rows, or documents, proves nothing: by whether it counts flips


class Measured(NamedTuple):
    drop: Drop
    before: Interval
    after: Interval


def measure(
    metric: Metric, truth: Array, before: Answers, after: Answers, rows: Rows, *, margin: float, confidence_percent: float
) -> Measured:
    """The drop from `before` to `after`; `margin` as a fraction."""
    if metric.proportion:
        return _by_flips(metric, truth, before, after, rows, margin, confidence_percent)
    return _by_bootstrap(metric, truth, before, after, rows, margin, confidence_percent)


def proportion(right: NDArray[np.bool_], groups: NDArray[np.int64] | None, confidence_percent: float) -> Interval:
    """Wilson's interval, on the effective rows where rows share documents."""
    effect = 1.0 if groups is None else design_effect(right, groups)
    share = float(right.mean())
    centre, half = wilson_centre(share, len(right) / effect, normal_quantile(0.5 + confidence_percent / 200))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half), len(right), confidence_percent)


def _by_flips(
    metric: Metric, truth: Array, before: Answers, after: Answers, rows: Rows, margin: float, confidence_percent: float
) -> Measured:
    right, still = rows_right(truth, before.output), rows_right(truth, after.output)
    worse, better, count = int((right & ~still).sum()), int((still & ~right).sum()), len(rows)
    alpha = 1 - confidence_percent / 100
    effect, method, bootstrap = 1.0, "Tango's score interval, confirmed by exact tail probabilities", None
    if rows.groups is not None:
        lost = right.astype(np.float64) - still
        near = _nearest(_closeness(before, rows.task), (worse + better) / count)
        effect = max(design_effect(lost, rows.groups), design_effect(near, rows.groups))
        documents = int(rows.groups.max()) + 1
        method = f"Tango's score interval on effective rows and a bootstrap of {documents} documents, the wider end of each"
        first, second = resample(metric, truth, (before.output, after.output), rows.groups)
        low, high = np.quantile(first.plain - second.plain, [alpha, 1 - alpha]).tolist()
        bootstrap = low, high
    tests = tost(worse / effect, better / effect, count / effect, margin, alpha, bootstrap)
    needed = None
    if tests.decision == INCONCLUSIVE:
        effective = rows_to_decide(worse / effect, better / effect, count / effect, margin, alpha)
        needed = None if effective is None else max(count + 1, math.ceil(effective * effect))
    drop = Drop(
        points=100 * (worse - better) / count,
        low_points=100 * tests.low,
        high_points=100 * tests.high,
        interval_percent=round(100 - 200 * alpha, 6),
        margin_points=100 * margin,
        method=method,
        decision=tests.decision,
        worse=worse,
        better=better,
        effective_rows=count / effect,
        p_pass=tests.p_pass,
        p_fail=tests.p_fail,
        rows_needed=needed,
    )
    return Measured(drop, *(proportion(x, rows.groups, confidence_percent) for x in (right, still)))


def _by_bootstrap(
    metric: Metric, truth: Array, before: Answers, after: Answers, rows: Rows, margin: float, confidence_percent: float
) -> Measured:
    count = len(rows)
    groups = np.arange(count) if rows.groups is None else rows.groups
    units = int(groups.max()) + 1
    alpha = 1 - confidence_percent / 100
    flips = None if before.runner_up is None or after.runner_up is None else (before.runner_up, after.runner_up)
    together = 1.0 if rows.groups is None or flips is None else design_effect(_closeness(before, rows.task), groups)
    unseen = normal_quantile(1 - alpha) ** 2 / 2  # what the score interval adds to a count, too
    sides = (before.output, after.output)
    first, second = resample(metric, truth, sides, groups, flips, unseen, together)
    estimate = value(metric, truth, before.output) - value(metric, truth, after.output)
    method, tail = "percentile bootstrap", alpha
    levels = tail, 1 - tail
    if not metric.classes:
        method, tail = "BCa bootstrap", alpha / 2
        levels = _corrected(first.plain - second.plain, estimate, skewness(metric, truth, sides, groups), tail)
    low = min(estimate, float(np.quantile(first.flipped - second.plain, levels[0])))
    high = max(estimate, float(np.quantile(first.plain - second.flipped, levels[1])))
    decision, needed = INCONCLUSIVE, None
    if units < FEW_UNITS[metric.classes]:
        needed = math.ceil(FEW_UNITS[metric.classes] * count / units)
    elif high < margin or low > margin:
        decision = PASSED if high < margin else FAILED
    else:
        reach = high - estimate if estimate < margin else estimate - low
        needed = _rows_for(abs(margin - estimate), reach, count)
    drop = Drop(
        points=100 * estimate,
        low_points=100 * low,
        high_points=100 * high,
        interval_percent=round(100 - 200 * tail, 6),
        margin_points=100 * margin,
        method=f"{method} of {units} {'rows' if rows.groups is None else 'documents'}, {RESAMPLES} resamples",
        decision=decision,
        rows_needed=needed,
    )
    return Measured(
        drop, *(_value_interval(metric, truth, x, r.plain, confidence_percent) for x, r in ((before, first), (after, second)))
    )


def _corrected(resampled: Array, estimate: float, skew: float, alpha: float) -> tuple[float, float]:
    """The quantiles of `resampled` that BCa takes for the ends of an interval."""
    below = float((resampled < estimate).sum() + 0.5 * (resampled == estimate).sum()) / len(resampled)
    bias = normal_quantile(min(max(below, 0.001), 0.999))

    def level(tail: float) -> float:
        z = bias + normal_quantile(tail)
        return NormalDist().cdf(bias + z / (1 - skew * z))

    return level(alpha), level(1 - alpha)


def _value_interval(metric: Metric, truth: Array, side: Answers, resampled: Array, confidence_percent: float) -> Interval:
    tail = 0.5 - confidence_percent / 200
    low, high = (float(x) for x in np.quantile(resampled, [tail, 1 - tail]))
    middle = value(metric, truth, side.output)
    return Interval(middle, min(low, middle), max(high, middle), len(truth), confidence_percent)


def _rows_for(distance: float, reach: float, count: int) -> int | None:
    """Rows whose interval, narrowing with the square root of their number, reaches no further than `distance`."""
    if distance < 0.03 * reach:
        return None
    return max(count + 1, math.ceil(count * (reach / distance) ** 2))


def _nearest(closeness: Array, flipped: float) -> Array:
    """1.0 for the rows [n] that are nearest to another answer: twice as many as flipped, and NEAREST of all at least.

    Flips happen among them, so where too few flipped to tell how those cluster, these tell. All rows' closeness would not:
    whole documents are easy or hard, which says little of the few rows on the edge.
    """
    return (closeness <= np.quantile(closeness, min(1.0, max(NEAREST, 2 * flipped)))).astype(np.float64)


def _closeness(side: Answers, task: str) -> Array:
    """How near each row is to another answer [n]: where few rows flip, its clustering stands for that of flips."""
    logits = side.logits.astype(np.float64)
    if task == "multi_label":
        return np.abs(logits).min(axis=1)
    if logits.shape[1] < 2:
        return logits[:, 0]
    top = np.partition(logits, -2, axis=1)
    return top[:, -1] - top[:, -2]
