"""INT8 against integer arithmetic: weights that no processor adds up wrongly, outlier channels, scales that FP16 holds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from bertopt.calibration import Calibration, SiteRange
from bertopt.graph import parity
from bertopt.graph.calibrate import LEVELS, observe
from bertopt.graph.emit import Int8, describe, emit
from bertopt.graph.export import export
from bertopt.graph.linears import sites
from bertopt.graph.quantize import SAFE_LEVELS, fold_weights, half_up, levels_for, quantize
from bertopt.model import open_checkpoint
from tests import models
from tests.quantized import Exported, calibration, logits

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


@given(st.floats(2.0**-30, 1024.0, width=32))
@settings(max_examples=200)
def test_scales_are_numbers_that_fp16_holds_and_never_smaller(scale: float) -> None:
    found = half_up(np.float32(scale))
    assert found >= np.float32(scale)
    assert np.float32(np.float16(found)) == found
    assert found <= max(scale * 1.001, scale + 2.0**-24)
