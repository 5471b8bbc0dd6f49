"""The file that each builder takes, and that OpenVINO runs it in INT8."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from bertopt.backends import openvino
from bertopt.backends.base import Options
from bertopt.batching import Batch, Padded
from bertopt.calibration import SiteRange
from bertopt.errors import GraphError, PlanError
from bertopt.graph import parity
from bertopt.graph.emit import TARGETS, Int8, emit
from bertopt.graph.export import session
from bertopt.graph.quantize import check, quantize
from bertopt.tokens import Tokens
from bertopt.workspace import Workspace
from tests.quantized import Exported, logits

# What each builder takes


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_gets_int8_that_answers_alike(tiny_bert: Exported, tmp_path: Path, target: str) -> None:
    found = tiny_bert.calibrated()
    made = emit(tiny_bert.path, tmp_path / "out.onnx", target, precision="int8", int8=Int8(found), feeds=[tiny_bert.feeds()])
    model = onnx.load(made.path)
    onnx.checker.check_model(model, full_check=True)
    check(model, 12)
    wanted = TARGETS[target]
    types = {t.name: t.data_type for t in model.graph.initializer}
    pairs = [n for n in model.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    folded = not any(n.op_type == "QuantizeLinear" and n.input[0] in types for n in pairs)
    half = wanted.typed and wanted.obeys_types
    opset = next(o.version for o in model.opset_import if not o.domain)
    assert folded == (target != "tensorrt-8")
    assert {types[n.input[1]] for n in pairs} == {TensorProto.FLOAT16 if half else TensorProto.FLOAT}
    assert (opset == 17) if not half else (opset >= 19)
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert made.precision == "int8"
    assert made.placement is not None
    assert made.placement.quantized_linears == 12
    assert made.groups["layer 0"] == made.groups["layer 1"] == "int8"
    feeds = tiny_bert.feeds(7, 17, seed=3)
    expected = logits(quantize(tiny_bert.model, found)[0], feeds)
    spread = expected.std()
    assert np.abs(session(made.path)(feeds) - expected).max() < (0.15 if half else 1e-5) * spread
    again = emit(made.path, tmp_path / "again.onnx", target, precision="int8")
    assert (again.placement, again.groups, again.precision) == (made.placement, made.groups, "int8")


@pytest.mark.parametrize("kind", ["albert", "electra", "deberta-v2", "mobilebert"])
def test_int8_around_fp16_on_other_families(exported: Callable[[str], Exported], tmp_path: Path, kind: str) -> None:
    case = exported(kind)
    found = case.calibrated()
    made = emit(case.path, tmp_path / "out.onnx", "tensorrt-10", precision="int8", int8=Int8(found), feeds=[case.feeds()])
    onnx.checker.check_model(onnx.load(made.path), full_check=True)
    feeds = case.feeds(7, 17, seed=3)
    expected = logits(quantize(case.model, found)[0], feeds)
    assert np.abs(session(made.path)(feeds) - expected).max() < 0.3 * expected.std()


def test_what_is_left_is_in_the_precision_map(tiny_bert: Exported, tmp_path: Path) -> None:
    found = tiny_bert.calibrated()
    first = [name for name in found.sites if "layer.0" in name]
    for target, around in (("openvino", "float"), ("tensorrt-8", "fp16")):
        made = emit(
            tiny_bert.path,
            tmp_path / f"{target}.onnx",
            target,
            precision="int8",
            int8=Int8(found, leave=[*first, "bert.encoder.layer.1.output.dense"]),
            feeds=[tiny_bert.feeds()],
        )
        assert made.groups["layer 0"] == around
        assert made.groups["layer 1"] == f"int8, down in {around}"


def test_nothing_is_quantized_without_a_calibration_of_this_graph(tiny_bert: Exported, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="no default scales"):
        emit(tiny_bert.path, tmp_path / "out.onnx", "openvino", precision="int8")
    foreign = dataclasses.replace(tiny_bert.calibrated(), graph="0" * 64)
    with pytest.raises(PlanError, match="for graph 000000000000, and "):
        emit(tiny_bert.path, tmp_path / "out.onnx", "openvino", precision="int8", int8=Int8(foreign))
    with pytest.raises(GraphError, match="real texts"):
        emit(tiny_bert.path, tmp_path / "out.onnx", "tensorrt-10", precision="int8", int8=Int8(tiny_bert.calibrated()))
    assert not list(tmp_path.iterdir())


# OpenVINO runs it


@pytest.fixture
def workspace(tiny_bert: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.setenv("BERTOPT_CACHE", str(tmp_path / "cache"))
    made = Workspace(tiny_bert.checkpoint, canonical=tiny_bert.path)
    made.texts = ["good film", "the team of the bad game was poor", "news on stock", "it is great"] * 4
    made.bucket_edges = (16, 32)
    return made


def rows(count: int = 6, length: int = 16) -> Batch:
    tokens = Tokens.from_rows([[2, *range(10 + n, 20 + n), 3] for n in range(count)])
    return Batch(np.arange(count), tokens, Padded(count, length))


def test_openvino_really_runs_int8(workspace: Workspace, tiny_bert: Exported) -> None:
    artifact = openvino.prepare(workspace, "int8")
    assert (artifact.info["int8_linears"], artifact.info["linears"]) == (12, 12)
    assert any("judge it on others" in note for note in artifact.notes)
    with openvino.open(artifact, Options(threads=1)) as opened:
        assert opened.precision == "int8"
        found = opened.launch(opened.stage(rows())).result()
    assert artifact.info["int8_in_effect"] == "12 of 12"
    with openvino.open(openvino.prepare(workspace, "fp32"), Options(threads=1)) as opened:
        right = opened.launch(opened.stage(rows())).result()
    assert not np.array_equal(found, right)
    assert parity.compare(right, found, precision="int8", task="embedding", trained=False).passed


def test_openvino_keeps_what_it_made(workspace: Workspace, tiny_bert: Exported) -> None:
    first = openvino.prepare(workspace, "int8")
    written = first.content.stat().st_mtime_ns
    assert openvino.prepare(workspace, "int8").content == first.content
    assert first.content.stat().st_mtime_ns == written
    workspace.texts = workspace.texts[:-1]
    other = openvino.prepare(workspace, "int8")
    assert other.content != first.content
    found = tiny_bert.calibrated()
    name = next(iter(found.sites))
    altered = dataclasses.replace(found, sites=found.sites | {name: SiteRange(9.0, found.sites[name].smoothing)})
    paths = set()
    for given_calibration in (found, altered):  # one key, two contents
        workspace.calibration = given_calibration  # type: ignore[attr-defined]
        paths.add(openvino.prepare(workspace, "int8").content)
    assert len(paths) == 2


def test_a_float_graph_called_int8_is_refused(workspace: Workspace, tiny_bert: Exported) -> None:
    artifact = openvino.prepare(workspace, "int8")
    with pytest.raises(GraphError, match="not applied: OpenVINO runs 0 of 12 products in INT8"):
        openvino.open(dataclasses.replace(artifact, content=tiny_bert.path), Options(threads=1))
