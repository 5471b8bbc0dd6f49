"""Q/DQ pairs on every family: counted, and equal to the float graph once they are taken out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bertopt.calibration import SiteRange
from bertopt.errors import GraphError
from bertopt.graph import ranges
from bertopt.graph.attention import products
from bertopt.graph.calibrate import LEVELS, observe
from bertopt.graph.export import export
from bertopt.graph.fuse import fuse
from bertopt.graph.linears import HEADS, count, sites
from bertopt.graph.quantize import check, fold_weights, int8_products, quantize
from bertopt.model import open_checkpoint
from tests import models
from tests.quantized import FAMILIES, Exported, calibration, logits, readers_of_int8, without_pairs

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
