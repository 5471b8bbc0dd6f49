"""Whether the reference is good enough to judge by: two wrong answers compared with each other prove nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.errors import DataError
from bertopt.gate.align import Answers, Rows
from bertopt.gate.intervals import normal_quantile, score
from bertopt.gate.metrics import METRICS, Metric, rows_right, value

Array = NDArray[Any]

TELLING_ROWS = 30  # with fewer, a good reference may look like a poor one: the verdict stays open instead of being refused
_PERMUTED_Z = 4.0


def unproven(metric: Metric, reference: Answers, rows: Rows, name: str, confidence_percent: float) -> str | None:
    """None for a reference that is fit to judge by; a sentence where there are too few rows to tell.

    Raises DataError where the labels are probably permuted, or the reference is not shown to beat a constant answer.
    """
    if rows.truth is None or metric.against == "reference":
        return None
    if rows.task == "single_label":
        refuse_permuted(reference, rows, name)
    z = normal_quantile(confidence_percent / 100)
    if rows.task == "regression":
        found = value(metric, rows.truth, reference.output)
        shown = found * math.sqrt(len(rows)) > z
        what = f"its {metric.title} of {found:.2f} is not shown to be above 0"
    elif metric.classes and rows.task == "single_label":
        found = value(METRICS["mcc"], rows.truth, reference.output)
        shown = found * math.sqrt(len(rows)) > z  # for two classes, n times its square is the chi-squared statistic
        what = f"its answers are not shown to depend on the text (Matthews correlation {found:.2f})"
    else:
        right = rows_right(rows.truth, reference.output)
        kinds, counts = np.unique(rows.truth, axis=0, return_counts=True)
        usual = rows_right(rows.truth, kinds[counts.argmax()][None, :])
        worse, better = float((usual & ~right).sum()), float((right & ~usual).sum())
        shown = better > worse and -score(worse, better, len(rows), 0.0) > z
        most = (rows.truth_names or [""])[int(np.flatnonzero(usual)[0])]
        what = f"{100 * right.mean():.1f} % right, and always answering {most!r} gives {100 * usual.mean():.1f} %"
    if shown:
        return None
    if len(rows) < TELLING_ROWS:
        return f"{len(rows)} rows cannot show that the reference is fit to judge by: {what}"
    raise DataError(
        f"the reference {name} is too poor to judge by on {len(rows)} rows: {what}; "
        "check that data and model belong together, or judge by a reference that works"
    )


def refuse_permuted(reference: Answers, rows: Rows, name: str) -> None:
    """Raises DataError where another pairing of the data's labels with the model's fits far better than their names do."""
    assert rows.truth is not None
    actual, finite = rows.truth.argmax(axis=1), reference.output.any(axis=1)
    table = np.zeros((len(rows.labels), len(rows.labels)), dtype=np.int64)
    np.add.at(table, (actual[finite], reference.output.argmax(axis=1)[finite]), 1)
    meant = _best_pairing(table)
    moved = np.flatnonzero(meant != np.arange(len(meant)))
    by_name, by_pairing = int(table[moved, moved].sum()), int(table[moved, meant[moved]].sum())
    if by_pairing <= by_name or (by_pairing - by_name) / math.sqrt(by_pairing + by_name) < _PERMUTED_Z:
        return
    accuracy, paired = table.trace() / len(rows), table[np.arange(len(meant)), meant].sum() / len(rows)
    read = ", ".join(f"{rows.labels[i]!r} as {rows.labels[meant[i]]!r}" for i in moved[:4])
    more = f" and {len(moved) - 4} more" if len(moved) > 4 else ""
    raise DataError(
        f"baseline implausible, labels probably permuted: {name} gets {100 * accuracy:.1f} % of {len(rows)} rows right, "
        f"and {100 * paired:.1f} % when the data's {read}{more} is read"
    )


def _best_pairing(table: Array) -> NDArray[np.int64]:
    """A one-to-one pairing of rows with columns by the largest counts first: greedy, and exact where the case is clear."""
    size = len(table)
    meant = np.full(size, -1)
    free = np.ones(size, dtype=bool)
    # Of equal counts, the diagonal goes first: an absent class keeps its name.
    order = np.argsort(-(2 * table + np.eye(size, dtype=np.int64)), axis=None, kind="stable")
    for row, column in zip(*np.unravel_index(order, table.shape), strict=True):
        if meant[row] < 0 and free[column]:
            meant[row], free[column] = column, False
    return meant
