"""Metrics against their definitions, and resamples against the plain way to draw them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertopt.gate import metrics
from bertopt.gate.metrics import METRICS, choose, resample, value


def one_hot(classes: np.ndarray, count: int) -> np.ndarray:
    return np.eye(count, dtype=bool)[classes]


pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=60)


@settings(deadline=None)
@given(pairs)
def test_f1_and_mcc_by_definition(rows: list[tuple[int, int]]) -> None:
    truth, answer = np.array(rows).T
    f1s = []
    for label in set(truth) | set(answer):
        hit = np.sum((truth == label) & (answer == label))
        f1s.append(2 * hit / (np.sum(truth == label) + np.sum(answer == label)))
    assert value(METRICS["f1"], one_hot(truth, 4), one_hot(answer, 4)) == pytest.approx(np.mean(f1s))
    x, y = one_hot(truth, 4).astype(float), one_hot(answer, 4).astype(float)
    covariances = [((a - a.mean(0)) * (b - b.mean(0))).sum() for a, b in ((x, y), (x, x), (y, y))]
    bottom = np.sqrt(covariances[1] * covariances[2])
    expected = covariances[0] / bottom if bottom > 1e-9 else 0.0
    assert value(METRICS["mcc"], one_hot(truth, 4), one_hot(answer, 4)) == pytest.approx(expected, abs=1e-9)


def test_f1_of_two_labels_is_that_of_the_second() -> None:
    metric = choose("f1", "single_label", ["no", "yes"], True)
    truth, answer = np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 1, 0])
    assert value(metric, one_hot(truth, 2), one_hot(answer, 2)) == pytest.approx(2 * 2 / (3 + 3))
    assert metric.title == "F1 of 'yes'"


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.array([(values < v).sum() + ((values == v).sum() + 1) / 2 for v in values])


floats = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=40)


@settings(deadline=None)
@given(floats)
def test_correlations_by_definition(rows: list[tuple[int, int]]) -> None:
    x, y = np.array(rows, dtype=float).T
    if len(set(x)) > 1 and len(set(y)) > 1:
        assert value(METRICS["pearson"], x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-9)
        expected = np.corrcoef(_ranks(x), _ranks(y))[0, 1]
        assert value(METRICS["spearman"], x, y) == pytest.approx(expected, abs=1e-9)
    else:
        assert value(METRICS["spearman"], x, y) == 0.0


@pytest.mark.parametrize("name", ["pearson", "spearman"])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_resample_is_the_metric_of_the_rows_drawn(name: str, grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "RESAMPLES", 5)
    rng = np.random.default_rng(2)
    x = rng.normal(size=40).round(1)
    y, z = x + rng.normal(size=40).round(1), x + rng.normal(size=40)
    groups = np.arange(40) // 4 if grouped else np.arange(40)
    found = resample(METRICS[name], x, (y, z), groups)
    draws = np.concatenate(list(metrics._draws(np.random.default_rng(metrics.SEED), int(groups.max()) + 1, 40)))
    if not METRICS[name].ranked:  # whose generator also draws flips, after each chunk
        assert len(draws) == 5
    for which, output in enumerate((y, z)):
        for at, weights in enumerate(draws):
            drawn = np.repeat(np.arange(40), weights[groups].astype(int))
            expected = value(METRICS[name], x[drawn], output[drawn])
            assert found[which].plain[at] == pytest.approx(expected, abs=1e-9)


def test_both_sides_see_the_same_resamples_and_the_same_ones_again() -> None:
    rng = np.random.default_rng(5)
    truth = one_hot(rng.integers(0, 3, 500), 3)
    answer = one_hot(np.where(rng.random(500) < 0.8, truth.argmax(1), 0), 3)
    groups = np.arange(500)
    first, second = resample(METRICS["f1"], truth, (answer, answer), groups)
    again, _ = resample(METRICS["f1"], truth, (answer, answer), groups)
    np.testing.assert_array_equal(first.plain, second.plain)
    np.testing.assert_array_equal(first.plain, again.plain)
    assert abs(first.plain.mean() - value(METRICS["f1"], truth, answer)) < 0.01


def test_whole_documents_are_drawn() -> None:
    """Ten copies of each row carry no more than the row: the spread is that of the rows, not a third of it."""
    rng = np.random.default_rng(6)
    truth = one_hot(np.zeros(200, int), 2)
    answer = one_hot((rng.random(200) < 0.3).astype(int), 2)
    alone, _ = resample(METRICS["accuracy"], truth, (answer, answer), np.arange(200))
    copies = np.repeat(np.arange(200), 10)
    together, _ = resample(METRICS["accuracy"], truth[copies], (answer[copies], answer[copies]), copies)
    assert together.plain.std() == pytest.approx(alone.plain.std(), rel=0.1)


def test_unseen_flips_leave_room_for_the_rule_of_three() -> None:
    truth = one_hot(np.arange(1000) % 2, 2)
    first, second = resample(METRICS["mcc"], truth, (truth, truth), np.arange(1000), (~truth, ~truth))
    assert np.ptp(first.plain - second.plain) == 0
    drop = np.quantile(first.plain - second.flipped, 0.95)  # three flips of 1,000, and MCC loses two points for each hundredth
    assert drop == pytest.approx(2 * 3 / 1000, rel=0.05)
