"""Q/DQ pairs on every family: counted, equal to the float graph once they are taken out, and what each builder takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from bertopt.backends import openvino
from bertopt.backends.base import Options
from bertopt.batching import Batch, Padded
from bertopt.calibration import Calibration, SiteRange
from bertopt.errors import GraphError, PlanError
from bertopt.graph import parity, ranges, storage
from bertopt.graph.attention import products
from bertopt.graph.calibrate import LEVELS, observe
from bertopt.graph.emit import TARGETS, Int8, describe, emit
from bertopt.graph.export import export, session
from bertopt.graph.fuse import fuse
from bertopt.graph.linears import HEADS, count, sites
from bertopt.graph.quantize import SAFE_LEVELS, check, fold_weights, half_up, int8_products, levels_for, quantize
from bertopt.model import Checkpoint, open_checkpoint
from bertopt.tokens import Tokens
from bertopt.workspace import Workspace
from tests import models

FAMILIES = {  # Linears of a 2-layer encoder, kinds of its sites, smoothings that fold into values
    "bert": (12, {"qkv", "attention-output", "up", "down"}, 2),
    "distilbert": (12, {"qkv", "attention-output", "up", "down"}, 2),
    "roberta": (12, {"qkv", "attention-output", "up", "down"}, 2),
    "xlm-roberta": (12, {"qkv", "attention-output", "up", "down"}, 2),
    "albert": (13, {"embedding_hidden_mapping_in", "qkv", "attention-output", "up", "down"}, 2),
    "electra": (13, {"embeddings_project", "qkv", "attention-output", "up", "down"}, 2),
    "deberta-v2": (12, {"qkv", "attention-output", "up", "down"}, 0),
    "mobilebert": (31, {"embedding_transformation", "dense", "qkv", "attention-output", "up", "down"}, 2),
}


@dataclasses.dataclass(frozen=True)
class Exported:
    checkpoint: Checkpoint
    path: Path

    @property
    def model(self) -> onnx.ModelProto:
        return onnx.load(self.path)

    def feeds(self, rows: int = 4, length: int = 20, seed: int = 0) -> parity.Feeds:
        return parity.synthetic_feeds(self.checkpoint, rows, length, seed=seed)

    def calibrated(self, **options: Any) -> Calibration:
        return calibration(observe(self.model, [self.feeds()], **options), storage.digest(self.path))


def calibration(found: dict[str, SiteRange], graph: str = "") -> Calibration:
    return Calibration("minmax", 0.95, 64, False, "", graph, "", "", "made up", 4, 0, sites=found)


@pytest.fixture(scope="module")
def exported(checkpoint_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    made: dict[str, Exported] = {}

    def make(kind: str) -> Exported:
        if kind not in made:
            checkpoint = open_checkpoint(str(checkpoint_folder(kind)))
            path = tmp_path_factory.mktemp("quantize") / "canonical.onnx"
            export(checkpoint.torch_module(attention="eager"), checkpoint, path)
            made[kind] = Exported(checkpoint, path)
        return made[kind]

    return make


@pytest.fixture(scope="module")
def tiny_bert(exported: Callable[[str], Exported]) -> Exported:
    return exported("bert")


def logits(model: onnx.ModelProto, feeds: parity.Feeds) -> np.ndarray:
    return ranges.runner(model, ["logits"])(feeds)[0]


def without_pairs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with every Q/DQ pair taken out: what is left of quantization is smoothing."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    source = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    source |= {n.output[0]: source[n.input[0]] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    kept = [n for n in model.graph.node if n.op_type not in ("QuantizeLinear", "DequantizeLinear")]
    del result.graph.node[:]
    result.graph.node.extend(kept)
    for node in result.graph.node:
        for position, name in enumerate(node.input):
            node.input[position] = source.get(name, name)
    return result


def readers_of_int8(model: onnx.ModelProto) -> set[str]:
    floats = {n.output[0] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    return {n.name for n in model.graph.node if not floats.isdisjoint(n.input)}


# Placement


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_linear_of_every_family(exported: Callable[[str], Exported], kind: str) -> None:
    """Q-07: n of m Linears, heads untouched, a valid graph, and FP32 logits unchanged but for the pairs."""
    linears, kinds, folded = FAMILIES[kind]
    case = exported(kind)
    model, found = case.model, case.calibrated()
    assert {site.kind for site in sites(model)} == kinds
    assert not any(name.startswith("model.") for name in found.sites)
    result, placement = quantize(model, found)
    onnx.checker.check_model(result, full_check=True)
    assert (placement.quantized_linears, placement.linears, placement.folded) == (linears, linears, folded)
    assert placement.lines() == [f"{linears} of {linears} Linears in INT8"]
    assert int8_products(result) == linears
    assert not any(part in HEADS for name in readers_of_int8(result) for part in name.split("/"))
    feeds = case.feeds(7, 17, seed=3)
    right = logits(model, feeds)
    assert np.abs(logits(without_pairs(result), feeds) - right).max() < 3e-5 * right.std()
    lowered = logits(result, feeds)
    assert not np.array_equal(lowered, right)
    assert np.array_equal(logits(fold_weights(result), feeds), lowered)


def test_layers_that_share_weights_share_one_quantized_weight(exported: Callable[[str], Exported]) -> None:
    case = exported("albert")
    found = sites(case.model)
    assert len(found) == 9
    assert len({site.name for site in found}) == 5
    result, _ = quantize(case.model, case.calibrated())
    weights = {t.name for t in result.graph.initializer}
    quantized = [n for n in result.graph.node if n.op_type == "QuantizeLinear" and n.input[0] in weights]
    assert len(quantized) == 7  # embeddings, q, k, v, output, up, down: once for both layers


def test_equal_weights_in_different_places_are_scaled_apart(checkpoint_folder: Callable[..., Path], tmp_path: Path) -> None:
    """The exporter stores equal tensors once: two layers that read one initializer may still be smoothed differently."""
    folder = models.save("bert", tmp_path / "m")

    def equal(tensors: dict[str, Any]) -> None:
        for part in ("attention.self.value", "attention.output.dense", "intermediate.dense"):
            one, other = (f"bert.encoder.layer.{layer}.{part}.weight" for layer in (0, 1))
            tensors[other] = tensors[one].clone()

    models.rewrite(folder, equal)
    checkpoint = open_checkpoint(str(folder))
    case = Exported(checkpoint, tmp_path / "canonical.onnx")
    export(checkpoint.torch_module(attention="eager"), checkpoint, case.path)
    result, _ = quantize(case.model, case.calibrated())
    onnx.checker.check_model(result, full_check=True)
    feeds = case.feeds(7, 17, seed=3)
    right = logits(case.model, feeds)
    assert np.abs(logits(without_pairs(result), feeds) - right).max() < 3e-5 * right.std()


def test_what_is_left_stays_as_it_was(tiny_bert: Exported) -> None:
    found = tiny_bert.calibrated()
    down = [name for name in found.sites if name.endswith("output.dense") and "attention" not in name]
    result, placement = quantize(tiny_bert.model, found, leave=down)
    assert (placement.quantized_linears, placement.left) == (10, down)
    assert placement.lines() == [f"10 of 12 Linears in INT8; left in float: {', '.join(down)}"]
    tensors = {t.name: t for t in tiny_bert.model.graph.initializer}
    same = {t.name for t in result.graph.initializer if t.name in tensors and t == tensors[t.name]}
    for site in sites(tiny_bert.model):
        assert (site.linears[0].weight in same) == (site.name in down)


def test_a_calibration_of_another_graph_is_refused(tiny_bert: Exported) -> None:
    found = tiny_bert.calibrated()
    first = next(iter(found.sites))
    with pytest.raises(GraphError, match=rf"no range for {first.replace('+', '.')}"):
        quantize(tiny_bert.model, calibration({n: r for n, r in found.sites.items() if n != first}))
    with pytest.raises(GraphError, match=r"has 3 smoothing factors for .*, and its input has 32 channels"):
        quantize(tiny_bert.model, calibration(found.sites | {first: SiteRange(1.0, [1.0, 2.0, 3.0])}))
    with pytest.raises(GraphError, match="there is no layer 9 to leave in float; there are bert"):
        quantize(tiny_bert.model, found, leave=["layer 9"])


def test_int8_in_name_only_is_an_error(tiny_bert: Exported, tmp_path: Path) -> None:
    """Q-07: nothing left to quantize, and a graph that was fused first."""
    found = tiny_bert.calibrated()
    with pytest.raises(GraphError, match="not applied: all 12 Linears are left in float"):
        quantize(tiny_bert.model, found, leave=list(found.sites))
    with pytest.raises(GraphError, match="not applied: 0 of 12"):
        check(tiny_bert.model, 12)
    fuse(tiny_bert.path, tmp_path / "fused.onnx", tiny_bert.checkpoint)
    fused = sites(onnx.load(tmp_path / "fused.onnx"))  # fused attention took query, key and value: 6 of 12 are left
    assert count(fused) < 12
    with pytest.raises(GraphError, match="belongs to another graph"):
        quantize(onnx.load(tmp_path / "fused.onnx"), calibration({}))


def test_zero_points_that_tensorrt_would_get_wrong_are_refused(tiny_bert: Exported) -> None:
    result, _ = quantize(tiny_bert.model, tiny_bert.calibrated())
    zeros = [t for t in result.graph.initializer if t.name.endswith("_zero")]
    assert {t.data_type for t in zeros} == {TensorProto.INT8}
    for wrong in (np.uint8(0), np.int8(1)):
        broken = onnx.ModelProto()
        broken.CopyFrom(result)
        zero = next(t for t in broken.graph.initializer if t.name.endswith("_zero") and not t.dims)
        zero.CopyFrom(numpy_helper.from_array(np.asarray(wrong), zero.name))
        with pytest.raises(GraphError, match="no int8 zero point of 0"):
            check(broken, 12)
    without = onnx.ModelProto()
    without.CopyFrom(result)
    next(n for n in without.graph.node if n.op_type == "QuantizeLinear").input.pop()
    with pytest.raises(GraphError, match="no int8 zero point of 0"):
        check(without, 12)


# Attention products, an option


@pytest.mark.parametrize("kind", ["bert", "albert", "distilbert"])
def test_attention_products(exported: Callable[[str], Exported], kind: str) -> None:
    case = exported(kind)
    found = case.calibrated(attention=True)
    result, placement = quantize(case.model, found, attention=True)
    onnx.checker.check_model(result, full_check=True)
    assert placement.products == 4
    assert int8_products(result) == placement.quantized_linears + 4
    feeds = case.feeds(7, 17, seed=3)
    right = logits(case.model, feeds)
    assert np.abs(logits(without_pairs(result), feeds) - right).max() < 3e-5 * right.std()
    plain = np.abs(logits(quantize(case.model, found)[0], feeds) - right).max()
    assert np.abs(logits(result, feeds) - right).max() < 2 * plain + 0.2 * right.std()


def test_a_range_of_values_is_that_of_smoothed_values(tiny_bert: Exported) -> None:
    """Values are divided by the factors of the attention output; their range must be too, or they clip or waste."""
    found = tiny_bert.calibrated(attention=True)
    result, _ = quantize(tiny_bert.model, found, attention=True)
    for product in products(tiny_bert.model):
        tensor = product.tensors["value"]
        result.graph.output.append(helper.make_tensor_value_info(tensor, TensorProto.FLOAT, None))
        feeds = tiny_bert.feeds()
        real = feeds["attention_mask"].astype(bool)[:, None, :, None]
        values = ranges.runner(without_pairs(result), [tensor])(feeds)[0]
        highest = np.abs(np.where(real, values, 0)).max()
        assert highest / LEVELS == pytest.approx(found.sites[product.range_name("value")].scale, rel=1e-3)


def test_products_stay_in_float_where_their_output_does(tiny_bert: Exported) -> None:
    found = tiny_bert.calibrated(attention=True)
    _, placement = quantize(tiny_bert.model, found, attention=True, leave=["bert.encoder.layer.0.attention.output.dense"])
    assert placement.products == 2
    with pytest.raises(GraphError, match="no ranges for the attention products of bert"):
        quantize(tiny_bert.model, tiny_bert.calibrated(), attention=True)


def test_attention_that_is_not_plain_is_refused(exported: Callable[[str], Exported]) -> None:
    with pytest.raises(GraphError, match="no attention of the plain form"):
        observe(exported("deberta-v2").model, [exported("deberta-v2").feeds()], attention=True)


# processors that add products in 16 bits


def crafted(weights: np.ndarray, values: np.ndarray) -> tuple[onnx.ModelProto, Calibration, parity.Feeds]:
    """One Linear [inputs, outputs] that reads `values` [tokens, inputs] through a table."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"], name="/gather"),
        helper.make_node("MatMul", ["x", "w"], ["logits"], name="/model/bert/encoder/layer.0/intermediate/dense/MatMul"),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "seq"]) for n in ("input_ids", "attention_mask")]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(values.astype(np.float32), "table"), numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph(nodes, "crafted", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    scale = float(np.abs(values).max()) / LEVELS
    feeds = {"input_ids": np.arange(len(values))[None], "attention_mask": np.ones((1, len(values)), np.int64)}
    return model, calibration({"bert.encoder.layer.0.intermediate.dense": SiteRange(scale)}), feeds


def added_in_16_bits(unsigned: np.ndarray, signed: np.ndarray) -> np.ndarray:
    """What vpmaddubsw makes of u8 [inputs] x s8 [inputs, outputs]: neighbours are added in 16 bits, and saturate."""
    products = unsigned.astype(np.int64)[:, None] * signed.astype(np.int64)
    return np.clip(products[::2] + products[1::2], -(2**15), 2**15 - 1).sum(axis=0)


@pytest.mark.parametrize("levels", [LEVELS, SAFE_LEVELS])
def test_weights_at_both_ends_against_integers(levels: int) -> None:
    """Weights at +/-levels and activations at +/-127, which a library shifts to u8 (0 and 254) for its products."""
    generator = np.random.default_rng(0)
    signs = generator.choice([-1.0, 1.0], (64, 8)).astype(np.float32)
    values = np.where(generator.random((5, 64)) < 0.5, 127.0, -127.0)
    values[0] = 127.0
    model, found, feeds = crafted(signs, values)
    result, placement = quantize(model, found, weight_levels=levels)
    assert placement.weight_levels == levels
    low = next(numpy_helper.to_array(t) for t in fold_weights(result).graph.initializer if t.name == "w_int8")
    assert (low.min(), low.max()) == (-levels, levels)
    scale = float(half_up(np.float32(1.0 / levels)))
    exact = (values.astype(np.int64) @ low.astype(np.int64)) * scale
    assert np.allclose(logits(result, feeds)[0], exact, rtol=1e-5)
    unsigned = (values + 127).astype(np.uint8)
    wrong = np.array([added_in_16_bits(row, low) for row in unsigned])
    right = unsigned.astype(np.int64) @ low.astype(np.int64)
    assert np.array_equal(wrong, right) == (levels == SAFE_LEVELS)


@given(st.lists(st.integers(0, 255), min_size=8, max_size=8), st.integers(0, 2**32 - 1))
def test_safe_levels_never_saturate(unsigned: list[int], seed: int) -> None:
    signed = np.random.default_rng(seed).integers(-SAFE_LEVELS, SAFE_LEVELS + 1, (8, 3))
    values = np.array(unsigned, np.uint8)
    assert np.array_equal(added_in_16_bits(values, signed), values.astype(np.int64) @ signed)


@pytest.mark.parametrize(
    ("features", "machine", "levels"),
    [
        (["avx2"], "x86_64", SAFE_LEVELS),
        (["avx2", "avx512f"], "AMD64", SAFE_LEVELS),
        ([], "x86_64", SAFE_LEVELS),  # not told
        (["avx2", "avx512f", "avx512_vnni"], "x86_64", LEVELS),
        (["avx2", "avx_vnni"], "x86_64", LEVELS),
        ([], "aarch64", LEVELS),
        (None, "x86_64", LEVELS),  # a GPU
    ],
)
def test_levels_by_processor(features: Collection[str] | None, machine: str, levels: int) -> None:
    assert levels_for(features, machine) == levels


def test_a_cpu_without_vnni_gets_seven_bits_and_the_file_says_so(
    tiny_bert: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertopt.graph.emit.cpu_features", lambda: ["avx2"])
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    int8 = Int8(tiny_bert.calibrated())
    for target, levels in (("openvino", SAFE_LEVELS), ("tensorrt-10", LEVELS)):
        out = tmp_path / f"{target}.onnx"
        emit(tiny_bert.path, out, target, precision="int8", int8=int8, feeds=[tiny_bert.feeds()])
        stored = [numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer if t.data_type == TensorProto.INT8]
        assert max(np.abs(array.astype(int)).max() for array in stored) == levels
        placement = describe(out).placement
        assert placement is not None
        assert placement.weight_levels == levels
    assert "weights within +/-63" in describe(tmp_path / "openvino.onnx").placement.lines()[0]  # type: ignore[union-attr]


# one channel that costs the others their precision


def test_an_outlier_channel_is_smoothed_away(checkpoint_folder: Callable[..., Path], tmp_path: Path) -> None:
    """ELECTRA's embedding norm feeds one Linear only: times 60 there and over 60 behind leaves FP32 as it was."""
    plain, loud = (models.save("electra", tmp_path / name) for name in ("plain", "loud"))

    def amplify(tensors: dict[str, Any]) -> None:
        for part in ("weight", "bias"):
            tensors[f"electra.embeddings.LayerNorm.{part}"][3] *= 60
        tensors["electra.embeddings_project.weight"][:, 3] /= 60

    models.rewrite(loud, amplify)
    errors = {}
    for name, folder in (("plain", plain), ("loud", loud)):
        checkpoint = open_checkpoint(str(folder))
        case = Exported(checkpoint, tmp_path / f"{name}.onnx")
        export(checkpoint.torch_module(attention="eager"), checkpoint, case.path)
        feeds = case.feeds(16, 20, seed=5)
        right = logits(case.model, feeds)
        only = [site.name for site in sites(case.model) if site.kind != "embeddings_project"]
        for smooth in (0.0, 0.95):
            found = calibration(observe(case.model, [feeds], smooth=smooth))
            moved = logits(quantize(case.model, found, leave=only)[0], feeds) - right
            errors[name, smooth] = float(np.sqrt((moved**2).mean()) / right.std())
    assert errors["loud", 0.0] > 5 * errors["plain", 0.0]  # per tensor, the others are left with a few levels
    assert errors["loud", 0.95] < 2 * errors["plain", 0.95]


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


@given(st.floats(2.0**-30, 1024.0, width=32))
@settings(max_examples=200)
def test_scales_are_numbers_that_fp16_holds_and_never_smaller(scale: float) -> None:
    found = half_up(np.float32(scale))
    assert found >= np.float32(scale)
    assert np.float32(np.float16(found)) == found
    assert found <= max(scale * 1.001, scale + 2.0**-24)


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
