"""Leaving layers in float: the fewest that do, the evaluation rows seen once, and the budget kept."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertopt import calibration as caches
from bertopt.errors import UsageError
from bertopt.model import open_checkpoint
from bertopt.text import Requests
from bertopt.tune import BETTER, Tuned, groups_of, proxy_logits, tune
from bertopt.workspace import Workspace


@dataclass
class Answer:
    verdict: str


@dataclass
class Network:
    """Layers that each move the logits by an error of their own, independently: what INT8 does, without a network."""

    errors: dict[str, float]  # group -> root mean square of what it adds, relative to the spread
    verdict: str = "passed"
    speed: float | None = 1.2
    seconds: float = 1.0  # of a run
    now: float = 0.0
    runs: int = 0
    judged: list[frozenset[str]] = field(default_factory=list)
    timed: list[frozenset[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(0)
        self.float_logits = generator.normal(0, 1, (400, 3)).astype(np.float32)
        self.moves = {name: generator.normal(0, size, (400, 3)) for name, size in self.errors.items()}

    @property
    def groups(self) -> dict[str, list[str]]:
        return {name: [f"{name}.site"] for name in self.errors}

    def logits(self, leave: Collection[str]) -> np.ndarray:
        self.now += self.seconds
        self.runs += 1
        moved = sum((m for name, m in self.moves.items() if f"{name}.site" not in leave), np.zeros((400, 3)))
        return (self.float_logits + moved).astype(np.float32)

    def judge(self, leave: Collection[str]) -> Answer:
        self.judged.append(frozenset(leave))
        return Answer(self.verdict)

    def speedup(self, leave: Collection[str]) -> float | None:
        self.timed.append(frozenset(leave))
        return self.speed

    def tune(self, **options: float) -> Tuned:
        settings = {"max_drop": 1.0, "budget_s": 1000.0} | options
        return tune(self.groups, self.float_logits, self.logits, self.judge, self.speedup, clock=lambda: self.now, **settings)


def one_bad(count: int = 12, bad: str = "layer 3 down", harm: float = 0.8) -> dict[str, float]:
    return {f"layer {n} down": 0.001 for n in range(count)} | {bad: harm}


def test_the_layer_that_harms_is_left_in_float() -> None:
    network = Network(one_bad())
    found = network.tune()
    assert (found.outcome, found.left, found.sites) == ("kept", ["layer 3 down"], ["layer 3 down.site"])
    assert found.precisions == {name: "float" if name == "layer 3 down" else "int8" for name in network.errors}
    assert network.judged == network.timed == [frozenset({"layer 3 down.site"})]
    assert next(iter(found.ranking)) == "layer 3 down"
    assert found.ranking["layer 3 down"] == pytest.approx(0.8, rel=0.1)
    said = found.lines()
    assert said[0].startswith("INT8 everywhere: logits move by 0.8")
    assert any("left in float: layer 3 down (1 of 12 groups)" in line for line in said)
    assert "passed, 1.20x the speed of FP16" in said[-1]


@given(st.lists(st.floats(0.0005, 0.5), min_size=2, max_size=12), st.floats(0.2, 3.0))
@settings(max_examples=40, deadline=None)
def test_no_fewer_of_the_worst_would_do(harms: list[float], max_drop: float) -> None:
    """What is kept is good enough on the calibration rows, and one group less is not."""
    network = Network({f"layer {n} up": harm for n, harm in enumerate(harms)})
    found = network.tune(max_drop=max_drop)
    assert len(network.judged) == (found.outcome == "kept")
    whole = network.logits(())

    def good(sites: Collection[str]) -> bool:
        logits = network.logits(sites)
        error = np.sqrt(((logits - network.float_logits) ** 2).mean())
        changed = (logits.argmax(1) != network.float_logits.argmax(1)).mean()
        limit = BETTER * np.sqrt(((whole - network.float_logits) ** 2).mean())
        return bool(error <= limit and changed <= max_drop / 100)

    if found.outcome == "kept":
        assert good(found.sites)
        assert list(found.ranking)[: len(found.left)] == found.left
        assert len(found.left) == 1 or not good(found.sites[:-1])
    else:
        assert found.outcome == "nothing found"
        assert not good([f"{name}.site" for name in list(found.ranking)[:-1]])


def test_an_answer_that_is_not_passed_is_not_asked_for_twice() -> None:
    for verdict in ("failed", "inconclusive"):
        network = Network(one_bad(), verdict=verdict)
        found = network.tune()
        assert (found.outcome, len(network.judged)) == (verdict, 1)
        assert found.verdict == Answer(verdict)
        assert found.lines()[-1].endswith(f"{verdict}; take FP16")


def test_what_is_slower_than_fp16_is_not_kept_nor_judged() -> None:
    network = Network(one_bad(), speed=0.98)
    found = network.tune()
    assert (found.outcome, found.speedup, network.judged) == ("slower", 0.98, [])
    assert "0.98x the speed of FP16" in found.lines()[-1]
    assert Network(one_bad(), speed=1.1).tune(min_speedup=1.15).outcome == "slower"
    unknown = Network(one_bad(), speed=None).tune()
    assert unknown.outcome == "kept"
    assert "its speed was not measured" in unknown.lines()[-1]


def test_where_every_layer_harms_there_is_nothing_to_find() -> None:
    network = Network({f"layer {n} down": 0.5 for n in range(6)})
    found = network.tune()
    assert (found.outcome, found.left, network.judged, network.timed) == ("nothing found", [], [], [])
    assert set(found.precisions.values()) == {"int8"}
    assert "take FP16" in found.lines()[-1]


def test_the_budget_is_kept_and_what_it_did_not_reach_is_said() -> None:
    network = Network(one_bad(count=40), seconds=1.0)
    found = network.tune(budget_s=20.0)
    assert network.now <= 21.0
    assert found.unranked == 40 - len(found.ranking) > 0
    assert any(f"; {found.unranked} were not reached within the budget" in line for line in found.lines())
    assert found.left[0] == "layer 3 down"


def test_a_graph_that_answers_nan_is_the_worst_of_all() -> None:
    network = Network(one_bad(harm=0.5))
    network.moves["layer 7 down"] = np.full((400, 3), np.nan)
    found = network.tune()
    assert next(iter(found.ranking)) == "layer 7 down"
    assert found.outcome == "kept"
    assert "layer 7 down" in found.left


def test_logits_that_are_no_labels_are_judged_by_their_error() -> None:
    network = Network(one_bad())
    found = tune(
        network.groups, network.float_logits, network.logits, network.judge, network.speedup, max_drop=0.0, classes=False
    )
    assert found.outcome == "kept"
    assert all(trial.changed is None for trial in found.trials)
    assert "labels" not in " ".join(found.lines())


def test_no_groups_or_no_time_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="got 0 and 300 s"):
        Network({}).tune(budget_s=300.0)
    with pytest.raises(UsageError, match="and 0 s"):
        Network(one_bad()).tune(budget_s=0.0)


# A real graph


@pytest.fixture
def workspace(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("BERTOPT_CACHE", str(tmp_path / "cache"))
    return Workspace(open_checkpoint(str(tiny)))


def test_groups_are_parts_of_layers_and_the_likeliest_come_first(
    workspace: Workspace, checkpoint_folder: Callable[..., Path]
) -> None:
    found = groups_of(onnx.load(workspace.canonical()))
    assert list(found)[:3] == ["layer 0 down", "layer 1 down", "layer 0 qkv"]
    assert len(found) == 8
    assert found["layer 0 down"] == ["bert.encoder.layer.0.output.dense"]
    shared = Workspace(open_checkpoint(str(checkpoint_folder("albert"))))
    assert len(groups_of(onnx.load(shared.canonical()))) == 5


def test_a_real_graph_is_tuned_on_the_cpu(workspace: Workspace) -> None:
    """One range of a calibration is broken on purpose: that layer is found and left in float."""
    generator = np.random.default_rng(0)
    words = ["the", "good", "bad", "film", "news", "team", "poor", "great"]
    requests = Requests([" ".join(generator.choice(words, 12)) for _ in range(24)], name="calib")
    made = caches.calibrate(workspace, requests, max_length=32)
    broken = "bert.encoder.layer.1.intermediate.dense"
    site = made.sites[broken]
    made.sites[broken] = caches.SiteRange(site.scale / 50, site.smoothing)
    before, logits = proxy_logits(workspace, made, requests, rows=16)
    assert before.shape == (16, 2)
    judged: list[Collection[str]] = []

    def judge(leave: Collection[str]) -> Answer:
        judged.append(leave)
        return Answer("passed")

    groups = groups_of(onnx.load(workspace.canonical()))
    found = tune(groups, before, logits, judge, lambda leave: 1.5, max_drop=50.0)
    assert found.outcome == "kept"
    assert found.left == ["layer 1 up"]
    assert judged == [frozenset({broken})]
