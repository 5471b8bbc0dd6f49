"""INT8 plans: placed by a cache that fits, and behind the gate kept, mended or not kept at all. Here with OpenVINO."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertopt import build_int8, calibrating, engines, plan
from bertopt import calibration as caches
from bertopt.backends.base import Options
from bertopt.cli import run as bertopt
from bertopt.errors import DataError, GraphError, ModelError, PlanError, UsageError
from bertopt.predict import predict_checkpoint
from bertopt.text import read
from tests.models import WORDS

pytestmark = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed")
ROWS = 160
BROKEN = "bert.encoder.layer.1.intermediate.dense"


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """`fast(1.3)`: INT8 measures as so many times the speed of FP16. The real ratio of so small a model means nothing."""

    def measure(ratio: float) -> None:
        monkeypatch.setattr(build_int8._Court, "speedup", lambda self, low, high: ratio)

    measure(1.3)
    return measure


def sentences(seed: int, count: int) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, generator.integers(3, 20))) for _ in range(count)]


@pytest.fixture(scope="module")
def model(checkpoint_folder: Callable[..., Path]) -> Path:
    return checkpoint_folder("bert", id2label={0: "neg", 1: "pos"}, label2id={"neg": 0, "pos": 1})


@pytest.fixture
def made(model: Path, tmp_path: Path) -> engines.Request:
    """A request for an INT8 plan, with a calibration and evaluation rows whose labels are what the model answers."""
    calibration, data = tmp_path / "calib.jsonl", tmp_path / "eval.jsonl"
    calibration.write_text("\n".join(json.dumps({"text": text}) for text in sentences(0, 48)))
    texts = sorted(set(sentences(1, ROWS)))
    data.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    answers = predict_checkpoint(str(model), read(data), max_length=32).predicted()
    data.write_text("\n".join(json.dumps({"text": t, "label": x}) for t, x in zip(texts, answers, strict=True)))
    cache = tmp_path / "c.json"
    calibrating.run(str(model), calibration, cache, max_length=32)
    return engines.Request(
        out=tmp_path / "out" / "x.plan",
        model=str(model),
        data=data,
        precision="int8",
        target="openvino",
        sequence_length=32,
        calibration=cache,
    )


def broken(request: engines.Request, sites: list[str] | None, factor: float) -> engines.Request:
    """The same with ranges of these sites, or of all, off by a factor."""
    assert request.calibration is not None
    found = caches.load(request.calibration)
    for name in sites or list(found.sites):
        site = found.sites[name]
        found.sites[name] = caches.SiteRange(site.scale * factor, site.smoothing)
    path = request.calibration.with_name("broken.json")
    caches.save(found, path)
    return dataclasses.replace(request, calibration=path)


def kept(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


def test_a_plan_is_built_in_int8_with_what_it_is_judged_by_beside_it(made: engines.Request) -> None:
    result = engines.build_engine(made)
    opened = plan.open_plan(made.out)
    said, given = opened.manifest, caches.load(made.calibration or "")
    assert (said.precision, said.calibration_sha256, said.gate) == ("int8", given.sha256, {})
    assert said.groups == {"layer 0": "int8", "layer 1": "int8"}
    assert said.layers == {"int8": 12}
    assert "12 of 12 Linears in INT8" in said.notes
    assert caches.load(plan.calibration_path(made.out)) == given
    assert kept(made.out.parent) == ["x.plan", "x.plan.calibration.json", "x.plan.json", "x.plan.tokenizer"]
    assert result.parity is not None
    assert "accuracy gate: not gated" in plan.describe(said)
    from bertopt.backends.openvino_plan import OpenVinoPlanSession

    with OpenVinoPlanSession(opened, Options(threads=1)) as session:
        assert session.precision == "int8"
    wrong = dataclasses.replace(said, layers={"int8": 24})
    with pytest.raises(GraphError, match="OpenVINO runs 12 of 24 products in INT8"):
        OpenVinoPlanSession(plan.Plan(made.out, wrong), Options(threads=1))


def test_a_cache_that_does_not_fit_is_refused_before_anything_is_built(
    made: engines.Request, checkpoint_folder: Callable[..., Path]
) -> None:
    for changes, error, says in (
        ({"calibration": None}, UsageError, "--int8 wants --calibration FILE: bertopt calibrate --model .* --seq 32"),
        ({"calibration": Path("none.json")}, DataError, "there is no calibration cache none.json"),
        ({"sequence_length": 16}, PlanError, "up to so many tokens: 32, and 16 is asked for"),
        ({"model": str(checkpoint_folder("bert", seed=1))}, PlanError, "was calibrated for model"),
        ({"precision": "fp16"}, UsageError, "is of use to --int8 only"),
    ):
        with pytest.raises(error, match=says):
            engines.build_engine(dataclasses.replace(made, **changes))  # type: ignore[arg-type]
    assert kept(made.out.parent) == []


def test_what_passes_is_kept_with_its_verdict(made: engines.Request, fast: Callable[[float], None]) -> None:
    done = engines.build_gated(dataclasses.replace(made, max_drop=15.0))
    assert (done.exit_code, done.tuned) == (0, None)
    gate = plan.open_plan(made.out).manifest.gate
    assert (gate["verdict"], gate["evidence"], gate["metric"], gate["max_drop_points"]) == ("passed", "plan", "accuracy", 15.0)
    assert any(line.startswith("accuracy gate: passed (") for line in done.lines())
    assert "1.30x the speed of the plan in half precision" in done.notes[-1]
    fast(0.9)
    assert "take the FP16 plan here" in engines.build_gated(dataclasses.replace(made, max_drop=15.0)).notes[-1]


def test_the_layer_that_fails_the_gate_goes_back_to_float(made: engines.Request, fast: Callable[[float], None]) -> None:
    """The evaluation rows that ranked layers are not among those that the mended plan is judged on."""
    done = engines.build_gated(dataclasses.replace(broken(made, [BROKEN], 1 / 100), max_drop=12.0))
    assert done.tuned is not None
    assert done.tuned.left == ["layer 1 up"]
    assert done.exit_code == 0
    said = plan.open_plan(made.out).manifest
    assert said.groups == {"layer 0": "int8", "layer 1": "int8, up in float"}
    assert "11 of 12 Linears in INT8; left in float: bert.encoder.layer.1.intermediate.dense" in said.notes
    assert any(note.startswith("INT8 everywhere: logits move") for note in said.notes)
    assert ROWS * 0.7 < said.gate["rows"] < len(read(made.data or ""))


def test_what_cannot_be_mended_leaves_no_plan_and_an_older_one_alone(
    made: engines.Request, fast: Callable[[float], None]
) -> None:
    wanted = dataclasses.replace(broken(made, None, 1 / 100), max_drop=1.0)
    done = engines.build_gated(wanted)
    assert (done.result, done.exit_code) == (None, 1)
    assert "no plan was kept" in done.lines()
    assert kept(made.out.parent) == []
    engines.build_engine(made)
    before = made.out.read_bytes()
    assert engines.build_gated(wanted).exit_code == 1
    assert made.out.read_bytes() == before


def test_what_is_mended_and_slower_than_fp16_is_not_kept(made: engines.Request, fast: Callable[[float], None]) -> None:
    fast(0.95)
    done = engines.build_gated(dataclasses.replace(broken(made, [BROKEN], 1 / 100), max_drop=12.0))
    assert done.tuned is not None
    assert (done.tuned.outcome, done.exit_code, kept(made.out.parent)) == ("slower", 1, [])


def test_rows_that_do_not_decide_are_inconclusive_and_the_plan_says_so(
    made: engines.Request, fast: Callable[[float], None]
) -> None:
    done = engines.build_gated(dataclasses.replace(made, max_drop=0.01))
    assert done.exit_code in (1, 3)
    few = made.data.with_name("few.jsonl")  # type: ignore[union-attr]
    few.write_text("\n".join(made.data.read_text().splitlines()[:12]))  # type: ignore[union-attr]
    done = engines.build_gated(dataclasses.replace(made, data=few, max_drop=2.0))
    assert done.exit_code == 3
    assert plan.open_plan(made.out).manifest.gate["verdict"] == "inconclusive"


def test_the_speed_is_measured_side_by_side(made: engines.Request) -> None:
    done = engines.build_gated(dataclasses.replace(made, max_drop=15.0))
    assert "x the speed of the plan in half precision, side by side" in done.notes[-1]


def test_what_cannot_be_judged_is_refused_before_anything_is_built(
    made: engines.Request, checkpoint_folder: Callable[..., Path], tmp_path: Path
) -> None:
    spoilt = tmp_path / "spoilt.jsonl"
    spoilt.write_text("\n".join(json.dumps({"text": text, "label": "pos"}) for text in ["good", *sentences(0, 3)]))
    for changes, error, says in (
        ({"data": spoilt}, DataError, r"3 of 4 rows of spoilt.jsonl were used for calibration \(the first is row 2\)"),
        ({"precision": "fp16", "calibration": None}, UsageError, "--max-drop judges an INT8 plan"),
    ):
        with pytest.raises(error, match=says):
            engines.build_gated(dataclasses.replace(made, max_drop=1.0, **changes))  # type: ignore[arg-type]
    assert kept(made.out.parent) == []


def test_a_model_without_a_trained_head_is_refused(made: engines.Request, monkeypatch: pytest.MonkeyPatch) -> None:
    def untrained(*given: Any, **how: Any) -> Any:
        return dataclasses.replace(found(*given, **how), weights="random head")

    import bertopt.model

    found = bertopt.model.open_checkpoint
    monkeypatch.setattr(bertopt.model, "open_checkpoint", untrained)
    with pytest.raises(ModelError, match="has an untrained head"):
        engines.build_gated(dataclasses.replace(made, max_drop=1.0))
    assert kept(made.out.parent) == []


@pytest.mark.skipif(importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT for RTX is not installed")
def test_a_plan_that_cannot_run_here_is_passed_by_proxy_only(made: engines.Request) -> None:
    done = engines.build_gated(dataclasses.replace(made, target="tensorrt-rtx", max_drop=15.0))
    gate = plan.read_manifest(made.out).gate
    assert (done.exit_code, gate["verdict"], gate["evidence"]) == (0, "passed by proxy", "proxy")
    assert "its speed was not measured" in done.notes[-1]


def test_the_command_line_leaves_with_the_verdict(
    made: engines.Request, fast: Callable[[float], None], capfd: pytest.CaptureFixture[str]
) -> None:
    given = ["build-engine", "--int8", "--model", made.model, "--data", made.data, "--calibration", made.calibration]
    given += ["--target", "openvino", "--seq", 32, "--out", made.out]
    assert bertopt([*map(str, given), "--max-drop", "15", "--metric", "agreement"]) == 0
    assert "Verdict: PASSED: int8 for fp32 by" in capfd.readouterr().out
    bad = broken(made, None, 1 / 100).calibration
    assert bertopt([*map(str, given), "--max-drop", "1", "--calibration", str(bad), "--budget", "5"]) == 1
    assert "no plan was kept" in capfd.readouterr().out
    assert bertopt([*map(str, given), "--fp16"]) == 2
    assert "--fp16 and --int8 exclude each other" in capfd.readouterr().err
    assert bertopt([*map(str, given), "--max-drop", "1", "--budget", "0"]) in (0, 2, 3)
