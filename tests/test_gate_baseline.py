"""Beside the drop: speed, evidence by proxy, and what was accepted last."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertopt.errors import DataError
from bertopt.gate import judge, load_baseline, save_predictions
from bertopt.records import save
from tests.gate_data import failed, flipped, int8, labels, predictions, statuses


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
