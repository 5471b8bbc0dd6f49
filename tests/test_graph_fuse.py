from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bertopt.errors import GraphError
from bertopt.graph import fuse as fusing
from bertopt.graph import storage
from bertopt.graph.export import export, reference, session
from bertopt.graph.fuse import Fusion, expected, fuse, order_operands
from bertopt.graph.parity import synthetic_feeds
from bertopt.model import Checkpoint, open_checkpoint

Make = Callable[..., Path]
SERVED = ["bert", "distilbert", "roberta", "albert", "electra", "xlm-roberta", "camembert"]


@pytest.fixture(scope="session")
def canonical(checkpoint_folder: Make, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Checkpoint, Path]]:
    made: dict[str, tuple[Checkpoint, Path]] = {}

    def make(kind: str, **changes: object) -> tuple[Checkpoint, Path]:
        key = repr((kind, changes))
        if key not in made:
            checkpoint = open_checkpoint(str(checkpoint_folder(kind, **changes)))
            path = tmp_path_factory.mktemp("graph") / "canonical.onnx"
            export(checkpoint.torch_module(), checkpoint, path)
            made[key] = checkpoint, path
        return made[key]

    return make


Canonical = Callable[..., tuple[Checkpoint, Path]]


@pytest.fixture
def fused(canonical: Canonical, tmp_path: Path) -> Callable[..., tuple[Checkpoint, Fusion]]:
    def make(kind: str, *, half: bool = False, mask: str = "raw", **changes: object) -> tuple[Checkpoint, Fusion]:
        checkpoint, source = canonical(kind, **changes)
        return checkpoint, fuse(source, tmp_path / "fused.onnx", checkpoint, half=half, mask=mask)

    return make


Fused = Callable[..., tuple[Checkpoint, Fusion]]


# Counts (ORT-01)


@pytest.mark.parametrize("kind", SERVED)
def test_every_layer_of_every_served_family_is_fused(fused: Fused, kind: str) -> None:
    checkpoint, fusion = fused(kind)
    assert fusion.expected == {"attention": 2, "skip_layer_norm": 4, "gelu": 2}
    assert fusion.counts["Attention"] == 2
    assert fusion.counts["SkipLayerNormalization"] == 4
    written = Counter(n.op_type for n in onnx.load(fusion.path).graph.node if n.domain == "com.microsoft")
    assert written == fusion.counts
    feeds = synthetic_feeds(checkpoint, 7, 23, seed=4)
    np.testing.assert_allclose(session(fusion.path)(feeds), reference(checkpoint.torch_module())(feeds), atol=5e-6)


def test_the_embedding_norm_of_a_bert_is_fused_too(fused: Fused) -> None:
    assert fused("bert")[1].counts["EmbedLayerNormalization"] == 1


@pytest.mark.parametrize(
    ("activation", "gelus"), [("relu", {}), ("gelu_new", {"FastGelu": 2}), ("gelu", {"BiasGelu": 2}), ("silu", {})]
)
def test_activations(fused: Fused, activation: str, gelus: dict[str, int]) -> None:
    checkpoint, fusion = fused("bert", hidden_act=activation)
    assert {op: n for op, n in fusion.counts.items() if "Gelu" in op} == gelus
    assert fusion.found["attention"] == 2
    feeds = synthetic_feeds(checkpoint, 3, 16)
    np.testing.assert_allclose(session(fusion.path)(feeds), reference(checkpoint.torch_module())(feeds), atol=5e-6)


def test_heads_that_do_not_halve_the_width(fused: Fused) -> None:
    _, fusion = fused("bert", hidden_size=48, num_attention_heads=3)
    assert fusion.found["attention"] == 2
    attention = [n for n in onnx.load(fusion.path).graph.node if n.op_type == "Attention"]
    assert {a.i for n in attention for a in n.attribute if a.name == "num_heads"} == {3}


@pytest.mark.parametrize("kind", ["bert", "roberta", "albert"])
@pytest.mark.parametrize("head", ["Model", "ForTokenClassification", "ForQuestionAnswering"])
def test_tasks(fused: Fused, kind: str, head: str) -> None:
    assert fused(kind, head=head)[1].found["attention"] == 2


@pytest.mark.parametrize("kind", ["deberta-v2", "mobilebert"])
def test_families_that_have_no_fused_attention_say_so(fused: Fused, kind: str) -> None:
    checkpoint, fusion = fused(kind)
    assert expected(checkpoint) == {}
    assert fusion.found["attention"] == 0
    assert "attention not fused" in fusion.notes[0]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_an_export_that_nothing_was_recognised_in_fails(
    monkeypatch: pytest.MonkeyPatch, tiny: Path, tmp_path: Path, attention: str
) -> None:
    """Both of transformers' own attentions hide from the tool: that is why exports are traced with another."""
    checkpoint = open_checkpoint(str(tiny))
    monkeypatch.setattr("bertopt.encoder.export_attention", lambda config: attention)
    export(checkpoint.torch_module(), checkpoint, tmp_path / "graph.onnx")
    with pytest.raises(GraphError, match="fusion incomplete: 0/2 attention"):
        fuse(tmp_path / "graph.onnx", tmp_path / "fused.onnx", checkpoint)
    assert not (tmp_path / "fused.onnx").exists()


def test_node_names_do_not_matter(canonical: Canonical, tmp_path: Path) -> None:
    checkpoint, source = canonical("albert")
    model = storage.load(source)
    names: dict[str, str] = {"": ""}
    kept = {v.name for v in (*model.graph.input, *model.graph.output)}
    for number, node in enumerate(model.graph.node):
        node.name = f"n{number}"
    for values in (*(n.input for n in model.graph.node), *(n.output for n in model.graph.node)):
        for i, name in enumerate(values):
            values[i] = name if name in kept else names.setdefault(name, f"t{len(names)}")
    for tensor in model.graph.initializer:
        tensor.name = names.setdefault(tensor.name, f"t{len(names)}")
    del model.graph.value_info[:]
    storage.save(model, tmp_path / "renamed.onnx")
    assert fuse(tmp_path / "renamed.onnx", tmp_path / "fused.onnx", checkpoint).found["attention"] == 2


def test_an_exact_gelu_may_not_become_an_approximation(
    canonical: Canonical, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoint, source = canonical("bert", hidden_act="gelu_new")
    monkeypatch.setattr(fusing, "activation", lambda checkpoint: "gelu")
    with pytest.raises(GraphError, match="replaced 2 exact GELUs"):
        fuse(source, tmp_path / "fused.onnx", checkpoint)


# Masks (ORT-02)

MASKS = {"right": [1, 1, 1, 1, 0, 0, 0], "left": [0, 0, 0, 1, 1, 1, 1], "gapped": [1, 1, 0, 1, 1, 1, 0]}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_any_padding_gives_what_the_unfused_graph_gives(fused: Fused, canonical: Canonical, kind: str, half: bool) -> None:
    checkpoint, fusion = fused(kind, half=half)
    mask = np.array(list(MASKS.values()))
    ids = np.where(mask == 1, np.random.default_rng(0).integers(5, 100, mask.shape), checkpoint.pad_id)
    feeds = {"input_ids": ids, "attention_mask": mask}
    if checkpoint.uses_type_ids:
        feeds["token_type_ids"] = (np.arange(7) > 3) * mask
    difference = np.abs(session(fusion.path)(feeds) - session(canonical(kind)[1])(feeds)).max(axis=1)
    assert (difference < (2e-2 if half else 5e-6)).all(), dict(zip(MASKS, difference, strict=True))


def test_a_mask_read_as_a_length_is_right_for_padding_on_the_right_only(fused: Fused, canonical: Canonical) -> None:
    checkpoint, fusion = fused("bert", mask="length")
    assert fusion.found["attention"] == 2
    for padding, same in (("right", True), ("left", False)):
        feeds = synthetic_feeds(checkpoint, 3, 16, padding=padding)
        difference = np.abs(session(fusion.path)(feeds) - session(canonical("bert")[1])(feeds)).max()
        assert bool(difference < 5e-6) is same


def test_a_fused_row_of_padding_is_finite_and_disturbs_no_other(fused: Fused) -> None:  # EXP-07
    checkpoint, fusion = fused("bert")
    feeds = synthetic_feeds(checkpoint, 3, 16)
    feeds["attention_mask"][1] = 0
    run = session(fusion.path)
    found = run(feeds)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[[0, 2]], run({n: a[[0, 2]] for n, a in feeds.items()}), atol=1e-5)


# Half precision


@pytest.mark.parametrize("kind", SERVED)
def test_the_half_graph_holds_half_weights_and_gives_float32_logits(fused: Fused, kind: str) -> None:
    _, fusion = fused(kind, half=True)
    assert fusion.half
    assert fusion.found == {"attention": 2, "skip_layer_norm": 4, "gelu": fusion.found["gelu"]}
    assert 0 < fusion.relative_difference < 0.05
    graph = onnx.load(fusion.path).graph
    sizes = Counter[int]()
    for tensor in graph.initializer:
        sizes[tensor.data_type] += int(np.prod(tensor.dims))
    assert sizes[TensorProto.FLOAT16] > 100 * sizes[TensorProto.FLOAT]
    assert graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_the_summary_is_plain_json(fused: Fused) -> None:
    import json

    summary = fused("bert")[1].summary()
    assert json.loads(json.dumps(summary)) == summary
    assert summary["counts"]["Attention"] == 2


def test_operands_are_put_in_the_tools_order() -> None:
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["word"]),
        helper.make_node("Shape", ["word"], ["shape"]),
        helper.make_node("Gather", ["positions", "shape"], ["position"]),
        helper.make_node("Add", ["position", "word"], ["embedded"]),
        helper.make_node("LayerNormalization", ["embedded", "s"], ["root"]),
        helper.make_node("Relu", ["root"], ["branch"]),
        helper.make_node("Add", ["root", "branch"], ["residual"]),
        helper.make_node("LayerNormalization", ["residual", "s"], ["next"]),
        helper.make_node("Add", ["branch", "root"], ["ordered"]),
        helper.make_node("LayerNormalization", ["ordered", "s"], ["last"]),
    ]
    graph = helper.make_graph(nodes, "g", [], [])
    order_operands(graph)
    assert [list(n.input) for n in graph.node if n.op_type == "Add"] == [
        ["word", "position"],
        ["branch", "root"],
        ["branch", "root"],
    ]
