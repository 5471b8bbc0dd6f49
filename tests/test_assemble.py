"""Records of rungs beside each other: what is faster than its parent, and which is the best."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bertopt import assemble
from bertopt.records import RungRecord
from tests.made_up import made_up_rung


def rungs_of(ours: list[float], theirs: list[float]) -> list[RungRecord]:
    parent = made_up_rung("baseline", 1.0, None, repeats_seq_s=theirs, throughput_seq_s=np.median(theirs))
    child = made_up_rung("fast-tokenizer", 1.0, "baseline", repeats_seq_s=ours, throughput_seq_s=np.median(ours))
    return assemble.with_comparisons([dataclasses.replace(r, parent_verdict=None) for r in (parent, child)])


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([12, 13, 14], [10, 10.5, 11], "faster"),
        ([9, 9.5, 9.9], [10, 10.5, 11], "slower"),
        ([10.9, 13, 14], [10, 10.5, 11], "no difference"),
        ([14], [10], None),
        ([14, 15], [10], None),
    ],
)
def test_a_gain_inside_the_spread_is_no_gain(ours, theirs, verdict):
    child = rungs_of(ours, theirs)[1]
    assert child.parent_verdict == verdict
    assert child.speedup_over_parent == pytest.approx(np.median(ours) / np.median(theirs))


def test_the_best_is_the_fastest_whose_answers_are_right():
    rungs = [
        made_up_rung("baseline", 10, None, gate=None),
        made_up_rung("prefetch", 20, "fast-tokenizer", gate=None),
        made_up_rung("onnx", 30, "bucketed", gate=None, status="failed"),
        made_up_rung("int8", 40, "bucketed", gate="not gated"),
        made_up_rung("prefetch without feed", 50, "prefetch", gate=None),
    ]
    assert assemble.best(rungs).name == "prefetch"
    passed = dataclasses.replace(rungs[3], gate="passed")
    assert assemble.best([*rungs, passed]).name == "int8"
    for gate in ("failed", "inconclusive", "not gated", None):
        assert assemble.best([*rungs, dataclasses.replace(rungs[3], gate=gate)]).name == "prefetch"
    half = made_up_rung("fp16", 45, "bucketed", gate="failed", precision="bf16")
    assert assemble.best([*rungs, half]).name == "prefetch"
    for gate in ("inconclusive", "not gated", "passed"):  # parity is the evidence
        assert assemble.best([*rungs, dataclasses.replace(half, gate=gate)]).name == "fp16"
    assert assemble.best(rungs[2:]) is None
