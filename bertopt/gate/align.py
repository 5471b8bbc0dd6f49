"""Reference, candidate and data brought to the same distinct rows and the same labels, or refused in a sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt import labels as label_names
from bertopt.errors import DataError, ModelError
from bertopt.gate.predictions import CLASSIFYING, SEPARATOR, Predictions, decisions, label_sets, text_hashes

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Answers:
    """One model's answers to the judged rows.

    `output` is what metrics see: decisions [n, K], values [n] or vectors [n, hidden].
    """

    logits: NDArray[np.float32]
    output: Array
    runner_up: Array | None  # decisions if every row flipped to its second choice
    names: list[str] | None  # the label of each row


@dataclass(frozen=True, eq=False)
class Rows:
    """The distinct rows that are judged, in the order of their hashes, so that the order of the file changes nothing."""

    task: str
    labels: list[str]
    positions: NDArray[np.int64]  # in the data file
    truth: Array | None  # decisions [n, K] or values [n]; None without labels
    truth_names: list[str] | None
    groups: NDArray[np.int64] | None  # None where rows are independent
    given: int
    notes: list[str]

    def __len__(self) -> int:
        return len(self.positions)


def align(
    reference: Predictions,
    candidate: Predictions,
    labels: Sequence[str] | None,
    groups: Sequence[int] | None,
    texts: Sequence[str] | None,
    pairs: Sequence[str | None] | None,
    calibration: Collection[str],
) -> Rows:
    """Raises DataError or ModelError naming what does not fit."""
    for side, predictions in (("reference", reference), ("candidate", candidate)):
        refuse_untrained(side, predictions.name, predictions.weights)
    same_rows(reference, candidate)
    if not len(reference):
        raise DataError(f"{reference.data or 'the evaluation set'} is empty: there is no row to judge by")
    for what, values in (("labels", labels), ("documents", groups), ("texts", texts)):
        if values is not None and len(values) != len(reference):
            raise DataError(
                f"there are {len(values)} {what} and predictions of {len(reference)} rows: they are of different data"
            )
    hashes = np.array(reference.text_hashes)
    if texts is not None:
        _first_difference(text_hashes(texts, pairs), reference.text_hashes, "the predictions were made from another text")
    used = [row for row, digest in enumerate(reference.text_hashes, 1) if digest in calibration]
    if used:
        raise DataError(
            f"{len(used)} of {len(hashes)} evaluation rows were used for calibration (the first is row {used[0]}): "
            "judge on rows that the plan has not seen"
        )
    bad = np.flatnonzero(~np.isfinite(reference.logits).all(axis=1))
    if len(bad):
        raise DataError(
            f"{len(bad)} rows of the reference {reference.name} have logits that are not finite (first: row {bad[0] + 1})"
        )

    _, positions, copies = np.unique(hashes, return_index=True, return_inverse=True)
    notes = []
    if len(positions) < len(hashes):
        notes.append(f"{len(hashes) - len(positions)} of {len(hashes)} rows repeat the text of another and were counted once")
        if labels is not None and len({(c, x) for c, x in zip(copies.ravel().tolist(), labels, strict=True)}) > len(positions):
            notes.append("some repeated texts carry different labels; the first was taken")
    truth, matched = (None, []) if labels is None else _truth(reference, labels)
    truth = None if truth is None else truth[positions]
    names = label_sets(truth, reference.label_names()) if truth is not None and truth.ndim == 2 else None
    return Rows(
        task=reference.task,
        labels=reference.label_names(),
        positions=positions,
        truth=truth,
        truth_names=names,
        groups=_shared(groups, positions),
        given=len(hashes),
        notes=notes + matched,
    )


def refuse_untrained(side: str, name: str, weights: str) -> None:
    """Raises ModelError where `weights` (of a Checkpoint or Predictions) are not trained."""
    if weights != "trained":
        what = "random weights" if weights == "random" else "an untrained head"
        raise ModelError(f"the {side} {name} has {what}, so its answers mean nothing: train it first")


def same_rows(reference: Predictions, candidate: Predictions) -> None:
    """Raises DataError where two predictions are not of the same rows by the same task and labels."""
    if reference.task not in (*CLASSIFYING, "regression", "embedding"):
        raise DataError(f"the task {reference.task} has no gate")
    if candidate.task != reference.task:
        raise DataError(f"{reference.name} is for {reference.task} and {candidate.name} for {candidate.task}")
    if None not in (reference.max_length, candidate.max_length) and reference.max_length != candidate.max_length:
        raise DataError(
            f"{reference.name} cut texts at {reference.max_length} tokens and {candidate.name} at {candidate.max_length}: "
            "the one would be blamed for what the other did not read"
        )
    if len(candidate) != len(reference):
        raise DataError(
            f"{reference.name} answered {len(reference)} rows and {candidate.name} {len(candidate)}: not the same data"
        )
    _first_difference(
        candidate.text_hashes, reference.text_hashes, f"{reference.name} and {candidate.name} answered different texts"
    )
    if candidate.logits.shape != reference.logits.shape:
        ours, theirs = reference.logits.shape[1], candidate.logits.shape[1]
        raise DataError(f"{reference.name} has {ours} logits a row and {candidate.name} has {theirs}")
    if reference.labels and candidate.labels and set(reference.labels) != set(candidate.labels):
        odd = sorted(set(reference.labels) ^ set(candidate.labels))
        raise DataError(f"{reference.name} and {candidate.name} do not have the same labels: {odd[0]!r} is only in one")


def answers(predictions: Predictions, rows: Rows) -> Answers:
    """Its logits on the judged rows, columns in the order of the reference's labels."""
    logits = predictions.logits[rows.positions]
    if predictions.labels and predictions.labels != rows.labels:
        logits = logits[:, [predictions.labels.index(name) for name in rows.labels]]
    output = decisions(rows.task, logits)
    if output is None:
        finite = np.nan_to_num(logits.astype(np.float64), posinf=0.0, neginf=0.0)  # a check of its own fails these
        return Answers(logits, finite[:, 0] if rows.task == "regression" else finite, None, None)
    return Answers(logits, output, _runner_up(rows.task, logits, output), label_sets(output, rows.labels))


def _runner_up(task: str, logits: NDArray[np.float32], output: Array) -> Array:
    flipped = output.copy()
    each = np.arange(len(logits))
    if task == "multi_label":
        nearest = np.abs(logits).argmin(axis=1)
        flipped[each, nearest] ^= True
        return flipped
    flipped[:] = False
    flipped[each, np.where(output, -np.inf, logits).argmax(axis=1)] = True
    return flipped


def _truth(reference: Predictions, labels: Sequence[str]) -> tuple[Array | None, list[str]]:
    """The labels of all rows [N, K] or [N] as the metrics take them, and how they were matched."""
    source = reference.data or "the data"
    if reference.task == "embedding":
        return None, []
    if reference.task == "regression":
        return np.array([_number(label, source, row) for row, label in enumerate(labels, 1)]), []
    sets = [[label] if reference.task == "single_label" else label.split(SEPARATOR) for label in labels]
    truth = np.zeros((len(sets), reference.logits.shape[1]), dtype=bool)
    notes: list[str] = []
    for nth in range(max(map(len, sets))):  # a label of every row at a time, so that the row named in an error is the file's
        codes, notes = label_names.match([one[min(nth, len(one) - 1)] for one in sets], reference.label_names(), source)
        truth[np.arange(len(sets)), codes] = True
    return truth, notes


def _number(label: str, source: str, row: int) -> float:
    try:
        value = float(label)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise DataError(f"{source}, row {row}: the label {label!r} is no number, and a regression is judged by numbers")
    return value


def _shared(groups: Sequence[int] | None, positions: NDArray[np.int64]) -> NDArray[np.int64] | None:
    if groups is None:
        return None
    kinds, codes = np.unique(np.asarray(groups)[positions], return_inverse=True)
    return None if len(kinds) == len(positions) else codes.ravel().astype(np.int64)


def _first_difference(ours: list[str], theirs: list[str], what: str) -> None:
    for row, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        if one != other:
            raise DataError(f"row {row} differs: {what}")
