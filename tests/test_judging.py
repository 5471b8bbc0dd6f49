"""The gate inside a ladder, on a classifier that was trained in the test."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertopt import calibration as caches
from bertopt.climb import climb
from bertopt.gate import load_verdict, text_hashes
from bertopt.prepare import Climb
from bertopt.progress import Lines
from bertopt.records import LadderRecord, RungRecord
from bertopt.report import wording
from bertopt.text import read
from tests import trained

pytestmark = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed")
ROWS, TIMED = 800, 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained.classifier(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained.write(tmp_path_factory.mktemp("data") / "all.jsonl", trained.rows(ROWS, seed=1))


def run(model: Path, data: Path, out: Path, **more: Any) -> LadderRecord:
    fields = {"rungs": ("fp16", "int8"), "limit": TIMED, "repeats": 1, "max_drop": 3.0} | more
    wanted = Climb(model=str(model), data=data, batch_size=16, sequence_length=trained.LENGTH, out=out, **fields)
    return climb(wanted, Lines(quiet=True))[0]


@pytest.fixture(scope="module")
def ladder(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[LadderRecord, Path]:
    out = tmp_path_factory.mktemp("run") / "run"
    return run(model, data, out), out


def rung(record: LadderRecord, name: str) -> RungRecord:
    found = record.rung(name)
    assert found is not None
    return found


def test_int8_is_judged_on_more_rows_than_it_was_timed_on(ladder: tuple[LadderRecord, Path]) -> None:
    record, folder = ladder
    int8 = rung(record, "int8")
    assert (int8.status, int8.precision, int8.requests) == ("measured", "int8", TIMED)
    assert int8.gate == "passed", int8.gate_reason
    found = int8.gate_summary
    assert found is not None
    assert (found.metric, found.max_drop_points) == ("accuracy", 3.0)
    assert found.drop_low_points <= found.drop_points <= found.drop_high_points < 3
    assert TIMED < found.rows < ROWS
    verdict = load_verdict(folder / "gate-int8.json")
    assert verdict.rows == found.rows
    assert record.data.requests == TIMED


def test_calibration_rows_are_left_out(model: Path, data: Path, ladder: tuple[LadderRecord, Path]) -> None:
    from bertopt.model import open_checkpoint
    from bertopt.workspace import Workspace

    seen: set[str] = set()
    for file in Workspace(open_checkpoint(str(model))).folder.glob("calibration-*.json"):
        seen |= set(caches.load(file).text_hashes)
    everything = read(data)
    hashes = text_hashes(everything.texts)
    used = len(seen.intersection(hashes))
    assert used > 50
    found = rung(ladder[0], "int8").gate_summary
    assert found is not None
    assert found.rows == ROWS - used


def test_half_precision_is_judged_and_full_precision_is_not(ladder: tuple[LadderRecord, Path]) -> None:
    record, _ = ladder
    assert rung(record, "fp16").gate in ("passed", "inconclusive")
    assert [r.gate for r in record.rungs if r.precision == "fp32"] == [None] * 4


def test_without_labels_int8_is_not_gated_and_never_the_best(model: Path, data: Path, tmp_path: Path) -> None:
    bare = trained.write(tmp_path / "bare.jsonl", [{"text": row["text"]} for row in trained.rows(200, seed=3)])
    record = run(model, bare, tmp_path / "run")
    int8 = rung(record, "int8")
    assert (int8.status, int8.gate, int8.gate_reason) == ("measured", "not gated", "the texts have no labels")
    assert int8.label_agreement is not None
    assert int8.label_agreement > 0.9
    assert record.best != "int8"
    assert "not gated: the texts have no labels" in wording.gate(int8)


def test_int8_that_answers_wrong_fails_and_is_not_the_best(
    model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bertopt.backends.openvino import OpenVinoSession

    compute = OpenVinoSession.compute

    def wrong(self: OpenVinoSession, feeds: Any) -> np.ndarray:
        logits = compute(self, feeds)
        if self.precision != "int8" or len(logits) < 8:
            return logits
        return np.concatenate([logits[:2, ::-1], logits[2:]])  # two rows of a batch

    monkeypatch.setattr(OpenVinoSession, "compute", wrong)
    record = run(model, data, tmp_path / "run")
    int8 = rung(record, "int8")
    assert record.best != "int8"
    if int8.status == "measured":
        assert int8.gate == "failed"
        assert "accuracy fell" in wording.gate(int8)


def test_a_resumed_ladder_is_judged_by_the_first_ones_answers(model: Path, data: Path, tmp_path: Path) -> None:
    first = run(model, data, tmp_path / "first", rungs=("fp16",))
    assert rung(first, "fp16").status == "measured"
    second = run(model, data, tmp_path / "second", resume=tmp_path / "first", rungs=("int8",))
    int8 = rung(second, "int8")
    assert int8.gate == "passed", int8.gate_reason
    assert int8.gate_summary is not None
    assert int8.gate_summary.rows > TIMED


def test_bad_margins_are_refused(model: Path, data: Path, tmp_path: Path, capsys: Any) -> None:
    from bertopt import cli

    given = ["--model", str(model), "--data", str(data), "--out", str(tmp_path / "run"), "--max-drop", "-1"]
    assert cli.run(["ladder", *given]) == 2
    assert "--max-drop is -1" in capsys.readouterr().err
