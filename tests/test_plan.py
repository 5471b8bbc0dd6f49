"""ENG-01: what a plan is gets checked from its manifest, before any library is loaded."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertopt import plan as plans
from bertopt import profiles
from bertopt.errors import PlanError, UsageError
from bertopt.plan import Here, Manifest
from bertopt.profiles import Profile

H200 = Here("8.6.0", "NVIDIA H200", "9.0")
REBUILD = "bertopt build-engine --fp16 --out x.plan"


def manifest(content: bytes, **changes: Any) -> Manifest:
    import hashlib

    made = Manifest(
        library="TensorRT",
        library_version="8.6.0",
        device_name="NVIDIA H200",
        compute_capability="9.0",
        precision="fp16",
        graph_sha256="a" * 64,
        plan_bytes=len(content),
        plan_sha256=hashlib.sha256(content).hexdigest(),
        created="2026-11-30T12:00:00+00:00",
        bertopt_version="0.1.0",
        rebuild=REBUILD,
        options="cuBLAS tactics off",
        model_name="bert-base",
        model_fingerprint="1234567890abcdef",
        tokenizer_fingerprint="fedcba0987654321",
        groups={"embeddings": "fp16", "layer 0": "fp16", "layer 1": "fp16", "head": "fp32"},
        profiles=["1x16:32x128:64x256"],
        bucket_edges=[32, 64, 128],
        inputs={"input_ids": "int32"},
        outputs={"logits": "float"},
    )
    return dataclasses.replace(made, **changes)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine as an H200 with TensorRT 8.6.0, and no library to load."""
    monkeypatch.setattr(plans, "here", lambda manifest: H200)
    monkeypatch.setitem(sys.modules, "tensorrt", None)


def written(folder: Path, content: bytes = b"\x01random bytes" * 100, **changes: Any) -> Path:
    path = folder / "x.plan"
    path.write_bytes(content)
    plans.save(path, manifest(content, **changes))
    return path


def test_a_whole_plan_is_opened_and_shown(tmp_path: Path, machine: None) -> None:
    path = written(tmp_path)
    plan = plans.open_plan(path, model_fingerprint="1234567890abcdef", calibration_sha256=None)
    assert plan.profiles == (Profile((1, 16), (32, 128), (64, 256)),)
    text = "\n".join(plans.show(path))
    for fact in (
        "TensorRT 8.6.0, cuBLAS tactics off",
        "NVIDIA H200 (compute capability 9.0)",
        "from 1x16 to 64x256, tuned for 32x128",
        "32, 64, 128",
        "layers 0 to 1: fp16",
        "head: fp32",
        "1234567890abcdef",
        "fedcba0987654321",
        "fits this machine",
    ):
        assert fact in text


@pytest.mark.parametrize(
    ("found", "values"),
    [
        (Here("8.6.0", "NVIDIA L4", "8.9"), ["compute capability 9.0", "compute capability 8.9", REBUILD]),
        (Here("10.16.1.11", "NVIDIA H200", "9.0"), ["TensorRT 8.6.0", "TensorRT 10.16.1.11", REBUILD]),
        (Here(None, "NVIDIA H200", "9.0"), ["TensorRT 8.6.0", "not installed", "pip install"]),
        (Here("8.6.0", None, None), ["NVIDIA H200 (compute capability 9.0)", "no CUDA device"]),
    ],
)
def test_a_plan_for_another_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Here, values: list[str]
) -> None:
    path = written(tmp_path)
    monkeypatch.setattr(plans, "here", lambda manifest: found)
    with pytest.raises(PlanError) as error:
        plans.open_plan(path)
    assert all(value in str(error.value) for value in values), str(error.value)
    assert error.value.exit_code == 2
    lines = plans.show(path)
    assert "fp16 plan of bert-base" in next(lines)  # it is printed, and then fails the same way
    with pytest.raises(PlanError, match=str(error.value)[:40].replace("(", r"\(")):
        list(lines)


def test_this_machine_without_a_card_says_so(tmp_path: Path) -> None:
    """No GPU present: refused without TensorRT installed, and without a traceback from it."""
    from bertopt.backends.driver import device

    if device() is not None:
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(PlanError, match=r"no CUDA device|not installed"):
        plans.open_plan(written(tmp_path))


def onnx_bytes() -> bytes:
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value], [value])
    return helper.make_model(graph, producer_name="pytorch").SerializeToString()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\x01random", "is cut short: its manifest says 1300 bytes, and it has 7"),
        (b"\x02random bytes" * 100, "does not hold the plan that was built"),
        (b"\x01random bytes" * 200, "another file"),
    ],
)
def test_a_file_that_is_not_the_plan_is_refused(tmp_path: Path, machine: None, content: bytes, says: str) -> None:
    path = written(tmp_path)
    path.write_bytes(content)
    with pytest.raises(PlanError, match=says) as error:
        plans.open_plan(path)
    assert REBUILD in str(error.value)
    lines = plans.show(path)
    next(lines)
    with pytest.raises(PlanError, match=says):
        list(lines)


def test_onnx_renamed_to_plan_is_named(tmp_path: Path, machine: None) -> None:
    path = tmp_path / "x.plan"
    path.write_bytes(onnx_bytes())
    with pytest.raises(PlanError, match=r"looks like an ONNX graph, and there is no manifest x\.plan\.json"):
        plans.open_plan(path)
    plans.save(path, manifest(bytes(len(onnx_bytes()))))  # same size, so that the hash decides
    with pytest.raises(PlanError, match="looks like an ONNX graph: its manifest says SHA-256"):
        plans.open_plan(path)


@pytest.mark.parametrize("content", [b"", b"random bytes", onnx_bytes()])
def test_without_a_manifest_nothing_is_loaded(tmp_path: Path, machine: None, content: bytes) -> None:
    path = tmp_path / "x.plan"
    path.write_bytes(content)
    for call in (plans.open_plan, lambda p: list(plans.show(p))):
        with pytest.raises(PlanError, match="no manifest"):
            call(path)
    with pytest.raises(PlanError, match="there is no plan"):
        plans.open_plan(tmp_path / "y.plan")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema_version": 1}', "\xff", '{"schema_version": 99}'])
def test_a_broken_manifest_is_a_sentence(tmp_path: Path, machine: None, text: str) -> None:
    path = written(tmp_path)
    plans.manifest_path(path).write_bytes(text.encode("latin-1"))
    with pytest.raises(PlanError, match=r"x\.plan\.json (cannot be read|has schema 99)"):
        plans.open_plan(path)


@pytest.mark.parametrize(
    ("demand", "value", "named"),
    [
        ("graph_sha256", "b" * 64, "graph aaaaaaaaaaaa, and bbbbbbbbbbbb"),
        ("tokenizer_fingerprint", "0" * 16, "tokenizer fedcba0987654321, and 0000000000000000"),
        ("model_fingerprint", "0" * 16, "model 1234567890abcdef, and 0000000000000000"),
        ("calibration_sha256", "c" * 64, "calibration cache None, and cccccccccccc"),
        ("precision", "int8", "precision fp16, and int8"),
        ("profiles", ["1x1:8x64:8x64"], "shape profiles 1x16:32x128:64x256, and 1x1:8x64:8x64"),
        ("options", "", "builder options cuBLAS tactics off, and none"),
    ],
)
def test_a_plan_of_something_else_is_refused(tmp_path: Path, machine: None, demand: str, value: Any, named: str) -> None:
    with pytest.raises(PlanError) as error:
        plans.open_plan(written(tmp_path), **{demand: value})
    assert named in str(error.value)
    assert REBUILD in str(error.value)


def test_an_openvino_plan_belongs_to_a_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(
        tmp_path, library="OpenVINO", library_version="2026.4.1", device_name="Xeon, amx_bf16", compute_capability=None
    )
    monkeypatch.setattr(plans, "installed", lambda library: "2026.4.1")
    monkeypatch.setattr(plans, "processor", lambda: "Xeon, avx2")
    with pytest.raises(PlanError, match="built for Xeon, amx_bf16, and this machine has Xeon, avx2"):
        plans.open_plan(path)
    monkeypatch.setattr(plans, "processor", lambda: "Xeon, amx_bf16")
    assert plans.open_plan(path).manifest.library == "OpenVINO"


def test_a_newer_field_does_no_harm(tmp_path: Path, machine: None) -> None:
    import json

    path = written(tmp_path)
    file = plans.manifest_path(path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"later": 1}))
    assert plans.open_plan(path).manifest == manifest(path.read_bytes())


# Profiles

edges = st.lists(st.integers(1, 512), min_size=1, max_size=24, unique=True)


@given(edges, st.integers(1, 64), st.integers(1, 5))
def test_profiles_from_edges_hold_every_batch(edges: list[int], batch_size: int, most: int) -> None:
    made = profiles.from_edges(edges, batch_size, most)
    assert len(made) <= most
    for edge in edges:
        for rows in {1, batch_size}:
            (part,) = profiles.split(made, rows, edge)
            assert part.shape == (rows, edge)  # nothing is padded any further
            low, high = made[part.index].min, made[part.index].max
            assert low[1] <= edge <= high[1]
    assert all(before.max[1] < after.min[1] for before, after in itertools.pairwise(made))


shapes = st.tuples(st.integers(1, 40), st.integers(1, 300))
triples = st.tuples(shapes, shapes, shapes).map(
    lambda s: Profile(*(tuple(sorted(axis)[i] for axis in zip(*s, strict=True)) for i in range(3)))  # type: ignore[arg-type]
)


@given(st.lists(triples, min_size=1, max_size=4), st.integers(1, 200), st.integers(1, 300))
def test_a_batch_is_split_whole_or_refused_with_the_limits(made: list[Profile], rows: int, length: int) -> None:
    longest = max(p.max[1] for p in made)
    if length > longest:
        with pytest.raises(PlanError, match=f"{rows} x {length}") as error:
            profiles.split(made, rows, length)
        assert all(f"{p.max[0]} x {p.max[1]}" in str(error.value) for p in made)
        return
    parts = profiles.split(made, rows, length)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(rows))
    for part in parts:
        profile = made[part.index]
        assert part.shape[0] >= part.stop - part.start
        assert part.shape[1] >= length
        assert all(low <= at <= high for low, at, high in zip(profile.min, part.shape, profile.max, strict=True))
    if any(p.holds(rows, length) for p in made):
        assert len(parts) == 1


def test_the_profile_tuned_for_a_batch_gets_it() -> None:
    latency, throughput = Profile((1, 1), (1, 128), (1, 128)), Profile((1, 1), (32, 128), (32, 128))
    assert profiles.split([throughput, latency], 1, 128)[0].index == 1
    assert profiles.split([throughput, latency], 2, 128)[0].index == 0


@given(triples)
def test_a_profile_is_read_as_it_is_written(profile: Profile) -> None:
    assert profiles.parse(str(profile)) == profile


@pytest.mark.parametrize(
    "text", ["32x128", "1x16:32x128", "0x1:1x1:1x1", "2x1:1x1:1x1", "1x16:32x512:64x256", "ax1:1x1:1x1", ""]
)
def test_a_bad_profile_is_a_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="profile"):
        profiles.parse(text)


def test_profiles_come_from_options() -> None:
    made = profiles.from_options("1x16", "32x128", "64x256", ["1x1:1x8:1x8"])
    assert made == (Profile((1, 16), (32, 128), (64, 256)), Profile((1, 1), (1, 8), (1, 8)))
    assert profiles.from_options(None, None, None) == ()
    with pytest.raises(UsageError, match="--opt and --max missing"):
        profiles.from_options("1x16", None, None)
    with pytest.raises(UsageError, match="--max 64: a shape is ROWSxLENGTH"):
        profiles.from_options("1x16", "32x128", "64")
