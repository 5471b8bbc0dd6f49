"""FP16 rewriting, judged by evaluators that really compute in FP16 or say so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from bertopt.errors import GraphError
from bertopt.graph import parity
from bertopt.graph.half import FP16_MAX, LIMIT, half
from bertopt.graph.ranges import observe_ranges
from bertopt.model import Checkpoint, open_checkpoint

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="session")
def exported(checkpoint_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    from bertopt.graph.export import export

    made: dict[str, tuple[Checkpoint, onnx.ModelProto]] = {}

    def make(kind: str = "bert", **changes: Any) -> tuple[Checkpoint, onnx.ModelProto]:
        key = repr((kind, sorted(changes.items())))
        if key not in made:
            checkpoint = open_checkpoint(str(checkpoint_folder(kind, **changes)))
            path = tmp_path_factory.mktemp(kind) / "canonical.onnx"
            export(checkpoint.torch_module(attention="eager"), checkpoint, path)
            made[key] = checkpoint, onnx.load(path)
        checkpoint, model = made[key]
        return checkpoint, onnx.ModelProto.FromString(model.SerializeToString())

    return make


def run(model: onnx.ModelProto, feeds: Arrays) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]


class LayerNormalization(OpRun):  # type: ignore[misc]
    """With the statistics in FP32, as `stash_type` 1 means; the evaluator's own computes them in FP16."""

    op_domain = ""

    def _run(self, x: Any, scale: Any, bias: Any, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
        assert (axis, stash_type) == (-1, 1)
        wide = x.astype(np.float32)
        centred = wide - wide.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(epsilon))
        return ((centred / deviation).astype(x.dtype) * scale + bias,)


def run_in_half(model: onnx.ModelProto, feeds: Arrays) -> np.ndarray:
    """numpy's own FP16 after every node: no fusion and no wider kernel that would hide an overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        return ReferenceEvaluator(model, new_ops=[LayerNormalization]).run(None, feeds)[0]


def texts(checkpoint: Checkpoint, *shapes: tuple[int, int]) -> list[Arrays]:
    return [parity.synthetic_feeds(checkpoint, rows, length, seed=i) for i, (rows, length) in enumerate(shapes)]


def types(model: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    return {v.name: v.type.tensor_type.elem_type for v in inferred.value_info}


def weight(model: onnx.ModelProto, part: str) -> onnx.TensorProto:
    return next(t for t in model.graph.initializer if part in t.name)


def scale(tensor: onnx.TensorProto, factor: float) -> None:
    tensor.CopyFrom(numpy_helper.from_array((numpy_helper.to_array(tensor) * factor).astype(np.float32), tensor.name))


@pytest.mark.parametrize("kind", ["bert", "distilbert", "albert", "roberta", "electra", "deberta-v2", "mobilebert"])
def test_every_family_keeps_its_answers(exported: Callable[..., Any], kind: str) -> None:
    checkpoint, model = exported(kind)
    lowered, report = half(model, texts(checkpoint, (3, 16), (2, 48)))
    assert {i.type.tensor_type.elem_type for i in lowered.graph.input} == {TensorProto.INT64}
    assert [(o.name, o.type.tensor_type.elem_type) for o in lowered.graph.output] == [("logits", TensorProto.FLOAT)]
    assert report.half_nodes > 5 * len(report.kept)
    judged = texts(checkpoint, (1, 16), (3, 17), (7, 48))
    right = np.concatenate([run(model, feeds) for feeds in judged])
    found = np.concatenate([run(lowered, feeds) for feeds in judged])
    verdict = parity.compare(right, found, precision="fp16", task=checkpoint.task, trained=False)
    assert verdict.passed, parity.describe(verdict)
    assert verdict.max_difference > 0.0  # it did compute in something else than FP32


def test_products_and_weights_are_fp16(exported: Callable[..., Any]) -> None:
    checkpoint, model = exported()
    lowered, report = half(model, texts(checkpoint, (3, 16)))
    typed = types(lowered)
    products = [n for n in lowered.graph.node if n.op_type in ("MatMul", "Gemm", "LayerNormalization", "Softmax")]
    assert products
    assert {typed[n.output[0]] for n in products} == {TensorProto.FLOAT16}
    assert all(t.data_type != TensorProto.FLOAT for t in lowered.graph.initializer)
    assert report.casts == 1  # the logits
    assert report.groups == dict.fromkeys(("other", "embeddings", "layer 0", "layer 1", "head"), "fp16")


@pytest.mark.parametrize("pads", [0, 1, 63])
def test_mask_constant_beyond_fp16_is_clamped(exported: Callable[..., Any], pads: int) -> None:
    """EXP-06: the smallest float becomes -inf in FP16, and 0 * -inf is NaN."""
    checkpoint, model = exported()
    mask = next(t for t in _scalars(model) if numpy_helper.to_array(t) == -10000.0)
    mask.CopyFrom(numpy_helper.from_array(np.array(np.finfo(np.float32).min, np.float32), mask.name))
    lowered, report = half(model, texts(checkpoint, (3, 16)))
    assert list(report.clamped.values()) == [np.finfo(np.float32).min]
    assert any("became -32768" in line for line in report.lines())
    assert not report.kept
    ids = np.random.default_rng(0).integers(5, 100, (3, 64))
    attended = np.ones_like(ids)
    attended[1, 64 - pads :] = 0
    feeds = {"input_ids": ids, "attention_mask": attended, "token_type_ids": np.zeros_like(ids)}
    right, found = run(model, feeds), run(lowered, feeds)
    assert np.isfinite(found).all()
    assert (right.argmax(1) == found.argmax(1)).all()
    np.testing.assert_allclose(found, right, atol=0.01)


def _scalars(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    constants = [n.attribute[0].t for n in model.graph.node if n.op_type == "Constant"] + list(model.graph.initializer)
    return [t for t in constants if t.data_type == TensorProto.FLOAT and int(np.prod(t.dims)) == 1]


def test_a_fully_padded_row_is_finite_and_harms_nobody(exported: Callable[..., Any]) -> None:
    """EXP-07."""
    checkpoint, model = exported()
    lowered, _ = half(model, texts(checkpoint, (3, 16)))
    feeds = texts(checkpoint, (3, 16))[0]
    whole = run(lowered, feeds)
    feeds["attention_mask"][1] = 0
    broken = run(lowered, feeds)
    assert np.isfinite(broken).all()
    np.testing.assert_array_equal(broken[[0, 2]], whole[[0, 2]])


@pytest.mark.parametrize("length", [16, 48])
def test_overflow_is_predicted_and_kept_in_fp32(exported: Callable[..., Any], length: int) -> None:
    """ENG-03: hidden values of 400 pass through LayerNormalization; a product that reaches 30 times FP16 does not."""
    checkpoint, model = exported()
    scale(weight(model, "word_embeddings"), 400.0)
    product = next(n for n in model.graph.node if n.op_type == "MatMul" and "layer.1/intermediate" in n.name)
    scale(next(t for t in model.graph.initializer if t.name == product.input[1]), 2e5)
    ranges = observe_ranges(model, texts(checkpoint, (3, 16)))
    assert max(ranges.values()) > FP16_MAX
    lowered, report = half(model, texts(checkpoint, (3, 16)))
    kept = {k.node for k in report.kept}
    assert product.name in kept
    assert not any("layer.0" in name for name in kept)
    assert report.groups["layer 0"] == "fp16"
    assert "nodes fp32" in report.groups["layer 1"]
    assert any(product.name in line and "over" in line for line in report.lines())
    feeds = texts(checkpoint, (2, length))[0]
    found = run_in_half(lowered, feeds)
    assert np.isfinite(found).all()
    verdict = parity.compare(run(model, feeds), found, precision="fp16", task=checkpoint.task, trained=False)
    assert verdict.passed, parity.describe(verdict)


def test_without_the_prediction_the_same_model_gives_nan(exported: Callable[..., Any]) -> None:
    """The overflow above is real: retyping everything loses the answer."""
    from bertopt.graph.ranges import tensor_types
    from bertopt.graph.retype import plain, retype

    checkpoint, model = exported()
    product = next(n for n in model.graph.node if n.op_type == "MatMul" and "layer.1/intermediate" in n.name)
    scale(next(t for t in model.graph.initializer if t.name == product.input[1]), 2e5)
    graph = plain(model)
    with np.errstate(over="ignore"):
        retype(graph, set(), tensor_types(graph))
    assert not np.isfinite(run_in_half(graph, texts(checkpoint, (2, 16))[0])).all()


def written_out_norm(epsilon: float) -> onnx.ModelProto:
    """ids -> embedding -> (x - mean) / sqrt(mean((x - mean)^2) + eps), as exporters wrote it before opset 17."""
    table = np.random.default_rng(0).normal(0, 400, (100, 32)).astype(np.float32)
    table[7] = 3.0  # a row without variance
    constants = {"table": table, "two": np.float32(2), "eps": np.float32(epsilon)}
    nodes = [
        ("Gather", ["table", "input_ids"], "x"),
        ("ReduceMean", ["x"], "mean"),
        ("Sub", ["x", "mean"], "centred"),
        ("Pow", ["centred", "two"], "squares"),
        ("ReduceMean", ["squares"], "variance"),
        ("Add", ["variance", "eps"], "guarded"),
        ("Sqrt", ["guarded"], "deviation"),
        ("Div", ["centred", "deviation"], "logits"),
    ]
    made = [
        helper.make_node(op, i, [o], name=o, **({"axes": [-1], "keepdims": 1} if op == "ReduceMean" else {}))
        for op, i, o in nodes
    ]
    graph = helper.make_graph(
        made,
        "norm",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "seq", 32])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5])
def test_written_out_layer_norm_keeps_its_statistics_in_fp32(epsilon: float) -> None:
    """ENG-03: 300 squared is beyond FP16, and an epsilon of 1e-12 is 0 there."""
    model = written_out_norm(epsilon)
    feeds = {"input_ids": np.array([[5, 6, 7, 8], [7, 7, 9, 10]])}
    lowered, report = half(model, [{"input_ids": np.array([[5, 6]])}])
    assert {k.node for k in report.kept} >= {"squares", "variance", "guarded", "deviation"}
    found = run_in_half(lowered, feeds)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, run(model, feeds), atol=5e-3)


def test_rows_without_variance_stay_finite(exported: Callable[..., Any]) -> None:
    checkpoint, model = exported()
    for part in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
        tensor = weight(model, part)
        flat = np.repeat(numpy_helper.to_array(tensor)[:, :1], 32, axis=1)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(flat), tensor.name))
    feeds = texts(checkpoint, (3, 16))
    lowered, _ = half(model, feeds)
    found = run_in_half(lowered, feeds[0])
    np.testing.assert_allclose(found, run(model, feeds[0]), atol=0.02)


def test_weights_out_of_range_keep_their_node_in_fp32(exported: Callable[..., Any]) -> None:
    checkpoint, model = exported()
    bias = weight(model, "classifier.bias")
    bias.CopyFrom(numpy_helper.from_array(np.array([1e5, -1e5], np.float32), bias.name))
    feeds = texts(checkpoint, (3, 16))
    lowered, report = half(model, feeds)
    assert [k.reason for k in report.kept] == [f"constant {bias.name} reaches 100000, over 65504"]
    np.testing.assert_allclose(run(lowered, feeds[0]), run(model, feeds[0]), rtol=1e-4)


def test_positions_are_computed_in_fp32(exported: Callable[..., Any]) -> None:
    """DeBERTa finds its buckets with a logarithm and a ceiling: rounding there would look up another position."""
    checkpoint, model = exported("deberta-v2")
    _, report = half(model, texts(checkpoint, (3, 16)))
    assert {"Log", "Ceil"} <= {k.op for k in report.kept}


@given(st.integers(-4, 40), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_no_scale_of_a_product_makes_the_rewrite_overflow(power: int, seed: int) -> None:
    """Whatever the magnitudes, the typed graph is finite where FP32 is, and close to it."""
    rng = np.random.default_rng(seed)
    first, second = rng.normal(0, 1, (2, 16, 16)).astype(np.float32)
    first *= np.float32(2.0**power)
    constants = {"table": rng.normal(0, 1, (10, 16)).astype(np.float32), "first": first, "second": second}
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"], name="gather"),
        helper.make_node("MatMul", ["x", "first"], ["y"], name="first_product"),
        helper.make_node("MatMul", ["y", "second"], ["logits"], name="second_product"),
    ]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "seq", 16])],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"input_ids": rng.integers(0, 10, (2, 5))}
    lowered, report = half(model, [feeds])
    right, found = run(model, feeds), run_in_half(lowered, feeds)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, right, atol=0.03 * np.abs(right).max())
    beyond = observe_ranges(model, [feeds])["y"] > LIMIT or np.abs(first).max() > FP16_MAX
    assert ("first_product" in {k.node for k in report.kept}) == beyond


def test_ranges_agree_with_the_reference_evaluator(exported: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, model = exported()
    feeds = texts(checkpoint, (2, 9), (1, 5))
    fast = observe_ranges(model, feeds)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)  # as where it is not installed
    slow = observe_ranges(model, feeds)
    assert fast.keys() == slow.keys()
    np.testing.assert_allclose([slow[k] for k in fast], list(fast.values()), rtol=1e-4)


def test_ranges_are_the_maximum_over_batches(exported: Callable[..., Any]) -> None:
    checkpoint, model = exported()
    first, second = texts(checkpoint, (2, 9), (3, 20))
    both, one, two = (observe_ranges(model, f) for f in ([first, second], [first], [second]))
    assert all(both[name] == max(one[name], two[name]) for name in both)


def test_what_cannot_be_rewritten_is_refused(exported: Callable[..., Any]) -> None:
    checkpoint, model = exported()
    feeds = texts(checkpoint, (2, 9))
    with pytest.raises(GraphError, match="at least one batch"):
        half(model, [])
    lowered, _ = half(model, feeds)
    with pytest.raises(GraphError, match="FLOAT16: start from the FP32 graph"):
        half(lowered, feeds)
    model.graph.node[0].domain = "com.microsoft"
    with pytest.raises(GraphError, match=r"com\.microsoft"):
        half(model, feeds)


def test_nan_in_fp32_is_an_error_and_not_a_range(exported: Callable[..., Any]) -> None:
    """A comparison with NaN is false, so a check of `range > limit` alone would let it pass."""
    checkpoint, model = exported()
    table = weight(model, "word_embeddings")
    table.CopyFrom(numpy_helper.from_array(np.full_like(numpy_helper.to_array(table), np.inf), table.name))
    with pytest.raises(GraphError, match="not finite already in FP32"):
        half(model, texts(checkpoint, (2, 9)))
