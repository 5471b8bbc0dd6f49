"""Rungs that fail inside a ladder: batches, answers, libraries and back ends, each counted and none taking others along."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np
import pytest

from bertopt import run
from bertopt.backends import eager, onnxruntime
from bertopt.records import load_ladder
from tests.climbing import BATCH, FLOAT_RUNGS, ROWS, by_name


@contextlib.contextmanager
def spoiled(session: type, answer: Any) -> Any:
    """Inside timed passes, `answer(call, logits)` stands for a session's answers; calls count from 0 in each pass."""
    timed: dict[str, int | None] = {"call": None}
    run_pass, compute = run.run_pass, session.compute  # type: ignore[attr-defined]

    def passing(*args: Any, **more: Any) -> Any:
        timed["call"] = 0
        try:
            return run_pass(*args, **more)
        finally:
            timed["call"] = None

    def computing(self: Any, feeds: Any) -> Any:
        logits = compute(self, feeds)
        if timed["call"] is None:
            return logits
        timed["call"] += 1
        return answer(timed["call"] - 1, logits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "run_pass", passing)
        patch.setattr(session, "compute", computing)
        yield


def fails(call, logits):
    if call == 1:
        raise RuntimeError("out of memory\nwith much more to say")
    return logits


def nan(call, logits):
    logits = logits.copy()
    logits[0, 0] = np.nan if call == 2 else logits[0, 0]
    return logits


def both(call, logits):
    return nan(call, fails(call, logits))


def test_a_batch_that_fails_is_counted_and_is_no_work_done(climbed, named):
    with spoiled(onnxruntime.OnnxSession, fails):
        record, _ = climbed(named)
    rung = by_name(record)["onnx"]
    assert rung.status == "measured"
    assert (rung.failed_batches, rung.batches, rung.requests) == (1, 5, ROWS - BATCH)
    assert any("out of memory" in note for note in rung.notes)
    assert rung.label_agreement == 1.0  # of the rows that were answered
    assert all(r.failed_batches == 0 for r in record.rungs[:-1])


@pytest.mark.parametrize("answer", [nan, both])
def test_nan_in_the_answers_fails_the_rung_whatever_its_speed(climbed, named, answer):
    with spoiled(onnxruntime.OnnxSession, answer):
        record, _ = climbed(named)
    rung = by_name(record)["onnx"]
    assert (rung.status, rung.reason) == ("failed", "some logits are NaN or infinite")
    assert record.best in FLOAT_RUNGS[:-1]


def test_a_rung_of_which_every_batch_fails_fails_alone(climbed, named):
    def dies(call, logits):
        raise RuntimeError("the device is gone")

    with spoiled(onnxruntime.OnnxSession, dies):
        record, _ = climbed(named, repeats=2)
    rung = by_name(record)["onnx"]
    assert rung.status == "failed"
    assert "the device is gone" in rung.reason
    assert rung.throughput_seq_s is None
    assert [r.status for r in record.rungs[:-1]] == ["measured"] * 4


def test_a_library_that_refuses_fails_its_rung_alone(climbed, named, monkeypatch):
    def refuse(self, *args):
        raise RuntimeError("\nno kernel for this\nand a page of detail")

    monkeypatch.setattr(onnxruntime.OnnxSession, "compute", refuse)
    record, folder = climbed(named)
    assert (record.rungs[-1].status, record.rungs[-1].reason) == ("failed", "RuntimeError: no kernel for this")
    assert [r.status for r in record.rungs[:-1]] == ["measured"] * 4
    assert load_ladder(folder) == record


def test_logits_that_are_wrong_fail_parity_before_they_are_timed(climbed, named, monkeypatch):
    compute = onnxruntime.OnnxSession.compute
    monkeypatch.setattr(onnxruntime.OnnxSession, "compute", lambda self, feeds: compute(self, feeds)[::-1])
    rung = by_name(climbed(named)[0])["onnx"]
    assert rung.status == "failed"
    assert "parity with eager FP32 is broken" in rung.reason
    assert not rung.parity.passed


def test_a_baseline_that_fails_is_no_yardstick(climbed, named):
    def dies(call, logits):
        raise RuntimeError("the device is gone")

    with spoiled(eager.EagerSession, dies):
        record, folder = climbed(named)
    assert [r.status for r in record.rungs] == ["failed"] * 4 + ["measured"]
    onnx = record.rungs[-1]
    assert onnx.speedup_over_baseline is onnx.label_agreement is None
    assert record.best == "onnx"
    assert not (folder / "answers.npz").exists()
    again, _ = climbed(named, resume=folder, rungs=("prefetch",))
    assert [r.status for r in again.rungs] == ["measured"] * 3 + ["failed", "measured"]


def test_a_missing_back_end_is_skipped_with_the_command_that_brings_it(climbed, named, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    rung = by_name(climbed(named)[0])["onnx"]
    assert (rung.status, rung.reason) == ("skipped", "ONNX Runtime is not installed")
    assert rung.remedy == "pip install 'bertopt[cpu]'"


def test_more_workers_than_cores_are_not_started(climbed, named):
    record, _ = climbed(named, rungs=("prefetch",), workers=99)
    rung = record.rungs[-1]
    assert rung.workers < 99
    assert any("99 workers were asked for" in note for note in rung.notes)
