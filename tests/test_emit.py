"""What each builder is given: the same graph, in the types and the file format that it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from bertopt.errors import GraphError
from bertopt.graph import parity, storage
from bertopt.graph.emit import TARGETS, describe, emit, inputs
from bertopt.graph.export import export, session
from bertopt.model import Checkpoint, open_checkpoint


@pytest.fixture(scope="module")
def canonical(checkpoint_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Path]:
    checkpoint = open_checkpoint(str(checkpoint_folder("bert")))
    path = tmp_path_factory.mktemp("emit") / "canonical.onnx"
    export(checkpoint.torch_module(attention="eager"), checkpoint, path)
    return checkpoint, path


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_gets_a_valid_graph_with_the_same_answers(
    canonical: tuple[Checkpoint, Path], tmp_path: Path, target: str
) -> None:
    checkpoint, path = canonical
    emitted = emit(path, tmp_path / "out.onnx", target, feeds=[parity.synthetic_feeds(checkpoint, 3, 16)])
    model = onnx.load(emitted.path)
    onnx.checker.check_model(model, full_check=True)
    typed = TARGETS[target].typed
    assert emitted.precision == ("fp16" if typed else "fp32")
    assert {i.type.tensor_type.elem_type for i in model.graph.input} == {TensorProto.INT64}
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert any(t.data_type == TensorProto.FLOAT16 for t in model.graph.initializer) == typed
    assert not {n.domain for n in model.graph.node} - {""}
    feeds = parity.synthetic_feeds(checkpoint, 7, 17, seed=3)
    right, found = session(path)(feeds), session(emitted.path)(feeds)
    assert parity.compare(right, found, precision=emitted.precision, task=checkpoint.task, trained=False).passed
    assert np.array_equal(right, found) != typed


def test_tensorrt_8_gets_what_its_parser_knows(canonical: tuple[Checkpoint, Path], tmp_path: Path) -> None:
    checkpoint, path = canonical
    model = storage.load(path)
    model.ir_version = 10
    storage.save(model, tmp_path / "newer.onnx")
    feeds = [parity.synthetic_feeds(checkpoint, 3, 16)]
    emit(tmp_path / "newer.onnx", tmp_path / "out.onnx", "tensorrt-8", feeds=feeds)
    assert onnx.load(tmp_path / "out.onnx").ir_version == 8
    model.opset_import[0].version = 21
    storage.save(model, tmp_path / "newer.onnx")
    with pytest.raises(GraphError, match=r"newer\.onnx has opset 21, and TensorRT 8\.6 parses up to 17"):
        emit(tmp_path / "newer.onnx", tmp_path / "out.onnx", "tensorrt-8", feeds=feeds)
    emit(tmp_path / "newer.onnx", tmp_path / "out.onnx", "tensorrt-10", feeds=feeds)


def test_an_emitted_graph_knows_what_it_is_and_is_not_rewritten_twice(
    canonical: tuple[Checkpoint, Path], tmp_path: Path
) -> None:
    checkpoint, path = canonical
    model = storage.load(path)
    bias = next(t for t in model.graph.initializer if "classifier.bias" in t.name)
    bias.CopyFrom(onnx.numpy_helper.from_array(np.array([1e5, 0.0], np.float32), bias.name))
    storage.save(model, tmp_path / "wide.onnx")
    first = emit(tmp_path / "wide.onnx", tmp_path / "a.onnx", "tensorrt-8", feeds=[parity.synthetic_feeds(checkpoint, 3, 16)])
    assert first.fp32_nodes == ["/model/classifier/Gemm"]
    assert first.report is not None
    again = emit(tmp_path / "a.onnx", tmp_path / "b.onnx", "tensorrt-8")  # no texts are needed any more
    assert again.report is None
    assert (again.precision, again.fp32_nodes, again.groups) == ("fp16", first.fp32_nodes, first.groups)
    assert describe(tmp_path / "b.onnx").groups["head"] == "fp16, 1 of 4 nodes fp32"
    assert storage.digest(tmp_path / "a.onnx") == storage.digest(tmp_path / "b.onnx")


def test_fp32_is_left_as_it_is(canonical: tuple[Checkpoint, Path], tmp_path: Path) -> None:
    _, path = canonical
    emitted = emit(path, tmp_path / "out.onnx", "tensorrt-11", precision="fp32")
    assert emitted.precision == "fp32"
    assert storage.digest(path) == storage.digest(emitted.path)
    assert inputs(path) == ["input_ids", "attention_mask", "token_type_ids"]


def test_fp16_wants_texts(canonical: tuple[Checkpoint, Path], tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="real texts"):
        emit(canonical[1], tmp_path / "out.onnx", "tensorrt-10")
    assert not (tmp_path / "out.onnx").exists()


def test_a_file_that_is_no_graph_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"random bytes")
    with pytest.raises(GraphError, match=r"x\.onnx cannot be read"):
        emit(tmp_path / "x.onnx", tmp_path / "out.onnx", "openvino")
