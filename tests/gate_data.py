"""Predictions made by hand for the gate's tests, and verdicts on them: the counts that matter are exact, and no model runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.gate import GateVerdict, Predictions, judge, text_hash

NAMES = ["negative", "positive"]


def texts(count: int) -> list[str]:
    return [f"text number {index}" for index in range(count)]


def predictions(answers: Any, *, names: list[str] | None = None, noise: int | None = None, **changes: Any) -> Predictions:
    """One-label predictions that answer class `answers[i]` to row i; `noise` is a seed of differences that flip nothing."""
    answers = np.asarray(answers, dtype=np.int64)
    names = NAMES if names is None else names
    logits = np.full((len(answers), len(names)), -1.0, dtype=np.float32)
    logits[np.arange(len(answers)), answers] = 1.0
    if noise is not None:
        logits += np.random.default_rng(noise).uniform(-0.1, 0.1, logits.shape).astype(np.float32)
    values: dict[str, Any] = {
        "name": "model",
        "backend": "eager",
        "precision": "fp32",
        "task": "single_label",
        "labels": names,
        "logits": logits,
        "text_hashes": [text_hash(t) for t in texts(len(answers))],
        "data": "eval.jsonl",
        "data_fingerprint": "d1",
    }
    return Predictions(**{**values, **changes})


def int8(answers: Any, **changes: Any) -> Predictions:
    return predictions(answers, **{"name": "model.plan", "backend": "OpenVINO", "precision": "int8", "noise": 1, **changes})


def flipped(
    rows: int, accuracy: float, worse: int, better: int, share: float = 0.5
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(truth, reference, candidate) of two classes: `share` of rows are class 1, exactly `worse` and `better` rows flip."""
    rng = np.random.default_rng(rows)
    truth = (np.arange(rows) < round(share * rows)).astype(np.int64)
    order = rng.permutation(rows)
    wrong, right = np.split(order, [round((1 - accuracy) * rows)])
    reference = truth.copy()
    reference[wrong] ^= 1
    candidate = reference.copy()
    candidate[right[:worse]] ^= 1
    candidate[wrong[:better]] ^= 1
    return truth, reference, candidate


def labels(truth: Any, names: list[str] | None = None) -> list[str]:
    return [(names or NAMES)[index] for index in truth]


def four(seed: int = 1, accuracy: float = 0.9) -> tuple[Any, Any, list[str]]:
    """(truth, answers, names) of four classes."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 4, 800)
    answers = np.where(rng.random(800) < accuracy, truth, rng.integers(0, 4, 800))
    return truth, answers, ["Business", "Sci/Tech", "Sports", "World"]


def gate(rows: int, accuracy: float, worse: int, better: int, *, share: float = 0.5, **options: Any) -> GateVerdict:
    """The verdict on `flipped`; `options` are those of `judge`."""
    truth, reference, candidate = flipped(rows, accuracy, worse, better, share)
    options = {"metric": "accuracy", "max_drop": 0.5, **options}
    return judge(predictions(reference), int8(candidate), labels(truth), **options)


def statuses(verdict: GateVerdict) -> dict[str, str]:
    return {check.name: check.status for check in verdict.checks}


def failed(verdict: GateVerdict) -> list[str]:
    return [check.name for check in verdict.checks if check.status == "failed"]
