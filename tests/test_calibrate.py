"""What calibration observes, and the file that keeps it: padding left out, any batching, and nothing foreign taken."""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from bertopt import calibration as caches
from bertopt.calibration import Calibration, SiteRange
from bertopt.errors import DataError, GraphError, PlanError, UsageError
from bertopt.graph import clipping, parity
from bertopt.graph.calibrate import METHODS, observe
from bertopt.model import open_checkpoint
from bertopt.text import Requests
from bertopt.workspace import Workspace
from tests import models

WORDS = models.WORDS


def requests(count: int = 24, seed: int = 0, **more: Any) -> Requests:
    generator = np.random.default_rng(seed)
    texts = [" ".join(generator.choice(WORDS, generator.integers(1, 30))) for _ in range(count)]
    return Requests(texts, name="calib.jsonl", **more)


@pytest.fixture(scope="module")
def workspace(checkpoint_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTOPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Workspace(open_checkpoint(str(checkpoint_folder("bert"))))


@pytest.fixture(scope="module")
def model(workspace: Workspace) -> onnx.ModelProto:
    return onnx.load(workspace.canonical())


@pytest.fixture(scope="module")
def made(workspace: Workspace) -> Calibration:
    return caches.calibrate(workspace, requests(), max_length=32, samples=16)


def one_linear(width: int = 3) -> onnx.ModelProto:
    """x = table[ids], y = x W: a graph whose activation is known exactly."""
    table = np.arange(10 * width, dtype=np.float32).reshape(10, width) - 5
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"], name="/gather"),
        helper.make_node("MatMul", ["x", "w"], ["logits"], name="/model/bert/encoder/layer.0/intermediate/dense/MatMul"),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "seq"]) for n in ("input_ids", "attention_mask")]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.eye(width, dtype=np.float32), "w")]
    graph = helper.make_graph(nodes, "g", inputs, [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feed(ids: list[list[int]], mask: list[list[int]]) -> dict[str, np.ndarray]:
    return {"input_ids": np.array(ids), "attention_mask": np.array(mask)}


def test_a_range_is_the_largest_value_of_real_tokens() -> None:
    found = observe(one_linear(), [feed([[2, 9]], [[1, 0]]), feed([[1, 3]], [[1, 1]])], smooth=0.0)
    assert found == {"bert.encoder.layer.0.intermediate.dense": SiteRange(pytest.approx(6 / 127, rel=1e-5))}  # row 3: 4 5 6


def test_padding_changes_nothing(model: onnx.ModelProto, workspace: Workspace) -> None:
    """A huge embedding of the padding id shows in no range; the same rows with more padding, and alone, give the same."""
    checkpoint = workspace.checkpoint
    feeds = parity.synthetic_feeds(checkpoint, 4, 20)
    expected = observe(model, [feeds])
    loud = onnx.ModelProto()
    loud.CopyFrom(model)
    table = next(t for t in loud.graph.initializer if t.name.endswith("word_embeddings.weight"))
    rows = numpy_helper.to_array(table).copy()
    rows[checkpoint.pad_id] = 1e4
    table.CopyFrom(numpy_helper.from_array(rows, table.name))
    wider = {name: np.pad(array, ((0, 0), (0, 9))) for name, array in feeds.items()}
    alone = [{n: a[i : i + 1, : int(feeds["attention_mask"][i].sum())] for n, a in feeds.items()} for i in range(4)]
    for found in (observe(loud, [feeds]), observe(model, [wider]), observe(model, alone)):
        assert found.keys() == expected.keys()
        for name, site in expected.items():
            assert found[name].scale == pytest.approx(site.scale, rel=2e-3)
            assert found[name].smoothing == pytest.approx(site.smoothing, rel=2e-2)  # three digits, which may round apart
    assert len(expected) == 8


def test_attention_products_leave_padding_out_too(model: onnx.ModelProto, workspace: Workspace) -> None:
    feeds = parity.synthetic_feeds(workspace.checkpoint, 4, 20)
    wider = {name: np.pad(array, ((0, 0), (0, 9))) for name, array in feeds.items()}
    found, padded = observe(model, [feeds], attention=True), observe(model, [wider], attention=True)
    products = [name for name in found if name.endswith(".product")]
    assert len(products) == 2 * 4
    for name in products:
        assert padded[name].scale == pytest.approx(found[name].scale, rel=2e-2)
        assert not name.endswith("probabilities.product") or found[name].scale <= 1.001 / 127


@pytest.mark.parametrize("method", METHODS)
def test_statistics_stream(model: onnx.ModelProto, workspace: Workspace, method: str) -> None:
    parts = [parity.synthetic_feeds(workspace.checkpoint, 1, 12, seed=seed) for seed in range(4)]
    whole = [{name: np.concatenate([part[name] for part in parts]) for name in parts[0]}]
    one, many = observe(model, whole, method=method), observe(model, parts, method=method)
    for name, site in one.items():
        assert many[name].scale == pytest.approx(site.scale, rel=2e-2)


def test_one_pass_for_the_largest_value_and_two_for_a_histogram(model: onnx.ModelProto, workspace: Workspace) -> None:
    feeds = [parity.synthetic_feeds(workspace.checkpoint, 2, 12)]
    assert observe(model, iter(feeds)) == observe(model, feeds)
    with pytest.raises(GraphError, match="read only once"):
        observe(model, iter(feeds), method="mse")


def counts_of(values: np.ndarray, top: float) -> np.ndarray:
    bins = np.minimum((values * (clipping.BINS / top)).astype(int), clipping.BINS - 1)
    return np.bincount(bins, minlength=clipping.BINS).astype(float)


@given(st.integers(0, 2**32 - 1), st.floats(0.5, 4.0))
@settings(max_examples=20, deadline=None)
def test_a_percentile_and_an_entropy_cut_an_outlier(seed: int, spread: float) -> None:
    values = np.abs(np.random.default_rng(seed).normal(0, spread, 50_000))
    top = 20 * values.max()
    counts = counts_of(np.append(values, top), top)
    for clip in (clipping.percentile, clipping.entropy):
        assert 0 < clip(counts) < clipping.BINS / 2
    flat = np.ones(clipping.BINS)
    assert clipping.percentile(flat) > 0.99 * clipping.BINS


@given(st.integers(0, 2**32 - 1), st.floats(1.0, 30.0), st.floats(0.05, 1.0))
@settings(max_examples=20, deadline=None)
def test_the_least_squares_clip_is_no_worse_than_others(seed: int, outlier: float, other: float) -> None:
    values = np.abs(np.random.default_rng(seed).normal(0, 1.0, 20_000))
    top = outlier * values.max()
    values = np.append(values, top)

    def error(clip: float) -> float:
        step = clip * top / clipping.BINS / 127
        return float(((np.minimum(np.round(values / step), 127) * step - values) ** 2).sum())

    assert error(clipping.mse(counts_of(values, top))) <= 1.02 * error(other * clipping.BINS)


def test_smoothing_takes_outliers_out_of_activations(model: onnx.ModelProto, workspace: Workspace) -> None:
    feeds = [parity.synthetic_feeds(workspace.checkpoint, 4, 20)]
    rough, smooth = observe(model, feeds, smooth=0.0), observe(model, feeds, smooth=0.95)
    for name, site in smooth.items():
        assert rough[name].smoothing is None
        assert site.smoothing is not None
        assert max(site.smoothing) / min(site.smoothing) > 1.5
        assert all(value == float(f"{value:.3g}") for value in site.smoothing)


@pytest.mark.parametrize(("option", "value"), [("method", "average"), ("smooth", 1.0), ("smooth", -0.1), ("samples", 0)])
def test_options_out_of_range_are_a_sentence(workspace: Workspace, option: str, value: Any) -> None:
    with pytest.raises(UsageError, match=str(value).replace(".0", "")):
        caches.calibrate(workspace, requests(), max_length=32, **{option: value})


def test_nothing_to_calibrate_with(workspace: Workspace, model: onnx.ModelProto) -> None:
    with pytest.raises(DataError, match=r"empty\.jsonl holds no text"):
        caches.calibrate(workspace, Requests([], name="empty.jsonl"), max_length=32)
    with pytest.raises(GraphError, match="at least one batch"):
        observe(model, [])


def test_samples_are_spread_over_the_file_and_cut_to_length(workspace: Workspace, made: Calibration) -> None:
    assert made.texts == 16
    assert len(set(made.text_hashes)) == 16
    assert made.tokens < 16 * 32
    shorter = caches.calibrate(workspace, requests(), max_length=8, samples=1000)
    assert shorter.texts == 24
    assert shorter.tokens <= 24 * 8
    positions = caches.overlap(made, requests())
    assert (len(positions), positions[0], positions[-1]) == (16, 0, 23)
    assert caches.overlap(made, requests(seed=1)) == []


def test_pairs_are_calibrated_as_pairs(workspace: Workspace) -> None:
    pairs = [text[::-1] for text in requests().texts]
    both = caches.calibrate(workspace, requests(pairs=pairs), max_length=64)
    alone = caches.calibrate(workspace, requests(), max_length=64)
    assert both.tokens > alone.tokens
    assert both.key != alone.key
    assert caches.overlap(both, requests()) == []


def test_progress_reaches_the_end(workspace: Workspace) -> None:
    for method, passes in (("minmax", 1), ("mse", 2)):
        seen: list[tuple[int, int]] = []
        caches.calibrate(
            workspace, requests(), max_length=16, method=method, progress=lambda *done, seen=seen: seen.append(done)
        )
        assert seen == [(n, 3 * passes) for n in range(1, 3 * passes + 1)]


# the file


def test_a_file_gives_back_what_was_saved_a_line_a_site(made: Calibration, tmp_path: Path) -> None:
    caches.save(made, tmp_path / "x.json")
    assert caches.load(tmp_path / "x.json") == made
    lines = (tmp_path / "x.json").read_text().splitlines()
    assert sum(line.startswith('    "bert.encoder.layer.') for line in lines) == len(made.sites) == 8
    changed = dataclasses.replace(made, sites=made.sites | {name: SiteRange(0.5) for name in list(made.sites)[:1]})
    caches.save(changed, tmp_path / "y.json")
    assert sum(a != b for a, b in zip(lines, (tmp_path / "y.json").read_text().splitlines(), strict=True)) == 1


@pytest.mark.parametrize("size", [0, 10, 2000])
def test_a_file_that_is_cut_short_is_an_error(made: Calibration, tmp_path: Path, size: int) -> None:
    caches.save(made, tmp_path / "x.json")
    (tmp_path / "x.json").write_bytes((tmp_path / "x.json").read_bytes()[:size])
    with pytest.raises(DataError, match=r"x\.json cannot be read as a calibration cache"):
        caches.load(tmp_path / "x.json")


def test_a_file_that_is_absent_or_something_else_is_an_error(made: Calibration, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no calibration cache .*none\.json"):
        caches.load(tmp_path / "none.json")
    for content in ("[]", "{}", '{"bertopt_calibration": 1}', "7"):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(DataError, match=r"x\.json is no calibration cache"):
            caches.load(tmp_path / "x.json")
    caches.save(dataclasses.replace(made, sites={}), tmp_path / "x.json")
    with pytest.raises(DataError, match="holds no ranges"):
        caches.load(tmp_path / "x.json")
    caches.save(dataclasses.replace(made, sites={"a": SiteRange(0.0)}), tmp_path / "x.json")
    with pytest.raises(DataError, match="the range of a has a number that is not above 0"):
        caches.load(tmp_path / "x.json")
    (tmp_path / "x.json").write_text('{"bertopt_calibration": 2}')
    with pytest.raises(DataError, match="has format 2, and this bertopt reads up to 1"):
        caches.load(tmp_path / "x.json")


def test_any_change_misses_the_cache(workspace: Workspace, made: Calibration, copy: Path, monkeypatch: Any) -> None:
    same = {"max_length": 32, "samples": 16}
    first, path = caches.cached(workspace, requests(), **same)
    assert first == made
    before = path.stat().st_mtime_ns
    assert caches.cached(workspace, requests(), **same) == (first, path)
    assert path.stat().st_mtime_ns == before

    keys = {first.key}

    def key_of(where: Workspace, texts: Requests, **options: Any) -> None:
        found, _ = caches.cached(where, texts, **(same | options))
        assert found.key not in keys
        keys.add(found.key)

    key_of(workspace, requests(), max_length=31)
    key_of(workspace, requests(), samples=15)
    key_of(workspace, requests(), method="mse")
    key_of(workspace, requests(), smooth=0.8)
    key_of(workspace, requests(), attention=True)
    key_of(workspace, requests(seed=1))
    models.rewrite(copy, lambda tensors: tensors["classifier.bias"].add_(1.0))
    key_of(Workspace(open_checkpoint(str(copy))), requests())
    monkeypatch.setattr(caches.importlib.metadata, "version", lambda name: "99")
    key_of(workspace, requests())


def test_a_foreign_file_is_refused_with_both_values(
    workspace: Workspace, made: Calibration, copy: Path, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    caches.save(made, path)
    assert caches.open_cache(path, workspace, max_length=32, method="minmax", data=None) == (made, [])
    refusals = {
        "of up to so many tokens: 32, and 64": {"max_length": 64},
        "method minmax, and mse": {"method": "mse"},
        "smoothing 0.95, and 0.5": {"smooth": 0.5},
        f"calibration texts {made.data}, and {requests(seed=1).fingerprint}": {"data": requests(seed=1).fingerprint},
    }
    for sentence, demands in refusals.items():
        with pytest.raises(PlanError, match=sentence):
            caches.open_cache(path, workspace, **({"max_length": 32} | demands))
    models.rewrite(copy, lambda tensors: tensors["classifier.bias"].add_(1.0))
    other = Workspace(open_checkpoint(str(copy)))
    with pytest.raises(PlanError, match=f"model {made.model}, and {other.checkpoint.fingerprint} is asked for"):
        caches.open_cache(path, other, max_length=32)
    shutil.copy(workspace.canonical(), tmp_path / "graph.onnx")
    changed = onnx.load(tmp_path / "graph.onnx")
    changed.producer_name = "another exporter"
    onnx.save(changed, tmp_path / "graph.onnx")
    with pytest.raises(PlanError, match=f"graph {made.graph[:12]}, and "):
        caches.open_cache(path, Workspace(workspace.checkpoint, canonical=tmp_path / "graph.onnx"), max_length=32)


def test_other_tools_are_told(workspace: Workspace, made: Calibration, tmp_path: Path) -> None:
    versions = made.versions | {"onnxruntime": "1.0.0"}
    caches.save(dataclasses.replace(made, versions=versions), tmp_path / "x.json")
    _, notes = caches.open_cache(tmp_path / "x.json", workspace, max_length=32)
    assert len(notes) == 1
    assert "made with onnxruntime 1.0.0, and" in notes[0]


def test_two_that_write_at_once_leave_a_whole_file(made: Calibration, tmp_path: Path) -> None:
    others = [dataclasses.replace(made, texts=n) for n in range(4)]
    threads = [threading.Thread(target=caches.save, args=(other, tmp_path / "x.json")) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert caches.load(tmp_path / "x.json") in others
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


# Recipes and the committed cache

REPOSITORY = Path(__file__).parents[1]


@pytest.mark.parametrize("path", sorted((REPOSITORY / "calibration").glob("*.toml")), ids=lambda p: p.name)
def test_the_recipes_are_arguments_of_calibrate(workspace: Workspace, path: Path) -> None:
    found = caches.load_recipe(path)
    assert caches.calibrate(workspace, requests(), **({"max_length": 32} | found)).method == found["method"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("sample = 3", "there is no 'sample' in a recipe"),
        ("samples = true", "samples = True is no int"),
        ("samples =", "cannot be read as a recipe"),
    ],
)
def test_a_wrong_recipe_is_a_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "x.toml").write_text(content)
    with pytest.raises(UsageError, match=sentence):
        caches.load_recipe(tmp_path / "x.toml")


def test_the_committed_caches_are_whole_and_small() -> None:
    files = sorted((REPOSITORY / "calibration").glob("*.json"))
    assert files
    for file in files:
        assert file.stat().st_size < 200_000
        found = caches.load(file)
        assert json.loads(file.read_text())["bertopt_calibration"] == 1
        assert found.texts == len(found.text_hashes)
