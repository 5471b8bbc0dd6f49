from __future__ import annotations

import os
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from bertopt.errors import GraphError, UsageError
from bertopt.graph import storage
from bertopt.graph.export import ExportReport, export, exporter_choice, input_names, reference, session, tidy
from bertopt.graph.parity import synthetic_feeds
from bertopt.model import Checkpoint, open_checkpoint
from tests import models

Make = Callable[..., Path]


@pytest.fixture(scope="session")
def exported(
    checkpoint_folder: Make, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Checkpoint, ExportReport]]:
    """`exported("bert", head=...)` -> the checkpoint and the report of its export, made once a session."""
    made: dict[str, tuple[Checkpoint, ExportReport]] = {}

    def make(kind: str, **changes: object) -> tuple[Checkpoint, ExportReport]:
        key = repr((kind, changes))
        if key not in made:
            checkpoint = open_checkpoint(str(checkpoint_folder(kind, **changes)))
            path = tmp_path_factory.mktemp("graph") / "canonical.onnx"
            made[key] = checkpoint, export(checkpoint.torch_module(), checkpoint, path)
        return made[key]

    return make


Exported = Callable[..., tuple[Checkpoint, ExportReport]]


def shape(value: onnx.ValueInfoProto) -> list[str | int]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("kind", models.KINDS)
def test_every_family_exports_with_parity_at_lengths_that_were_not_traced(exported: Exported, kind: str) -> None:
    checkpoint, report = exported(kind)
    assert len(report.checked) == 6
    assert report.relative_difference < 1e-4
    assert report.exporter == f"TorchScript, torch {torch.__version__}"
    assert report.inputs == input_names(checkpoint)
    model = onnx.load(report.path)
    assert [shape(i) for i in model.graph.input] == [["batch", "seq"]] * len(report.inputs)
    assert {i.type.tensor_type.elem_type for i in model.graph.input} == {TensorProto.INT64}
    assert [(o.name, shape(o), o.type.tensor_type.elem_type) for o in model.graph.output] == [
        ("logits", ["batch", 2], TensorProto.FLOAT)
    ]
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 17)]


@pytest.mark.parametrize(
    ("head", "axes"),
    [
        ("ForTokenClassification", ["batch", "seq", 2]),
        ("ForQuestionAnswering", ["batch", "seq", 2]),
        ("Model", ["batch", 32]),
        ("ForMaskedLM", ["batch", 2]),
    ],
)
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_every_task_exports(exported: Exported, kind: str, head: str, axes: list[str | int]) -> None:
    _, report = exported(kind, head=head)
    assert shape(onnx.load(report.path).graph.output[0]) == axes


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("length", [1, 17, 64])
def test_any_batch_and_length(exported: Exported, rows: int, length: int) -> None:  # EXP-02
    checkpoint, report = exported("bert")
    feeds = synthetic_feeds(checkpoint, rows, length, seed=9)
    np.testing.assert_allclose(session(report.path)(feeds), reference(checkpoint.torch_module())(feeds), atol=2e-6)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "albert", "electra", "xlm-roberta"])
def test_attention_is_in_operators_that_fusion_knows(exported: Exported, kind: str) -> None:
    """Traced SDPA would leave square roots behind, and a Gather by position where a RoBERTa has one segment."""
    operators = Counter(n.op_type for n in onnx.load(exported(kind)[1].path).graph.node)
    assert operators["Softmax"] == 2
    assert not {"Sqrt", "GatherElements", "Identity", "Einsum"} & set(operators)


def test_masked_scores_stay_within_half_precision(exported: Exported) -> None:  # EXP-06
    _, report = exported("bert")
    assert report.beyond_half == {}
    _, deberta = exported("deberta-v2")
    assert list(deberta.beyond_half.values()) == [pytest.approx(-3.4e38, rel=0.01)] * 2


@pytest.mark.parametrize("kind", ["bert", "roberta", "albert", "deberta-v2"])
@pytest.mark.parametrize("head", ["ForSequenceClassification", "Model"])
def test_a_row_of_padding_is_finite_and_disturbs_no_other(exported: Exported, kind: str, head: str) -> None:  # EXP-07
    checkpoint, report = exported(kind, head=head)
    run = session(report.path)
    feeds = synthetic_feeds(checkpoint, 3, 16)
    feeds["input_ids"][1], feeds["attention_mask"][1] = checkpoint.pad_id, 0
    found = run(feeds)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[[0, 2]], run({n: a[[0, 2]] for n, a in feeds.items()}), atol=1e-5)
    assert np.isfinite(run({n: np.zeros_like(a) for n, a in feeds.items()})).all()


def test_shared_layers_are_stored_once(exported: Exported) -> None:  # ORT-04
    for kind in models.KINDS:
        assert exported(kind)[1].weight_ratio < 1.05
    shallow = exported("albert")[1].weight_ratio
    assert exported("albert", num_hidden_layers=6)[1].weight_ratio == pytest.approx(shallow, rel=0.01)


def test_the_module_stays_in_evaluation_mode_with_its_own_attention(tiny: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(tiny))
    module = checkpoint.torch_module(attention="sdpa")
    feeds = synthetic_feeds(checkpoint, 3, 16)
    before = reference(module)(feeds)
    module.train()  # as an exporter finds it
    export(module, checkpoint, tmp_path / "graph.onnx")
    assert not any(part.training for part in module.modules())
    assert module.model.config._attn_implementation == "sdpa"
    assert np.array_equal(reference(module)(feeds), before)


# The exporter (EXP-03)


@pytest.mark.parametrize(
    ("version", "arguments"),
    [("2.4.1", {}), ("2.5.0", {"dynamo": False}), ("2.6.0+cu124", {"dynamo": False}), ("2.9.0", {"dynamo": False})],
)
def test_the_exporter_is_chosen_by_version(version: str, arguments: dict[str, bool]) -> None:
    assert exporter_choice(version) == arguments


def test_a_torch_too_old_is_refused() -> None:
    with pytest.raises(GraphError, match=r"torch 2\.0 or newer"):
        exporter_choice("1.13.1")


def failing(monkeypatch: pytest.MonkeyPatch, action: Callable[..., None]) -> None:
    monkeypatch.setattr(torch.onnx, "export", action)


def test_an_exporter_that_fails_is_a_sentence_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tiny: Path, tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("unsupported operator\nand a page of graph")

    checkpoint = open_checkpoint(str(tiny))
    failing(monkeypatch, broken)
    with pytest.raises(GraphError, match=r"cannot export BertForSequenceClassification: unsupported operator$"):
        export(checkpoint.torch_module(), checkpoint, tmp_path / "out" / "graph.onnx")
    assert not (tmp_path / "out").exists()


def test_a_name_that_the_exporter_did_not_find_is_an_error(monkeypatch: pytest.MonkeyPatch, tiny: Path, tmp_path: Path) -> None:
    checkpoint, original = open_checkpoint(str(tiny)), torch.onnx.export

    def misnaming(module: object, args: object, file: str, *, dynamic_axes: dict, **how: object) -> None:
        original(module, args, file, dynamic_axes=dynamic_axes | {"segment_ids": {0: "batch"}}, **how)

    failing(monkeypatch, misnaming)
    with pytest.raises(GraphError, match="segment_ids"):
        export(checkpoint.torch_module(), checkpoint, tmp_path / "graph.onnx")


def test_a_frozen_axis_is_found_although_nothing_warns(monkeypatch: pytest.MonkeyPatch, tiny: Path, tmp_path: Path) -> None:
    checkpoint, original = open_checkpoint(str(tiny)), torch.onnx.export

    def freezing(module: object, args: object, file: str, *, dynamic_axes: dict, **how: object) -> None:
        original(module, args, file, dynamic_axes={n: {0: "batch"} for n in dynamic_axes}, **how)

    failing(monkeypatch, freezing)
    with pytest.raises(GraphError, match=r"'input_ids': \['batch', 11\]"):
        export(checkpoint.torch_module(), checkpoint, tmp_path / "graph.onnx")


def test_a_recorded_length_is_found_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch, tiny: Path, tmp_path: Path) -> None:
    """EXP-04: shapes look dynamic, and a constant of the traced length is inside."""
    checkpoint = open_checkpoint(str(tiny))
    module = checkpoint.torch_module()
    forward = module.forward

    def recording(input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> torch.Tensor:
        if torch.jit.is_tracing():
            attention_mask = attention_mask * (torch.arange(int(input_ids.shape[1])) < 11)
        return forward(input_ids, attention_mask, token_type_ids)

    monkeypatch.setattr(module, "forward", recording)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(GraphError, match=r"(fails|loses parity) at \d+ x \d+, right padding"):
            export(module, checkpoint, tmp_path / "graph.onnx")
    assert list(tmp_path.iterdir()) == []


# Files (ORT-04)


def test_weights_beside_the_graph_move_with_it(tiny: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(tiny))
    path = tmp_path / "first" / "graph.onnx"
    report = export(checkpoint.torch_module(), checkpoint, path, single_file_limit=10_000)
    assert [f.name for f in report.files] == ["graph.onnx", "graph.onnx.data"]
    assert sorted(os.listdir(path.parent)) == ["graph.onnx", "graph.onnx.data"]
    assert str(tmp_path).encode() not in path.read_bytes()  # a relative reference
    feeds = synthetic_feeds(checkpoint, 3, 16)
    expected = session(path)(feeds)
    moved = Path(shutil.move(path.parent, tmp_path / "second")) / "graph.onnx"
    assert np.array_equal(session(moved)(feeds), expected)
    assert storage.digest(moved) == report.sha256

    whole = export(checkpoint.torch_module(), checkpoint, tmp_path / "whole.onnx")
    assert len(whole.files) == 1
    loaded = {t.name: t for t in storage.load(moved).graph.initializer}
    for tensor in storage.load(whole.path).graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(loaded[tensor.name]), numpy_helper.to_array(tensor))


def test_weights_that_are_gone_or_changed_are_noticed(tiny: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(tiny))
    report = export(checkpoint.torch_module(), checkpoint, tmp_path / "graph.onnx", single_file_limit=10_000)
    data = tmp_path / "graph.onnx.data"
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    assert storage.digest(report.path) != report.sha256
    data.write_bytes(content[:-8])
    with pytest.raises(GraphError, match=r"graph\.onnx\.data is cut short"):
        storage.digest(report.path)
    data.unlink()
    with pytest.raises(GraphError, match=r"in graph\.onnx\.data, and there is no .*move both files together"):
        storage.load(report.path)


def test_what_is_no_graph(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="there is no graph"):
        storage.load(tmp_path / "absent.onnx")
    (tmp_path / "text.onnx").write_text("no graph at all")
    with pytest.raises(GraphError, match="cannot be read as an ONNX graph"):
        storage.load(tmp_path / "text.onnx")


def test_a_place_that_cannot_be_written(tiny: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(tiny))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*file/graph\.onnx"):
        export(checkpoint.torch_module(), checkpoint, tmp_path / "file" / "graph.onnx")


def test_tidying_takes_identities_and_copies_out() -> None:
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    nodes = [
        helper.make_node("Identity", ["a"], ["alias"]),
        helper.make_node("Identity", ["alias"], ["alias2"]),
        helper.make_node("Add", ["x", "alias2"], ["y"]),
        helper.make_node("Add", ["y", "b"], ["z"]),
        helper.make_node("Add", ["z", "other"], ["w"]),
        helper.make_node("Identity", ["w"], ["out"]),
    ]
    tensors = [numpy_helper.from_array(weight, "a"), numpy_helper.from_array(weight, "b")]
    tensors.append(numpy_helper.from_array(weight.reshape(3, 2), "other"))  # the same bytes in another shape
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", 1, [2, 3])], [value("out", 1, None)], tensors)
    model = helper.make_model(graph)
    tidy(model)
    assert [n.op_type for n in model.graph.node] == ["Add", "Add", "Add", "Identity"]  # the last one makes the output
    assert [list(n.input) for n in model.graph.node[:2]] == [["x", "b"], ["y", "b"]]
    assert [t.name for t in model.graph.initializer] == ["b", "other"]
