"""Logits -> what they mean: softmax, sigmoid or the raw value, as the model's head was trained; an encoder's vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.errors import GraphError

SERVED = ("single_label", "multi_label", "regression", "embedding")


@dataclass(frozen=True)
class Answer:
    """One request's answer. Fields that its task does not have are None."""

    label: str | None = None  # single_label: the most probable one
    score: float | None = None  # single_label: the probability of `label`
    labels: tuple[str, ...] | None = None  # multi_label: all whose probability is above one half
    scores: dict[str, float] | None = None  # by label: softmax for single_label, sigmoid for multi_label
    value: float | tuple[float, ...] | None = None  # regression: the logit itself, or all of them
    embedding: NDArray[np.float32] | None = None  # [hidden]
    tokens: int = 0  # that were computed, special tokens included
    truncated: bool = False  # whether the text was longer than that

    def as_json(self) -> dict[str, Any]:
        """Plain JSON without the fields that are None."""
        found = {name: value for name, value in vars(self).items() if value is not None}
        if self.embedding is not None:
            found["embedding"] = self.embedding.tolist()
        return found


def interpret(
    task: str,
    labels: list[str] | None,
    logits: NDArray[np.float32],
    lengths: NDArray[np.int64],
    cut: NDArray[np.bool_] | None,
) -> list[Answer]:
    """The answers of rows whose logits are [N, outputs] and whose tokens were `lengths` [N]; `cut` marks truncated ones.

    Raises GraphError for logits that are NaN or infinite: no score can be made of them.
    """
    broken = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    if len(broken):
        raise GraphError(f"the model's output for request {int(broken[0]) + 1} is NaN or infinite")
    truncated = [False] * len(lengths) if cut is None else cut.tolist()
    about: list[dict[str, Any]] = [
        {"tokens": tokens, "truncated": flag} for tokens, flag in zip(lengths.tolist(), truncated, strict=True)
    ]
    if task == "embedding":
        return [Answer(embedding=row, **more) for row, more in zip(logits, about, strict=True)]
    if task == "regression":
        values = [row[0] if len(row) == 1 else tuple(row) for row in logits.tolist()]
        return [Answer(value=value, **more) for value, more in zip(values, about, strict=True)]
    assert labels is not None
    if task == "multi_label":
        chosen = [tuple(name for name, logit in zip(labels, row, strict=True) if logit > 0) for row in logits.tolist()]
        rows = [dict(zip(labels, row, strict=True)) for row in sigmoid(logits).tolist()]
        return [Answer(labels=c, scores=row, **more) for c, row, more in zip(chosen, rows, about, strict=True)]
    probabilities = softmax(logits)
    best = probabilities.argmax(axis=1).tolist()
    return [
        Answer(labels[top], row[top], scores=dict(zip(labels, row, strict=True)), **more)
        for row, top, more in zip(probabilities.tolist(), best, about, strict=True)
    ]


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    odds = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def sigmoid(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-np.clip(logits.astype(np.float64), -500.0, 500.0)))
