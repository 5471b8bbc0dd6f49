"""Metrics of the gate, each a function of sums over rows, and the bootstrap that resamples those sums.

A metric compares an output with a truth: the labels of the data, or, where there are none, the reference's own output. Values
lie on their usual scales (0 to 1, correlations -1 to 1); a *point* is a hundredth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.errors import UsageError
from bertopt.gate.predictions import CLASSIFYING

Array = NDArray[Any]
RESAMPLES = 2000
SEED = 20261130
_CHUNK_BYTES = 32 * 2**20


@dataclass(frozen=True)
class Metric:
    """`of(sums(truth, output) summed over rows)`; sums [n, S], of: [B, S] -> [B]."""

    name: str  # as --metric takes it
    title: str  # as a report says it
    tasks: tuple[str, ...]
    against: str  # "labels", or "reference" where the reference's output is the truth
    sums: Callable[[Array, Array], Array]
    of: Callable[[Array], Array]
    proportion: bool = False  # the mean of a yes or no of each row, which has a score interval
    classes: bool = False  # flips are what changes it, so flips not yet seen must widen its bootstrap
    ranked: bool = False  # on ranks, which every resample gives anew


def value(metric: Metric, truth: Array, output: Array) -> float:
    return float(_of(metric, truth, output, np.ones((1, len(truth))))[0])


def _of(metric: Metric, truth: Array, output: Array, weights: Array) -> Array:
    """The metric [B] over rows weighted with `weights` [B, n]."""
    if not metric.ranked:
        return metric.of(weights @ metric.sums(truth, output))
    columns = np.ascontiguousarray(weights.T)  # gathering whole rows is several times as fast
    total = columns.sum(axis=0)
    x, y = _centred_ranks(truth, columns, total), _centred_ranks(output, columns, total)
    weighted = columns * x
    products = (weighted * y).sum(axis=0), (weighted * x).sum(axis=0), (columns * y * y).sum(axis=0)
    return _ratio(products[0], np.sqrt(products[1] * products[2]))


def _centred_ranks(values: Array, weights: Array, total: Array) -> Array:
    """Rank less mean rank [n, B] of each row in each resample; row i occurs weights[i] times, ties share a rank."""
    _, tie = np.unique(values, return_inverse=True)
    order = np.argsort(tie, kind="stable")
    starts = np.flatnonzero(np.diff(tie[order], prepend=-1))
    counts = np.add.reduceat(weights[order], starts, axis=0)
    return (np.cumsum(counts, axis=0) - counts / 2 - total / 2)[tie]


def _ratio(top: Array, bottom: Array) -> Array:
    """top / bottom, and 0 where nothing can be told because one side is constant."""
    return np.divide(top, bottom, out=np.zeros_like(top, dtype=np.float64), where=bottom > 1e-12)


def rows_right(truth: Array, output: Array) -> NDArray[np.bool_]:
    """[n]: all labels of the row are as in `truth`; a row that was given none (its logits are not finite) is wrong."""
    return (truth == output).all(axis=1)


def _right_sums(truth: Array, output: Array) -> Array:
    right = rows_right(truth, output).astype(np.float64)
    return np.stack([right, np.ones_like(right)], axis=1)


def _count_sums(truth: Array, output: Array) -> Array:
    return np.hstack([truth, output, truth & output]).astype(np.float64)


def _mean(sums: Array) -> Array:
    return sums[:, 0] / sums[:, 1]


def _counts(sums: Array) -> tuple[Array, Array, Array]:
    """True, given and hit rows [B, K] of each class."""
    actual, given, hit = np.split(sums, 3, axis=1)
    return actual, given, hit


def _f1_macro(sums: Array) -> Array:
    """The mean over classes that occur, in truth or output."""
    actual, given, hit = _counts(sums)
    occurs = actual + given > 1e-12
    return _ratio(_ratio(2 * hit, actual + given).sum(axis=1), occurs.sum(axis=1).astype(np.float64))


def _f1_second(sums: Array) -> Array:
    actual, given, hit = _counts(sums)
    return _ratio(2 * hit[:, 1], (actual + given)[:, 1])


def _mcc(sums: Array) -> Array:
    """Matthews' correlation for any number of classes: Gorodkin's R_K, Comput. Biol. Chem. 28 (2004) 367-374."""
    actual, given, hit = _counts(sums)
    rows = actual.sum(axis=1)
    top = hit.sum(axis=1) * rows - (actual * given).sum(axis=1)
    return _ratio(top, np.sqrt(np.maximum((rows**2 - (actual**2).sum(axis=1)) * (rows**2 - (given**2).sum(axis=1)), 0)))


def _moment_sums(truth: Array, output: Array) -> Array:
    x, y = truth - truth.mean(), output - output.mean()
    return np.stack([x, y, x * y, x * x, y * y, np.ones_like(x)], axis=1)


def _pearson(sums: Array) -> Array:
    x, y, xy, xx, yy, n = sums.T
    return _ratio(xy - x * y / n, np.sqrt(np.maximum((xx - x * x / n) * (yy - y * y / n), 0)))


def _cosine_sums(truth: Array, output: Array) -> Array:
    norms = np.linalg.norm(truth, axis=1) * np.linalg.norm(output, axis=1)
    cosines = _ratio((truth * output).sum(axis=1), norms)
    return np.stack([cosines, np.ones_like(cosines)], axis=1)


_ONE = ("single_label",)
_TABLE = [
    Metric("accuracy", "accuracy", CLASSIFYING, "labels", _right_sums, _mean, proportion=True),
    Metric("f1", "macro F1", CLASSIFYING, "labels", _count_sums, _f1_macro, classes=True),
    Metric("mcc", "Matthews correlation", _ONE, "labels", _count_sums, _mcc, classes=True),
    Metric("pearson", "Pearson correlation", ("regression",), "labels", _moment_sums, _pearson),
    Metric("spearman", "Spearman correlation", ("regression",), "labels", _moment_sums, _pearson, ranked=True),
    Metric("agreement", "label agreement", CLASSIFYING, "reference", _right_sums, _mean, proportion=True),
    Metric("cosine", "cosine similarity", ("embedding", *CLASSIFYING), "reference", _cosine_sums, _mean),
]
METRICS = {metric.name: metric for metric in _TABLE}


def choose(name: str, task: str, labels: list[str], labelled: bool) -> Metric:
    """The metric of that name; of two labels `f1` is that of the second one, as GLUE has it, and otherwise the macro mean.

    Raises UsageError with what there is instead.
    """
    fit = [m.name for m in _TABLE if task in m.tasks and (labelled or m.against == "reference")]
    if name not in METRICS:
        raise UsageError(f"there is no metric {name!r}; there is {', '.join(METRICS)}")
    metric = METRICS[name]
    if task not in metric.tasks:
        raise UsageError(f"{name} is no metric for the task {task}; {', '.join(fit)} is")
    if metric.against == "labels" and not labelled:
        raise UsageError(f"{name} needs labels, and the data has none; without labels --metric takes {' or '.join(fit)}")
    if name == "f1" and task == "single_label" and len(labels) == 2:
        return Metric("f1", f"F1 of {labels[1]!r}", _ONE, "labels", _count_sums, _f1_second, classes=True)
    return metric


@dataclass(frozen=True)
class Resamples:
    """The metric [B] of an output in each resample, and the same with flips that were not seen.

    `flipped` has flips for the worse added (in each resample a Poisson number of mean `unseen_flips`, of rows that are right,
    to their runner-up): where no flip was seen, a plain bootstrap finds no variance at all.
    """

    plain: Array
    flipped: Array


def resample(
    metric: Metric,
    truth: Array,
    outputs: tuple[Array, Array],
    groups: NDArray[np.int64],
    runners_up: tuple[Array, Array] | None = None,
    unseen_flips: float = 1.0,
    flip_rows: float = 1.0,
) -> tuple[Resamples, Resamples]:
    """Bootstrap of two outputs over the same resamples of whole groups.

    `groups` [n], 0 to G - 1: the document of each row, or its own number where rows are independent. `runners_up`: the
    outputs if every row flipped. An unseen flip takes `flip_rows` rows with it. Seeded: the same rows give the same numbers.
    """
    rng = np.random.default_rng(SEED)
    results: tuple[list[tuple[Array, Array]], list[tuple[Array, Array]]] = ([], [])
    sums = [] if metric.ranked else [metric.sums(truth, output) for output in outputs]
    shifts = [_flip(metric, truth, *sides) for sides in zip(outputs, runners_up, strict=True)] if runners_up else []
    grouped = [_sum_by(groups, s) for s in sums]
    for draws in _draws(rng, int(groups.max()) + 1, len(truth)):
        unseen = flip_rows * rng.poisson(unseen_flips, (len(draws), 1))
        for which, output in enumerate(outputs):
            if metric.ranked:
                plain = _of(metric, truth, output, draws[:, groups])
                results[which].append((plain, plain))
                continue
            totals = draws @ grouped[which]
            plain = metric.of(totals)
            results[which].append((plain, metric.of(totals + unseen * shifts[which]) if metric.classes and shifts else plain))
    first, second = (Resamples(*(np.concatenate(part) for part in zip(*pieces, strict=True))) for pieces in results)
    return first, second


def skewness(metric: Metric, truth: Array, outputs: tuple[Array, Array], groups: NDArray[np.int64]) -> float:
    """BCa's acceleration of the difference of two outputs, by the jackknife over groups; 0 for ranks, near symmetric."""
    if metric.ranked:
        return 0.0
    first, second = (_sum_by(groups, metric.sums(truth, output)) for output in outputs)
    without = metric.of(first.sum(axis=0) - first) - metric.of(second.sum(axis=0) - second)
    influence = without.mean() - without
    variance = float(influence @ influence)
    return float((influence**3).sum()) / (6 * variance**1.5) if variance > 1e-24 else 0.0


def _flip(metric: Metric, truth: Array, output: Array, runner_up: Array) -> Array:
    """What one flip for the worse changes in the sums [S], the mean over rows that are right."""
    right = rows_right(truth, output)
    if not right.any():
        right[:] = True
    return (metric.sums(truth, runner_up) - metric.sums(truth, output))[right].mean(axis=0)


def _draws(rng: np.random.Generator, groups: int, rows: int) -> Iterator[Array]:
    """How often each group occurs [b, G], a chunk of resamples at a time."""
    chunk = max(1, min(RESAMPLES, _CHUNK_BYTES // (8 * rows)))
    for start in range(0, RESAMPLES, chunk):
        size = min(chunk, RESAMPLES - start)
        picked = rng.integers(0, groups, (size, groups)) + groups * np.arange(size)[:, None]
        yield np.bincount(picked.ravel(), minlength=size * groups).reshape(size, groups).astype(np.float64)


def _sum_by(groups: NDArray[np.int64], values: Array) -> Array:
    total = np.zeros((int(groups.max()) + 1, values.shape[1]))
    np.add.at(total, groups, values)
    return total
