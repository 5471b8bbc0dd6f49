"""Rows that share documents: how much fewer they are worth, and that no more candidates pass than the confidence says."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bertopt.gate import GateVerdict, judge
from tests.gate_data import flipped, int8, labels, predictions

DOCUMENTS, ROWS_EACH = 200, 6
TRUTH = np.arange(DOCUMENTS * ROWS_EACH) % 2


def judged(margins: np.ndarray, moved: np.ndarray, groups: np.ndarray, max_drop: float) -> GateVerdict:
    """`margins` [n] are the reference's logit differences towards the right label, `moved` [n] the candidate's."""

    def sides(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        towards = np.where(TRUTH == 1, values, -values).astype(np.float32)
        return (towards > 0).astype(np.int64), np.stack([-towards, towards], axis=1)

    (right, logits), (still, others) = sides(margins), sides(moved)
    reference = dataclasses.replace(predictions(right), logits=logits)
    candidate = dataclasses.replace(int8(still), logits=others)
    return judge(reference, candidate, labels(TRUTH), metric="accuracy", max_drop=max_drop, groups=groups.tolist())


def world(generator: np.random.Generator, documents: int, within: float, shift: float) -> tuple[np.ndarray, ...]:
    """Margins, and the candidate's, which lie lower on average; `within` and `shift` are the shares that documents have in
    the variance of the margins and of what quantizing moves."""
    groups = np.repeat(np.arange(documents), ROWS_EACH)

    def noise(share: float) -> np.ndarray:
        common = generator.normal(size=documents)[groups]
        return np.sqrt(share) * common + np.sqrt(1 - share) * generator.normal(size=len(groups))

    margins = 1.6 + 1.2 * noise(within)
    return groups, margins, margins - 0.045 + 0.12 * noise(shift)


@pytest.mark.parametrize(("within", "shift"), [(0.5, 0.0), (0.8, 0.6)])
def test_no_more_pass_at_the_margin_than_the_confidence_says(within: float, shift: float) -> None:
    generator = np.random.default_rng(0)
    _, margins, moved = world(generator, 100_000, within, shift)
    drop = 100 * float((margins > 0).mean() - (moved > 0).mean())
    trials = 40
    passed = sum(
        judged(margins, moved, groups, drop).drop.decision == "passed"
        for groups, margins, moved in (world(generator, DOCUMENTS, within, shift) for _ in range(trials))
    )
    assert passed <= 6  # more than 6 of 40 have a chance of 0.3 % where one passes in 20


def test_documents_that_are_easy_or_hard_as_a_whole_cost_little_where_flips_do_not_cluster() -> None:
    groups = np.repeat(np.arange(DOCUMENTS), ROWS_EACH)
    margins = np.where(groups % 2 == 0, 3.0, 6.0)  # how sure an answer is depends on its document alone
    margins += np.random.default_rng(0).normal(scale=0.01, size=len(groups))
    edge = np.arange(0, len(groups), 20)
    margins[edge] = 0.05  # and the rows on the edge lie anywhere
    moved = margins.copy()
    moved[edge[:3]] = -0.05
    found = judged(margins, moved + 1e-4, groups, 2.0)
    assert found.drop.effective_rows is not None
    assert found.drop.effective_rows > 0.7 * len(groups)
    assert found.verdict == "passed"


def test_rows_on_the_edge_that_share_documents_are_worth_less() -> None:
    groups = np.repeat(np.arange(DOCUMENTS), ROWS_EACH)
    margins = np.where(groups < 10, 0.05, 3.0) + np.random.default_rng(0).normal(scale=0.001, size=len(groups))
    moved = margins.copy()
    moved[0] = -0.05  # one flip, of which nobody can tell whether flips cluster
    found = judged(margins, moved + 1e-4, groups, 2.0)
    assert found.drop.effective_rows is not None
    assert found.drop.effective_rows < 0.3 * len(groups)


def test_rows_of_few_documents_prove_less() -> None:
    truth, reference, candidate = flipped(3000, 0.9, 5, 5)
    apart = judge(predictions(reference), int8(candidate), labels(truth), metric="accuracy", max_drop=0.5)
    alone = judge(
        predictions(reference), int8(candidate), labels(truth), metric="accuracy", max_drop=0.5, groups=list(range(3000))
    )
    few = judge(
        predictions(reference),
        int8(candidate),
        labels(truth),
        metric="accuracy",
        max_drop=0.5,
        groups=[i // 300 for i in range(3000)],
    )
    assert apart.verdict == alone.verdict == "passed"
    assert alone.drop == apart.drop
    assert few.verdict == "inconclusive"
    assert few.drop.effective_rows == pytest.approx(10)
    assert "10 documents" in few.drop.method


def test_flips_in_one_document_widen_the_interval() -> None:
    truth, reference, _ = flipped(3000, 0.9, 0, 0)
    candidate = reference.copy()
    candidate[:30] ^= 1  # six documents of five rows, whole
    groups = [i // 5 for i in range(3000)]
    sides = predictions(reference), int8(candidate), labels(truth)
    together = judge(*sides, metric="accuracy", max_drop=0.5, groups=groups)
    spread = judge(*sides, metric="accuracy", max_drop=0.5)
    assert together.drop.points == spread.drop.points
    assert together.drop.high_points - together.drop.low_points > 1.5 * (spread.drop.high_points - spread.drop.low_points)
