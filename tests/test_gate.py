"""Verdicts of the gate on predictions whose counts are known: too few rows, copies, collapse, no lower precision."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertopt.errors import DataError
from bertopt.gate import GateVerdict, judge, text_hash, text_hashes
from bertopt.records import from_json, to_json
from tests.gate_data import NAMES, failed, flipped, gate, int8, labels, predictions, texts

# too small to decide


@pytest.mark.parametrize(
    ("rows", "worse", "better", "verdict"),
    [
        (20, 1, 0, "inconclusive"),
        (20, 0, 0, "inconclusive"),
        (872, 2, 1, "inconclusive"),
        (872, 0, 0, "passed"),
        (2693, 5, 3, "passed"),
        (2693, 40, 5, "failed"),
    ],
)
def test_verdict_and_exit_code(rows: int, worse: int, better: int, verdict: str) -> None:
    found = gate(rows, 0.9, worse, better)
    assert found.verdict == verdict
    assert found.exit_code == {"passed": 0, "failed": 1, "inconclusive": 3}[verdict]
    assert (found.drop.worse, found.drop.better, found.rows) == (worse, better, rows)
    assert found.drop.points == pytest.approx(100 * (worse - better) / rows)
    assert found.reasons
    assert found.drop.low_points < found.drop.points < found.drop.high_points
    assert (found.drop.rows_needed is not None) == (verdict == "inconclusive")


def test_one_flip_of_twenty_says_how_little_that_is() -> None:
    found = gate(20, 0.9, 1, 0)
    assert found.reference.value.value == pytest.approx(0.9)
    assert 12 < 100 * (found.reference.value.high - found.reference.value.low) / 2 < 14  # Wilson; Wald's is 13.1
    assert "±13.1 points" in found.next
    assert "599" in found.next  # rows that half a point takes with no flip at all
    assert found.drop.rows_needed is not None
    assert found.drop.rows_needed > 20


def test_three_flips_of_872() -> None:
    found = gate(872, 0.9, 2, 1)
    assert found.drop.p_pass == pytest.approx(0.084, abs=0.002)
    assert found.drop.rows_needed == pytest.approx(1240, abs=30)
    assert sum(f.rows for f in found.flips) == found.changed_rows == 3


def test_no_rows_is_an_error_and_one_row_decides_nothing() -> None:
    with pytest.raises(DataError, match=r"eval\.jsonl is empty") as caught:
        judge(predictions([]), int8([]), [], metric="accuracy", max_drop=0.5)
    assert caught.value.exit_code == 2
    found = judge(predictions([1]), int8([1]), ["positive"], metric="accuracy", max_drop=0.5)
    assert found.verdict == "inconclusive"


def test_copies_of_one_row_are_one_row() -> None:
    one = {"text_hashes": [text_hash("the same")] * 100}
    found = judge(predictions([1] * 100, **one), int8([1] * 100, **one), ["positive"] * 100, metric="accuracy", max_drop=0.5)
    assert (found.verdict, found.rows, found.rows_given) == ("inconclusive", 1, 100)
    assert "99 of 100 rows repeat" in found.notes[0]


def test_a_hundred_copies_of_a_set_prove_no_more_than_the_set() -> None:
    truth, reference, candidate = flipped(60, 0.9, 1, 0)
    once = judge(predictions(reference), int8(candidate), labels(truth), metric="accuracy", max_drop=0.5)
    hashes = text_hashes(texts(60)) * 100

    def copied(side: Any) -> Any:
        return dataclasses.replace(side, logits=np.tile(side.logits, (100, 1)), text_hashes=hashes)

    hundred = judge(
        copied(predictions(reference)), copied(int8(candidate)), labels(truth) * 100, metric="accuracy", max_drop=0.5
    )
    assert hundred.drop == once.drop
    assert hundred.rows_given == 6000
    conflicting = labels(truth) * 99 + labels(1 - truth)
    noted = judge(copied(predictions(reference)), copied(int8(candidate)), conflicting, metric="accuracy", max_drop=0.5)
    assert any("different labels" in note for note in noted.notes)


# collapse that the metric hides


@pytest.mark.parametrize("share", [0.5, 0.95])
@pytest.mark.parametrize(("metric", "max_drop"), [("accuracy", 60.0), ("f1", 60.0), ("accuracy", 0.5)])
def test_always_one_class_fails_under_any_margin(share: float, metric: str, max_drop: float) -> None:
    truth, reference, _ = flipped(1000, 0.98, 0, 0, share)
    found = judge(predictions(reference), int8(np.ones(1000, int)), labels(truth), metric=metric, max_drop=max_drop)
    assert found.verdict == "failed"
    assert "more than one answer" in failed(found)
    assert found.worst_class == "negative"
    assert any("always answers 'positive'" in reason for reason in found.reasons)
    answered = {c.label: c.answered_candidate for c in found.classes}
    assert answered == {"negative": 0, "positive": 1000}


def test_a_label_that_collapses_fails_though_f1_does_not_see_it() -> None:
    truth, reference, _ = flipped(1000, 1.0, 0, 0, 0.95)
    candidate = reference.copy()
    candidate[np.flatnonzero(truth == 0)[:25]] = 1  # half of the 50 negative rows; F1 of "positive" hardly moves
    found = judge(predictions(reference), int8(candidate), labels(truth), metric="f1", max_drop=3)
    assert found.drop.decision == "passed"
    assert failed(found) == ["no label collapses"]
    assert "'negative' falls from 100.0 to 50.0 %" in found.reasons[0]


def test_flips_both_ways_fail_though_accuracy_stays() -> None:
    found = gate(4000, 0.7, 600, 600, max_drop=5)
    assert found.drop.points == 0
    assert found.drop.decision == "passed"
    assert failed(found)[0] == "label agreement"
    assert found.label_agreement is not None
    assert found.label_agreement.value == pytest.approx(0.7)
    assert gate(4000, 0.7, 600, 600, max_drop=50, min_agreement=60).verdict == "passed"


def test_flips_by_label_and_the_rows_that_changed() -> None:
    truth, reference, candidate = flipped(900, 0.9, 5, 2)
    found = judge(predictions(reference), int8(candidate), labels(truth), metric="accuracy", max_drop=0.5, texts=texts(900))
    assert sum(f.worse or 0 for f in found.flips) == 5
    assert sum(f.better or 0 for f in found.flips) == 2
    for flip in found.flips:
        a, b = NAMES.index(flip.reference), NAMES.index(flip.candidate)
        assert flip.rows == np.sum((reference == a) & (candidate == b))
    assert [row.effect for row in found.changed] == ["worse"] * 5 + ["better"] * 2
    first = found.changed[0]
    assert first.text == texts(900)[first.row - 1]
    assert first.reference == NAMES[reference[first.row - 1]] == first.label


def test_a_long_list_of_changed_rows_is_cut_and_counted() -> None:
    found = gate(3000, 0.9, 200, 10)
    assert found.changed_rows == 210
    assert len(found.changed) == 50


# What is not a lower precision, or not a number


def test_bit_identical_logits_are_int8_in_name_only() -> None:
    truth, reference, _ = flipped(1000, 0.9, 0, 0)
    same = predictions(reference, precision="int8", name="model.plan")
    found = judge(predictions(reference), same, labels(truth), metric="accuracy", max_drop=0.5)
    assert failed(found) == ["int8 in effect"]
    assert "int8 in name only" in found.reasons[0]
    again = judge(predictions(reference), predictions(reference), labels(truth), metric="accuracy", max_drop=0.5)
    assert again.verdict == "passed"  # the same precision may well give the same bits


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [[17], range(1000)])
def test_logits_that_are_not_finite_fail(value: float, rows: Any) -> None:
    truth, reference, _ = flipped(1000, 0.9, 0, 0)
    broken = int8(reference)
    broken.logits[list(rows), 0] = value
    found = judge(predictions(reference), broken, labels(truth), metric="accuracy", max_drop=0.5)
    assert "finite logits" in failed(found)
    json.loads(to_json(found))
    with pytest.raises(DataError, match="not finite"):
        judge(broken, int8(reference), labels(truth), metric="accuracy", max_drop=0.5)


# What does not depend on the order of rows


@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(["accuracy", "f1", "agreement"]), st.booleans())
def test_the_order_of_the_rows_changes_nothing(random: Any, metric: str, grouped: bool) -> None:
    truth, reference, candidate = flipped(240, 0.9, 6, 3)
    order = list(range(240))
    random.shuffle(order)
    groups = [i // 4 for i in range(240)] if grouped else None
    one, other = predictions(reference), int8(candidate)

    def turned(side: Any) -> Any:
        return dataclasses.replace(side, logits=side.logits[order], text_hashes=[side.text_hashes[i] for i in order])

    plain = judge(one, other, labels(truth), metric=metric, max_drop=2, groups=groups)
    mixed = judge(
        turned(one),
        turned(other),
        labels(truth[order]),
        metric=metric,
        max_drop=2,
        groups=groups and [groups[i] for i in order],
    )
    assert dataclasses.replace(mixed, changed=[]) == dataclasses.replace(plain, changed=[])


def test_a_verdict_is_plain_json() -> None:
    found = gate(2693, 0.9, 5, 3, texts=None, min_speedup=None)
    assert from_json(GateVerdict, to_json(found)) == found


def test_more_confidence_takes_more_evidence() -> None:
    assert gate(800, 0.9, 0, 0, confidence=95).verdict == "passed"
    assert gate(800, 0.9, 0, 0, confidence=99.9).verdict == "inconclusive"
    assert gate(800, 0.9, 0, 0).drop.interval_percent == 90
