"""Verdicts of the gate on predictions whose counts are known."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertopt.errors import DataError, ModelError, UsageError
from bertopt.gate import GateVerdict, judge, load_baseline, save_predictions, text_hash, text_hashes
from bertopt.records import from_json, save, to_json
from tests.gate_data import NAMES, flipped, int8, labels, predictions, texts


def gate(rows: int, accuracy: float, worse: int, better: int, *, share: float = 0.5, **options: Any) -> GateVerdict:
    truth, reference, candidate = flipped(rows, accuracy, worse, better, share)
    options = {"metric": "accuracy", "max_drop": 0.5, **options}
    return judge(predictions(reference), int8(candidate), labels(truth), **options)


def statuses(verdict: GateVerdict) -> dict[str, str]:
    return {check.name: check.status for check in verdict.checks}


def failed(verdict: GateVerdict) -> list[str]:
    return [check.name for check in verdict.checks if check.status == "failed"]


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


# DAT-04: labels and their order


def four(seed: int = 1, accuracy: float = 0.9) -> tuple[Any, Any, list[str]]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 4, 800)
    answers = np.where(rng.random(800) < accuracy, truth, rng.integers(0, 4, 800))
    return truth, answers, ["Business", "Sci/Tech", "Sports", "World"]


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


# Documents that rows share


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


# Speed, evidence and what was accepted last


@pytest.mark.parametrize(
    ("speeds", "least", "verdict"),
    [
        ((100, None, None, 150, None, None), 1.2, "passed"),
        ((100, None, None, 90, None, None), 1.0, "failed"),
        ((100, 95, 105, 102, 97, 107), 1.0, "inconclusive"),  # inside the spread
        ((100, None, None, None, None, None), 1.0, "inconclusive"),
        ((100, None, None, 90, None, None), None, "passed"),
    ],
)
def test_joint_verdict_with_speed(speeds: tuple[float | None, ...], least: float | None, verdict: str) -> None:
    truth, reference, candidate = flipped(1000, 0.9, 0, 0)
    fields = ["throughput_seq_s", "throughput_low_seq_s", "throughput_high_seq_s"]
    before = predictions(reference, **dict(zip(fields, speeds[:3], strict=True)))
    after = int8(candidate, **dict(zip(fields, speeds[3:], strict=True)))
    found = judge(before, after, labels(truth), metric="accuracy", max_drop=0.5, min_speedup=least)
    assert found.verdict == verdict
    assert found.accuracy_verdict == "passed"
    if verdict == "failed":
        assert "0.90x the reference" in found.reasons[0]
        assert "not faster" in found.next


def test_speeds_of_two_devices_are_not_compared() -> None:
    truth, reference, candidate = flipped(1000, 0.9, 0, 0)
    before = predictions(reference, throughput_seq_s=100.0, device="NVIDIA H200")
    after = int8(candidate, throughput_seq_s=900.0, device="Xeon")
    found = judge(before, after, labels(truth), metric="accuracy", max_drop=0.5, min_speedup=1.0)
    assert statuses(found)["speed-up"] == "inconclusive"


def test_a_proxy_is_called_one() -> None:
    truth, reference, candidate = flipped(1000, 0.9, 0, 0)
    found = judge(predictions(reference), int8(candidate, evidence="proxy"), labels(truth), metric="accuracy", max_drop=0.5)
    assert found.evidence == "proxy"
    assert "gate the plan itself" in found.next


def test_a_fall_below_the_last_accepted_plan_fails_though_the_margin_holds(tmp_path: Path) -> None:
    truth, reference, candidate = flipped(4000, 0.9, 12, 0)
    accepted = int8(reference, name="last.plan", noise=2)
    save_predictions(accepted, tmp_path / "accepted.jsonl")
    baseline = load_baseline(tmp_path / "accepted.jsonl")
    found = judge(predictions(reference), int8(candidate), labels(truth), metric="accuracy", max_drop=1, baseline=baseline)
    assert found.drop.decision == "passed"
    assert failed(found) == ["last accepted plan"]
    assert found.regression is not None
    assert found.regression.worse == 12
    same = judge(predictions(reference), int8(reference), labels(truth), metric="accuracy", max_drop=1, baseline=baseline)
    assert same.verdict == "passed"


def test_an_earlier_verdict_as_the_baseline(tmp_path: Path) -> None:
    truth, reference, better = flipped(4000, 0.9, 0, 40)
    accepted = judge(predictions(reference), int8(better), labels(truth), metric="accuracy", max_drop=0.5)
    save(accepted, tmp_path / "gate.json")
    baseline = load_baseline(tmp_path / "gate.json")
    assert baseline == accepted
    found = judge(predictions(reference), int8(reference), labels(truth), metric="accuracy", max_drop=0.5, baseline=baseline)
    assert failed(found) == ["last accepted plan"]
    assert "1.00 points less" in found.reasons[0]
    other = predictions(reference, data_fingerprint="d2")
    with pytest.raises(DataError, match="cannot be compared"):
        judge(other, int8(reference), labels(truth), metric="accuracy", max_drop=0.5, baseline=baseline)


def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(DataError, match="no verdict of the gate"):
        load_baseline(tmp_path / "b.json")
    with pytest.raises(DataError, match=r"absent\.json"):
        load_baseline(tmp_path / "absent.json")


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
