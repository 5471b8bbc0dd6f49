"""The gate without labels, on embeddings, on regressions, on several labels a row, and by metrics other than accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bertopt.errors import DataError, UsageError
from bertopt.gate import judge
from tests.gate_data import failed, flipped, gate, int8, predictions

# Without labels


def test_without_labels_agreement_decides_and_other_metrics_are_refused() -> None:
    _, reference, candidate = flipped(2000, 0.9, 2, 1)
    found = judge(predictions(reference), int8(candidate), None, metric="agreement", max_drop=0.5)
    assert found.verdict == "passed"
    assert found.drop.points == pytest.approx(0.15)
    assert [f.worse for f in found.flips] == [None] * len(found.flips)
    many = judge(predictions(reference), int8(1 - candidate), None, metric="agreement", max_drop=0.5)
    assert many.verdict == "failed"
    with pytest.raises(UsageError, match="without labels --metric takes agreement or cosine"):
        judge(predictions(reference), int8(candidate), None, metric="accuracy", max_drop=0.5)


def test_always_one_class_fails_without_labels_too() -> None:
    _, reference, _ = flipped(1000, 0.9, 0, 0, 0.95)
    found = judge(predictions(reference), int8(np.ones(1000, int)), None, metric="agreement", max_drop=60)
    assert "more than one answer" in failed(found)


@pytest.mark.parametrize(("noise", "verdict"), [(0.01, "passed"), (0.5, "failed")])
def test_embeddings_are_judged_by_cosine(noise: float, verdict: str) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(300, 16)).astype(np.float32)
    near = (vectors + noise * rng.normal(size=vectors.shape)).astype(np.float32)
    sides = {"task": "embedding", "labels": None}
    zeros = np.zeros(300, int)
    found = judge(
        predictions(zeros, logits=vectors, **sides), int8(zeros, logits=near, **sides), None, metric="cosine", max_drop=0.5
    )
    assert found.verdict == verdict
    assert found.label_agreement is None


# Other metrics


@pytest.mark.parametrize("metric", ["f1", "mcc"])
@pytest.mark.parametrize(
    ("rows", "worse", "verdict"), [(3000, 2, "passed"), (3000, 90, "failed"), (300, 1, "inconclusive"), (25, 0, "inconclusive")]
)
def test_bootstrapped_class_metrics(metric: str, rows: int, worse: int, verdict: str) -> None:
    assert gate(rows, 0.9, worse, 0, metric=metric, max_drop=0.75).verdict == verdict


def test_no_flip_does_not_make_a_bootstrap_a_point() -> None:
    found = gate(300, 0.9, 0, 0, metric="f1")
    assert found.drop.points == 0
    assert found.drop.low_points < -0.3
    assert found.drop.high_points > 0.3


def regressions(rows: int, noise: float) -> tuple[Any, Any, list[str]]:
    rng = np.random.default_rng(rows)
    truth = rng.normal(size=rows)
    reference = truth + 0.3 * rng.normal(size=rows)
    candidate = reference + noise * rng.normal(size=rows)
    sides = {"task": "regression", "labels": None}
    zeros = np.zeros(rows, int)
    one = predictions(zeros, logits=reference[:, None].astype(np.float32), **sides)
    other = int8(zeros, logits=candidate[:, None].astype(np.float32), **sides)
    return one, other, [f"{t:.6f}" for t in truth]


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
@pytest.mark.parametrize(
    ("rows", "noise", "verdict"), [(600, 0.01, "passed"), (600, 0.4, "failed"), (50, 0.01, "inconclusive")]
)
def test_correlations(metric: str, rows: int, noise: float, verdict: str) -> None:
    one, other, truth = regressions(rows, noise)
    found = judge(one, other, truth, metric=metric, max_drop=0.5)
    assert found.verdict == verdict
    assert found.reference.value.value > 0.9


def test_a_regression_without_numbers_or_skill_is_refused() -> None:
    one, other, truth = regressions(200, 0.01)
    with pytest.raises(DataError, match="row 3: the label 'high' is no number"):
        judge(one, other, [*truth[:2], "high", *truth[3:]], metric="pearson", max_drop=0.5)
    with pytest.raises(DataError, match="too poor to judge by"):
        judge(one, other, [str(-float(t)) for t in truth], metric="pearson", max_drop=0.5)


def test_many_labels_a_row() -> None:
    rng = np.random.default_rng(0)
    names = ["anger", "joy", "fear"]
    truth = rng.random((1500, 3)) < 0.4
    wrong = rng.random(1500) < 0.1
    answers = truth.copy()
    answers[wrong, 0] ^= True
    logits = np.where(answers, 1, -1).astype(np.float32)
    other = (logits + rng.uniform(-0.1, 0.1, logits.shape)).astype(np.float32)
    sides = {"task": "multi_label", "labels": names}
    zeros = np.zeros(1500, int)
    kept = truth.any(axis=1)
    one, two = (predictions(zeros[kept], logits=x[kept], precision=p, **sides) for x, p in ((logits, "fp32"), (other, "int8")))
    texts_of_labels = ["|".join(names[i] for i in np.flatnonzero(row)) for row in truth[kept]]
    for metric in ("accuracy", "f1"):
        found = judge(one, two, texts_of_labels, metric=metric, max_drop=0.5)
        assert found.verdict == "passed"
    assert found.metric_title == "macro F1"
    with pytest.raises(DataError, match="row 2"):
        judge(one, two, [texts_of_labels[0], "joy|envy", *texts_of_labels[2:]], metric="accuracy", max_drop=0.5)
