"""TensorRT without a card: the versions against what their bindings really offer, and the session on a simulated card."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bertopt
from bertopt.backends import driver, tensorrt, tensorrt_engine
from bertopt.backends.base import Options
from bertopt.batching import Batch, Padded
from bertopt.builders import versions
from bertopt.builders.tensorrt import count_layers, equivalent
from bertopt.errors import BackendUnavailable, PlanError
from bertopt.plan import Plan
from bertopt.tokens import Tokens
from tests import simulated_cuda as simulated
from tests.test_plan import manifest

PACKAGE = Path(bertopt.__file__).parent
SOURCES = [
    PACKAGE / "builders" / "tensorrt.py",
    PACKAGE / "builders" / "versions.py",
    PACKAGE / "backends" / "tensorrt_engine.py",
]
ROWS = {"8.6.0": versions.TENSORRT_8, "10.16.1.11": versions.TENSORRT_10, "11.4.0.106": versions.TENSORRT_11}

# What the variables of those sources hold
CLASSES = {
    "builder": "Builder",
    "config": "IBuilderConfig",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "profile": "IOptimizationProfile",
    "layer": "ILayer",
    "engine": "ICudaEngine",
    "_engine": "ICudaEngine",
    "context": "IExecutionContext",
    "_runtime": "Runtime",
}
ENUMS = ("BuilderFlag", "NetworkDefinitionCreationFlag", "PreviewFeature")


def used() -> Iterator[tuple[str, str]]:
    """(class or "trt", attribute) of every use in the sources."""
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if not isinstance(node, ast.Attribute):
                continue
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if name in ("trt", "_trt") and not node.attr.startswith("__"):
                yield "trt", node.attr
            elif name in CLASSES and (name not in ("profile",) or node.attr == "set_shape"):
                yield CLASSES[name], node.attr


@pytest.mark.parametrize("version", ROWS)
def test_every_call_exists_in_the_version(version: str) -> None:
    """Against lists that were read from the bindings' own wheels; what a version lacks must be what its row avoids."""
    row, api = ROWS[version], simulated.API[version]
    offered = {name: set(members) for name, members in api["classes"].items()} | {"trt": set(api["names"])}
    missing = {(owner, name) for owner, name in used() if name not in offered[owner]}
    avoided = {("ILayer", "precision"), ("ILayer", "set_output_type")} if not row.obey_flags else set()
    if row.scratch == "attribute":
        avoided |= {("IExecutionContext", "set_device_memory"), ("ICudaEngine", "device_memory_size_v2")}
        avoided |= {("trt", "ExecutionContextAllocationStrategy")}
    else:
        avoided |= {("ICudaEngine", "device_memory_size"), ("ICudaEngine", "create_execution_context_without_device_memory")}
    asked_for_first = {("trt", "IProgressMonitor"), ("IBuilderConfig", "progress_monitor")}  # hasattr decides
    assert missing <= avoided | asked_for_first
    assert len(set(used())) > 40  # the walk does find them


@pytest.mark.parametrize("version", ROWS)
def test_every_member_of_a_row_exists_in_the_version(version: str) -> None:
    row, enums = ROWS[version], simulated.API[version]["enums"]
    assert set(row.network_flags) <= set(enums["NetworkDefinitionCreationFlag"])
    assert {*row.half_flags, *row.int8_flags, *row.obey_flags} <= set(enums["BuilderFlag"])
    assert set(row.preview) <= set(enums["PreviewFeature"])
    assert "TF32" in enums["BuilderFlag"]


def test_the_rows_say_what_the_versions_changed() -> None:
    eight, ten, eleven = (simulated.API[v]["enums"] for v in ROWS)
    assert "FP16" in eight["BuilderFlag"]
    assert "FP16" not in eleven["BuilderFlag"]  # weak typing is gone
    assert "STRONGLY_TYPED" not in eight["NetworkDefinitionCreationFlag"]
    assert "STRONGLY_TYPED" in ten["NetworkDefinitionCreationFlag"]
    assert "INT64" not in eight["DataType"]  # so its token ids are INT32, and a session asks the engine


@pytest.mark.parametrize(
    ("version", "target"),
    [("8.6.0", "tensorrt-8"), ("8.6.1", "tensorrt-8"), ("10.0.1", "tensorrt-10"), ("11.4.0.106", "tensorrt-11")],
)
def test_a_version_finds_its_row(version: str, target: str) -> None:
    assert versions.dialect("TensorRT", version).target == target
    assert versions.dialect("TensorRT for RTX", version).target == "tensorrt-rtx"


def test_a_version_that_is_too_old_is_refused() -> None:
    with pytest.raises(BackendUnavailable, match=r"8\.5\.3 is too old"):
        versions.dialect("TensorRT", "8.5.3")


def test_unavailable_is_a_sentence_with_the_way_out() -> None:
    if importlib.util.find_spec("tensorrt") is None:
        assert "pip install 'bertopt[cuda]'" in str(tensorrt.available("cuda"))
    assert "CUDA device" in str(tensorrt.available("cpu"))


# The session, on the simulated card

PROFILES = ["1x1:4x16:4x16", "1x8:8x32:8x32"]


@dataclasses.dataclass
class Bench:
    card: simulated.Card
    cuda: ModuleType
    session: tensorrt.TensorRtSession


@contextlib.contextmanager
def bench(
    folder: Path, version: str = "8.6.0", seed: int = 0, profiles: list[str] = PROFILES, content: bytes = b"engine", **how: Any
) -> Iterator[Bench]:
    card = simulated.Card(seed)
    cuda = simulated.driver_module(card)
    binding = how.pop("binding", "INT32" if version.startswith("8") else "INT64")
    package = ModuleType("pycuda")
    package.driver = cuda  # type: ignore[attr-defined]
    fake = simulated.tensorrt_module(card, version, profiles, binding=binding, **how)
    path = folder / "x.plan"
    path.write_bytes(content)
    plan = Plan(path, manifest(content, library_version=version, profiles=profiles))
    modules = {"pycuda": package, "pycuda.driver": cuda, "tensorrt": fake}
    with (
        mock.patch.dict(sys.modules, modules),
        mock.patch.object(driver, "begin_capture", card.begin_capture),
        mock.patch.object(driver, "end_capture", card.end_capture),
        tensorrt.TensorRtSession(plan, Options(device="cuda", in_flight=2, pad_id=7)) as session,
    ):
        yield Bench(card, cuda, session)
    assert not card.memory  # everything is given back
    assert card.live_graphs == 0
    assert not cuda.pushed


def batch(rng: np.random.Generator, rows: int, length: int) -> Batch:
    lengths = rng.integers(1, length + 1, rows)
    lengths[rng.integers(rows)] = length
    ids = [rng.integers(1, 900, n).tolist() for n in lengths]
    types = [[int(i > n // 2) for i in range(n)] for n in lengths]
    return Batch(np.arange(rows), Tokens.from_rows(ids, types), Padded(rows, length))


def expected(one: Batch) -> np.ndarray:
    shape = (one.rows, one.layout.length)  # type: ignore[union-attr]
    ids, mask, types = (np.zeros(shape, np.int64) for _ in range(3))
    one.fill(ids, mask, types)
    return simulated.answer(ids, mask, types)


@given(
    st.sampled_from(list(ROWS)),
    st.integers(0, 10_000),
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 32)), max_size=14),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_answers_are_right_however_the_streams_interleave(
    tmp_path: Path, version: str, seed: int, sizes: list[tuple[int, int]]
) -> None:
    """Two batches in flight, shapes that come again (and are captured), batches that are split or filled up."""
    rng = np.random.default_rng(seed)
    with bench(tmp_path, version, seed) as at:
        waiting: list[tuple[Batch, Any]] = []
        for rows, length in sizes + sizes[:3] * 3:
            one = batch(rng, rows, length)
            waiting.append((one, at.session.launch(at.session.stage(one))))
            if len(waiting) == 2:
                done, pending = waiting.pop(0)
                np.testing.assert_array_equal(pending.result(), expected(done))
                assert pending.times.device_ms >= 0.0
        for done, pending in waiting:
            np.testing.assert_array_equal(pending.result(), expected(done))


def test_a_shape_that_comes_again_is_replayed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with bench(tmp_path) as at:
        for _ in range(5):
            one = batch(rng, 4, 16)
            np.testing.assert_array_equal(at.session.launch(at.session.stage(one)).result(), expected(one))
        assert at.card.live_graphs == 1
        assert at.session.version == "TensorRT 8.6.0, cuBLAS tactics off, CUDA graphs"
        for _ in range(3):
            at.session.launch(at.session.stage(batch(rng, 8, 32))).result()
        assert at.card.live_graphs == 2


def test_captured_graphs_and_buffers_are_bounded(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with bench(tmp_path) as at:
        for _ in range(3):
            for length in range(1, 33):
                for rows in (1, 2, 3):
                    at.session.launch(at.session.stage(batch(rng, rows, length))).result()
        assert at.card.live_graphs <= tensorrt_engine.MOST_GRAPHS
        before = len(at.card.memory)
        for _ in range(50):
            at.session.launch(at.session.stage(batch(rng, int(rng.integers(1, 9)), int(rng.integers(1, 33))))).result()
        assert len(at.card.memory) == before


def test_what_cannot_be_captured_goes_on_and_says_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with bench(tmp_path, refuse_capture=True) as at:
        for _ in range(4):
            one = batch(rng, 4, 16)
            np.testing.assert_array_equal(at.session.launch(at.session.stage(one)).result(), expected(one))
        assert "no CUDA graphs (" in at.session.version


def test_a_batch_longer_than_every_profile_is_refused(tmp_path: Path) -> None:
    with (
        bench(tmp_path) as at,
        pytest.raises(PlanError, match="3 x 33 is longer than every profile of the plan, which end at 4 x 16, 8 x 32"),
    ):
        at.session.stage(batch(np.random.default_rng(0), 3, 33))


def test_more_rows_than_any_profile_are_split(tmp_path: Path) -> None:
    one = batch(np.random.default_rng(0), 21, 20)
    with bench(tmp_path) as at:
        staged = at.session.stage(one)
        assert [part.stop - part.start for part, _ in staged.parts] == [8, 8, 5]
        np.testing.assert_array_equal(at.session.launch(staged).result(), expected(one))


@pytest.mark.parametrize("version", ROWS)
def test_an_engine_that_does_not_load_leaves_nothing(tmp_path: Path, version: str) -> None:
    with pytest.raises(PlanError, match=f"refused by TensorRT {version}"), bench(tmp_path, version, content=b"other"):
        pass


def test_an_error_while_opening_gives_everything_back(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="refuses profile 1") as error, bench(tmp_path, refuse_profile=1):
        pass
    cards = [frame.frame.f_locals["card"] for frame in error.traceback if "card" in frame.frame.f_locals]
    assert not cards[0].memory


@pytest.mark.parametrize("rows", [1, 3])
def test_fillers_have_one_token_and_real_rows_none_of_it(rows: int) -> None:
    one = batch(np.random.default_rng(0), rows, 6)
    arrays = {n: np.full((4, 9), -1, np.int32) for n in ("input_ids", "attention_mask", "token_type_ids")}
    tensorrt.fill(one, arrays, pad_id=7)
    assert (arrays["attention_mask"][:rows].sum(1) == one.tokens.lengths).all()
    assert (arrays["input_ids"][arrays["attention_mask"] == 0] == 7).all()
    assert (arrays["attention_mask"][rows:].sum(1) == 1).all()
    assert not arrays["token_type_ids"][rows:].any()


# What the inspector and trtexec are told


def test_layers_are_counted_by_precision() -> None:
    report = """{"Layers": [
      {"Name": "a", "Outputs": [{"Format/Datatype": "Row major linear FP16 format"}]},
      {"Name": "b", "Outputs": [{"Format/Datatype": "Half"}]},
      {"Name": "c", "Outputs": [{"Format/Datatype": "Row major linear FP32"}]},
      {"Name": "d", "Outputs": [{"Format/Datatype": "Int32"}]},
      "e"], "Bindings": []}"""
    assert count_layers(report) == {"fp16": 2, "fp32": 1, "other": 1, "not told": 1}


def test_a_product_of_int8_inputs_counts_as_int8_whatever_it_writes() -> None:
    report = """{"Layers": [
      {"Name": "a", "LayerType": "CaskGemm", "Inputs": [{"Format/Datatype": "Row major Int8 format"}],
       "Outputs": [{"Format/Datatype": "Row major linear FP16 format"}]},
      {"Name": "b", "LayerType": "Reformat", "Inputs": [{"Format/Datatype": "Row major Int8 format"}],
       "Outputs": [{"Format/Datatype": "Half"}]},
      {"Name": "c", "LayerType": "Reformat", "Inputs": [{"Format/Datatype": "Half"}],
       "Outputs": [{"Format/Datatype": "Int8"}]}], "Bindings": []}"""
    assert count_layers(report) == {"int8": 2, "fp16": 1}


def test_a_graph_that_became_one_layer_of_dynamic_shapes_is_not_told() -> None:
    report = """{"Layers": [
      {"Name": "{ForeignNode[all]}", "LayerType": "Myelin", "Inputs": [{"Format/Datatype": "N/A due to dynamic shapes"}],
       "Outputs": [{"Format/Datatype": "N/A due to dynamic shapes"}]},
      {"Name": "copy", "LayerType": "Reformat", "Outputs": [{"Format/Datatype": "N/A due to dynamic shapes"}]}]}"""
    assert count_layers(report) == {"not told": 1, "other": 1}


def test_the_equivalent_command_names_shapes_and_precision() -> None:
    from bertopt.builders.process import Job

    job = Job("tensorrt", "tensorrt-8", "g.onnx", "p", "fp16", ["/n"], ["1x1:8x64:8x64"], "internal")
    command = equivalent(job, "g.onnx", "p.plan", ["input_ids", "attention_mask"])
    for option in (
        "trtexec --onnx=g.onnx --saveEngine=p.plan",
        "--optShapes=input_ids:8x64,attention_mask:8x64",
        "--fp16",
        "--layerPrecisions=/n:fp32",
        "--tacticSources=-CUBLAS,-CUBLAS_LT,-CUDNN",
    ):
        assert option in command
    typed = equivalent(dataclasses.replace(job, target="tensorrt-10", tactics="all"), "g.onnx", "p.plan", ["input_ids"])
    assert "--stronglyTyped" in typed
    assert "--fp16" not in typed
    assert "tacticSources" not in typed
    low = equivalent(dataclasses.replace(job, precision="int8"), "g.onnx", "p.plan", ["input_ids"])
    assert "--fp16 --int8 " in low
