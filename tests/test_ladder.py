"""The ladder as data: what each rung is made of, on both devices."""

import importlib.util

import pytest

from bertopt import ladder
from bertopt.errors import UsageError
from bertopt.ladder import RUNGS, STAGES, Pipeline, Rung, ablations, pipeline, rungs_for

DEVICES = ("cpu", "cuda")
BY_NAME = {rung.name: rung for rung in RUNGS}


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("baseline", "cpu", Pipeline("reference", "serial", "fixed", "eager", "fp32")),
        ("baseline", "cuda", Pipeline("reference", "serial", "fixed", "eager", "fp32")),
        ("fast-tokenizer", "cpu", Pipeline("fast", "serial", "fixed", "eager", "fp32")),
        ("prefetch", "cpu", Pipeline("fast", "workers", "fixed", "eager", "fp32")),
        ("bucketed", "cuda", Pipeline("fast", "workers", "bucketed", "eager", "fp32")),
        ("onnx", "cpu", Pipeline("fast", "workers", "bucketed", "onnxruntime", "fp32")),
        ("onnx-fp16", "cuda", Pipeline("fast", "workers", "bucketed", "onnxruntime", "half")),
        ("tf32", "cuda", Pipeline("fast", "workers", "bucketed", "eager", "tf32")),
        ("fp16", "cpu", Pipeline("fast", "workers", "bucketed", "openvino", "half")),
        ("fp16", "cuda", Pipeline("fast", "workers", "bucketed", "tensorrt", "half")),
        ("int8", "cpu", Pipeline("fast", "workers", "bucketed", "openvino", "int8")),
        ("int8", "cuda", Pipeline("fast", "workers", "bucketed", "tensorrt", "int8")),
        ("packed", "cuda", Pipeline("fast", "workers", "packed", "packed", "half")),
        ("packed-fp8", "cuda", Pipeline("fast", "workers", "packed", "packed", "fp8")),
    ],
)
def test_each_rung_is_the_pipeline_that_the_design_says(name, device, expected):
    assert pipeline(BY_NAME[name], device) == expected


def test_the_default_ladders_are_the_designs_in_its_order():
    wanted = ["baseline", "fast-tokenizer", "prefetch", "bucketed", "onnx", "fp16", "int8", "packed"]
    assert [r.name for r in rungs_for("cpu")] == wanted
    assert [r.name for r in rungs_for("cuda")] == [*wanted, "packed-fp8"]


def test_every_row_is_well_formed():
    for index, rung in enumerate(RUNGS):
        assert rung.summary
        assert set(rung.replaces) <= set(STAGES)
        assert set(rung.devices) <= set(DEVICES)
        if rung.parent is None:
            assert index == 0
            assert rung.replaces == {}
        else:
            assert rung.parent in {r.name for r in RUNGS[:index]}  # so a parent is measured whenever its child is
            assert rung.replaces
    assert len(BY_NAME) == len(RUNGS)


@pytest.mark.parametrize("device", DEVICES)
def test_a_rung_differs_from_its_parent_in_what_it_replaces_and_in_nothing_else(device):
    for rung in RUNGS[1:]:
        ours, parents = (ladder.as_stages(pipeline(r, device)) for r in (rung, BY_NAME[rung.parent or ""]))
        assert {stage for stage in STAGES if ours[stage] != parents[stage]} == set(rung.replaces), rung.name


@pytest.mark.parametrize("device", DEVICES)
def test_every_back_end_of_the_table_is_a_module(device):
    for rung in RUNGS:
        assert importlib.util.find_spec(f"bertopt.backends.{pipeline(rung, device).backend}"), rung.name


def test_rungs_that_are_asked_for_bring_their_parents_in_the_tables_order():
    assert [r.name for r in rungs_for("cpu", ["fp16"])] == ["baseline", "fast-tokenizer", "prefetch", "bucketed", "fp16"]
    assert [r.name for r in rungs_for("cuda", ["packed", "fast-tokenizer"])] == [
        "baseline",
        "fast-tokenizer",
        "prefetch",
        "packed",
    ]
    assert [r.name for r in rungs_for("cpu", [])] == ["baseline"]
    assert [r.name for r in rungs_for("cuda", ["tf32", "tf32"])][-1] == "tf32"


def test_optional_rungs_run_only_where_they_are_asked_for():
    assert not [r for device in DEVICES for r in rungs_for(device) if r.optional]
    assert "onnx-fp16" in [r.name for r in rungs_for("cuda", ["onnx-fp16"])]


def test_an_unknown_rung_is_refused_with_those_that_there_are():
    with pytest.raises(UsageError, match="'fp17'; there are baseline, fast-tokenizer"):
        rungs_for("cpu", ["fp17"])


def test_a_rung_of_another_device_is_refused():
    with pytest.raises(UsageError, match="the rung onnx-fp16 is for cuda only, and this run is on cpu"):
        rungs_for("cpu", ["onnx-fp16"])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["prefetch", "bucketed", "onnx", "fp16"])
def test_an_ablation_puts_one_stage_back_to_the_baselines_and_leaves_the_others(name, device):
    best = BY_NAME[name]
    full = ladder.as_stages(pipeline(best, device))
    rows = ablations(best, device)
    naive = ladder.as_stages(Pipeline())
    changed = [stage for stage in STAGES if full[stage] != naive[stage] and stage != "precision"]
    assert [row.name for row in rows] == [f"{name} without {stage}" for stage in changed]
    for row, stage in zip(rows, changed, strict=True):
        found = ladder.as_stages(pipeline(row, device, (*RUNGS, *rows)))
        together = {stage, "precision"} if stage == "backend" else {stage}  # eager has no lowered precision
        assert {s for s in STAGES if found[s] != full[s]} <= together
        assert found[stage] == naive[stage]
        assert row.parent == name


def test_taking_packing_apart_leaves_pipelines_that_can_run():
    rows = ablations(BY_NAME["packed"], "cuda")
    for row in rows:
        found = pipeline(row, "cuda", (*RUNGS, *rows))
        assert (found.batching == "packed") == (found.backend == "packed")


def test_the_baseline_has_nothing_to_take_away():
    assert ablations(BY_NAME["baseline"], "cpu") == []


def test_a_new_rung_is_a_new_row():
    table = (*RUNGS, Rung("longest", "padded to the longest of its batch", "prefetch", {"batching": "dynamic"}))
    assert [r.name for r in rungs_for("cpu", ["longest"], table)][-1] == "longest"
    assert pipeline(table[-1], "cpu", table) == Pipeline("fast", "workers", "dynamic", "eager", "fp32")
