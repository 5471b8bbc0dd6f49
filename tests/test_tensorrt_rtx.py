"""Real parsing and building, with TensorRT for RTX, which needs no GPU for either; its engines cannot be loaded without one."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertopt.builders import versions

RTX = importlib.util.find_spec("tensorrt_rtx") is not None
needs_rtx = pytest.mark.skipif(not RTX, reason="TensorRT for RTX is not installed: pip install tensorrt-rtx-cu13")


@needs_rtx
def test_the_fp16_graph_parses_with_its_types_shapes_bindings_and_profiles(
    checkpoint_folder: Callable[..., Path], tmp_path: Path
) -> None:
    import tensorrt_rtx as trt

    from bertopt.builders.process import Job
    from bertopt.builders.tensorrt import bindings, configure, make_log, parse_network
    from bertopt.graph import parity
    from bertopt.graph.emit import emit
    from bertopt.graph.export import export
    from bertopt.model import open_checkpoint

    checkpoint = open_checkpoint(str(checkpoint_folder("bert")))
    export(checkpoint.torch_module(attention="eager"), checkpoint, tmp_path / "c.onnx")
    emitted = emit(tmp_path / "c.onnx", tmp_path / "h.onnx", "tensorrt-rtx", feeds=[parity.synthetic_feeds(checkpoint, 3, 16)])
    job = Job("tensorrt", "tensorrt-rtx", str(emitted.path), "", "fp16", profiles=["1x1:8x16:8x16", "1x17:4x64:4x64"])
    log = make_log(trt)
    builder = trt.Builder(log)
    network = parse_network(trt, versions.TENSORRT_RTX, builder, job, log)
    assert bindings(network) == (
        {"input_ids": "int64", "attention_mask": "int64", "token_type_ids": "int64"},
        {"logits": "float"},
    )
    assert all(tuple(network.get_input(i).shape) == (-1, -1) for i in range(3))
    assert tuple(network.get_output(0).shape) == (-1, 2)
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    kinds = (trt.LayerType.MATRIX_MULTIPLY, trt.LayerType.SOFTMAX, trt.LayerType.NORMALIZATION)
    heavy = [layer for layer in layers if layer.type in kinds]
    assert len(heavy) == 2 * (8 + 1 + 2) + 1 + 2  # per layer 8 products, a softmax, 2 norms; the embeddings' norm; the head's 2
    assert {layer.get_output_type(0) for layer in heavy} == {trt.DataType.HALF}
    config = configure(trt, versions.TENSORRT_RTX, builder, network, job)
    assert config.num_optimization_profiles == 2
    assert config.profiling_verbosity == trt.ProfilingVerbosity.DETAILED
    assert not config.get_flag(trt.BuilderFlag.TF32)


@needs_rtx
def test_a_plan_is_built_in_a_child_and_identified(checkpoint_folder: Callable[..., Path], tmp_path: Path) -> None:
    from bertopt import engines, plan
    from bertopt.profiles import parse

    heard: list[tuple[float, str]] = []
    request = engines.Request(
        out=tmp_path / "x.plan",
        model=str(checkpoint_folder("bert")),
        target="tensorrt-rtx",
        data=texts(tmp_path),
        sequence_length=32,
        profiles=(parse("1x1:8x16:8x16"), parse("1x17:4x64:4x64")),
    )
    result = engines.build_engine(request, lambda seconds, doing: heard.append((seconds, doing)))
    assert len(heard) > 3
    assert heard == sorted(heard, key=lambda h: h[0])
    opened = plan.open_plan(request.out, model_fingerprint=result.plan.manifest.model_fingerprint)
    assert opened.manifest.library == "TensorRT for RTX"
    assert opened.manifest.profiles == ["1x1:8x16:8x16", "1x17:4x64:4x64"]
    assert opened.manifest.plan_bytes > 100_000
    assert result.parity is not None
    assert result.parity.passed
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "texts.txt",
        "x.plan",
        "x.plan.json",
        "x.plan.onnx",
        "x.plan.tokenizer",
    ]


@needs_rtx
def test_an_int8_plan_is_built_cached_and_belongs_to_its_calibration(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the ladder's own way, with the library that builds without a card in the place of TensorRT."""
    import dataclasses

    from bertopt import build
    from bertopt import calibration as caches
    from bertopt.backends import tensorrt
    from bertopt.model import open_checkpoint
    from bertopt.text import Requests
    from bertopt.workspace import Workspace

    monkeypatch.setenv("BERTOPT_CACHE", str(tmp_path / "cache"))
    built, real = [], build.build_plan

    def without_a_card(*given: Any, **how: Any) -> build.Result:
        built.append(how["precision"])
        return real(*given, **how | {"target": "tensorrt-rtx"})

    monkeypatch.setattr(build, "build_plan", without_a_card)
    workspace = Workspace(open_checkpoint(str(tiny)), device="cuda")
    workspace.texts = ["good film " * n for n in range(1, 12)]
    workspace.bucket_edges, workspace.batch_size = (16, 32), 4
    given = caches.calibrate(workspace, Requests(workspace.texts, name="calib"), max_length=32)
    workspace.calibration = given  # type: ignore[attr-defined]
    first = tensorrt.prepare(workspace, "int8")
    said = first.content.manifest
    assert (first.precision, said.precision, said.calibration_sha256) == ("int8", "int8", given.sha256)
    assert (first.info["int8_linears"], first.info["linears"], first.info["weight_levels"]) == (12, 12, 127)
    assert said.groups["layer 0"] == said.groups["layer 1"] == "int8"
    assert any("12 of 12 Linears in INT8" in note for note in first.notes)
    assert tensorrt.prepare(workspace, "int8").content.path == first.content.path
    assert built == ["int8"]
    site = next(iter(given.sites))
    changed = {**given.sites, site: caches.SiteRange(given.sites[site].scale * 2, given.sites[site].smoothing)}
    workspace.calibration = dataclasses.replace(given, sites=changed)  # type: ignore[attr-defined]
    assert tensorrt.prepare(workspace, "int8").content.path != first.content.path
    assert built == ["int8", "int8"]


@needs_rtx
def test_a_graph_that_the_parser_refuses_is_a_sentence(tmp_path: Path) -> None:
    import onnx

    from bertopt import build
    from bertopt.errors import GraphError
    from bertopt.profiles import parse
    from tests.test_half import written_out_norm

    model = written_out_norm(1e-5)
    model.graph.node[3].op_type = "Unknown"
    onnx.save(model, tmp_path / "broken.onnx")
    with pytest.raises(GraphError, match="Unknown"):
        build.build_plan(
            tmp_path / "broken.onnx",
            tmp_path / "x.plan",
            target="tensorrt-rtx",
            precision="fp32",
            profiles=[parse("1x1:1x1:1x1")],
        )
    assert [p.name for p in tmp_path.iterdir()] == ["broken.onnx"]


def texts(folder: Path) -> Path:
    file = folder / "texts.txt"
    file.write_text("\n".join("good film " * n for n in range(1, 12)) + "\n")
    return file
