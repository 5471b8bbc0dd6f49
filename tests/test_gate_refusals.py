"""What the gate refuses to judge: labels in another order, references that are no better than chance, rows of another file."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from bertopt.errors import DataError, ModelError, UsageError
from bertopt.gate import judge, text_hash, text_hashes
from tests.gate_data import NAMES, flipped, four, gate, int8, labels, predictions, statuses, texts

# DAT-04: labels and their order


def test_labels_match_by_name_and_numbers_are_said() -> None:
    truth, answers, names = four()
    reference, candidate = predictions(answers, names=names), int8(answers, names=names)
    by_name = judge(reference, candidate, labels(truth, names), metric="accuracy", max_drop=1)
    by_number = judge(reference, candidate, [str(t) for t in truth], metric="accuracy", max_drop=1)
    assert by_name.notes == []
    assert "taken for indices" in by_number.notes[0]
    assert by_name.drop == by_number.drop


@pytest.mark.parametrize("label", ["neutral", "-1", "2", "LABEL_0"])
def test_a_label_that_the_model_does_not_know_is_named(label: str) -> None:
    truth, reference, candidate = flipped(100, 0.9, 0, 0)
    given_labels = labels(truth)
    given_labels[41] = label
    with pytest.raises(DataError, match="row 42") as caught:
        judge(predictions(reference), int8(candidate), given_labels, metric="accuracy", max_drop=0.5)
    assert repr(label) in str(caught.value)


def test_permuted_labels_are_refused_and_the_permutation_named() -> None:
    truth, reference, candidate = flipped(872, 0.97, 0, 0)
    with pytest.raises(DataError, match="labels probably permuted") as caught:
        judge(predictions(reference), int8(candidate), labels(1 - truth), metric="accuracy", max_drop=0.5)
    assert "3.0 % of 872 rows" in str(caught.value)
    assert "97.0 % when the data's 'negative' as 'positive'" in str(caught.value)
    assert caught.value.exit_code == 2


def test_two_of_four_labels_swapped_are_refused_though_accuracy_is_above_chance() -> None:
    truth, answers, names = four()
    swapped = np.array([1, 0, 2, 3])[truth]
    assert (swapped == answers).mean() > 0.4
    with pytest.raises(DataError, match="'Business' as 'Sci/Tech', 'Sci/Tech' as 'Business'"):
        judge(
            predictions(answers, names=names), int8(answers, names=names), labels(swapped, names), metric="accuracy", max_drop=1
        )


def test_a_candidate_with_its_labels_in_another_order_is_matched_by_name() -> None:
    truth, reference, candidate = flipped(1000, 0.9, 3, 3)
    plain = judge(predictions(reference), int8(candidate), labels(truth), metric="accuracy", max_drop=1)
    turned = dataclasses.replace(int8(candidate), labels=NAMES[::-1], logits=int8(candidate).logits[:, ::-1])
    other = judge(predictions(reference), turned, labels(truth), metric="accuracy", max_drop=1)
    assert other == plain
    renamed = int8(candidate, names=["negative", "neutral"])
    with pytest.raises(DataError, match="'neutral' is only in one"):
        judge(predictions(reference), renamed, labels(truth), metric="accuracy", max_drop=1)


# References that are refused


@pytest.mark.parametrize(("weights", "said"), [("random head", "untrained head"), ("random", "random weights")])
def test_an_untrained_reference_is_refused(weights: str, said: str) -> None:
    truth, reference, candidate = flipped(1000, 0.9, 0, 0)
    with pytest.raises(ModelError, match=said) as caught:
        judge(predictions(reference, weights=weights), int8(candidate), labels(truth), metric="accuracy", max_drop=0.5)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("accuracy", "share"), [(0.5, 0.5), (0.51, 0.5), (0.95, 0.95)])
def test_a_reference_no_better_than_one_answer_is_refused(accuracy: float, share: float) -> None:
    truth, reference, candidate = flipped(1000, accuracy, 0, 0, share)
    with pytest.raises(DataError, match="too poor to judge by on 1000 rows"):
        judge(predictions(reference), int8(candidate), labels(truth), metric="accuracy", max_drop=0.5)


def test_a_reference_that_helps_a_rare_class_may_be_judged_by_f1() -> None:
    """On 95/5 an honest detector can be less accurate than a constant, and is no constant."""
    truth = np.zeros(1000, int)
    truth[:50] = 1
    reference = truth.copy()
    reference[:15] = 0
    reference[100:160] = 1
    assert (reference == truth).mean() < 0.95
    found = judge(predictions(reference), int8(reference), labels(truth), metric="f1", max_drop=5)
    assert found.verdict == "passed"
    assert found.metric_title == "F1 of 'positive'"
    assert found.reference.value.value == pytest.approx(2 * 35 / (50 + 95))


def test_few_rows_leave_a_poor_reference_open() -> None:
    truth, reference, candidate = flipped(16, 0.5, 0, 0)
    found = judge(predictions(reference), int8(candidate), labels(truth), metric="accuracy", max_drop=50)
    assert statuses(found)["fit reference"] == "inconclusive"


def test_rows_used_for_calibration_are_refused() -> None:
    truth, reference, candidate = flipped(100, 0.9, 0, 0)
    used = {text_hash("another text"), text_hash(texts(100)[7])}
    with pytest.raises(DataError, match=r"1 of 100 evaluation rows were used for calibration \(the first is row 8\)"):
        judge(predictions(reference), int8(candidate), labels(truth), metric="accuracy", max_drop=0.5, calibration=used)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"text_hashes": text_hashes(texts(101)[1:])}, "row 1 differs"),
        ({"task": "multi_label"}, "multi_label"),
        ({"logits": np.zeros((100, 3), np.float32)}, "3"),
    ],
)
def test_predictions_of_other_rows_are_refused(changes: dict[str, Any], said: str) -> None:
    truth, reference, candidate = flipped(100, 0.9, 0, 0)
    with pytest.raises(DataError, match=said):
        judge(
            predictions(reference),
            dataclasses.replace(int8(candidate), **changes),
            labels(truth),
            metric="accuracy",
            max_drop=1,
        )


def test_texts_that_were_not_the_ones_answered_are_refused() -> None:
    truth, reference, candidate = flipped(100, 0.9, 0, 0)
    other = texts(100)
    other[3] = "edited since"
    with pytest.raises(DataError, match="row 4 differs"):
        judge(predictions(reference), int8(candidate), labels(truth), metric="accuracy", max_drop=1, texts=other)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_drop": -0.5}, "--max-drop is -0.5"),
        ({"max_drop": math.nan}, "--max-drop is nan"),
        ({"max_drop": 100}, "--max-drop is 100"),
        ({"confidence": 50}, "--confidence is 50"),
        ({"confidence": 99.99}, "--confidence is 99.99"),
        ({"min_speedup": 0}, "--min-speedup is 0"),
        ({"metric": "bleu"}, "no metric 'bleu'"),
        ({"metric": "pearson"}, "accuracy, f1, mcc, agreement, cosine is"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        gate(100, 0.9, 0, 0, **options)
