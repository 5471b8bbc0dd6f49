"""`bertopt export` and `bertopt.load`: a folder that answers as the model does, alone, and says what is wrong with it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import bertopt
from bertopt.bundle import open_bundle
from bertopt.cli import run as cli
from bertopt.errors import DataError, GraphError, ModelError, PlanError, UsageError
from bertopt.exporting import Wanted, export
from bertopt.heads import interpret
from bertopt.model import open_checkpoint
from tests.runs import bundle_of, run_of, texts

PAIRS = [None, "", "good film", "bad news was on the game", None]


@pytest.fixture(scope="module")
def bundle(checkpoint_folder, tmp_path_factory):
    return bundle_of(checkpoint_folder("bert"), tmp_path_factory.mktemp("tiny"))


def logits_of(folder, rows, pairs=None):
    """The model's own, a text at a time, through torch and transformers' tokenizer."""
    import torch
    from transformers import AutoTokenizer

    module, tokenizer, found = open_checkpoint(str(folder)).torch_module(), AutoTokenizer.from_pretrained(folder), []
    for text, pair in zip(rows, pairs or [None] * len(rows), strict=True):
        # As lists: a single "" would be taken for no second text
        values = tokenizer([text], None if pair is None else [pair], truncation=True, max_length=32, return_tensors="pt")
        names = ("input_ids", "attention_mask", "token_type_ids")
        with torch.inference_mode():
            found.append(module(**{n: values[n] for n in names if n in values})[0].numpy())
    return np.array(found)


@pytest.mark.parametrize("rung", ["onnx", "baseline", "fp16"])
def test_answers_are_the_models_own_in_order(checkpoint_folder, tmp_path, rung):
    folder = checkpoint_folder("bert")
    bundle_of(folder, tmp_path, rung)
    rows = texts(23)
    with bertopt.load(tmp_path / "bundle") as model:
        answers = model.predict(rows)
    right = logits_of(folder, rows)
    odds = np.exp(right - right.max(1, keepdims=True))
    scores = odds / odds.sum(1, keepdims=True)
    tolerance = 2e-2 if rung == "fp16" else 1e-5
    np.testing.assert_allclose([[a.scores["LABEL_0"], a.scores["LABEL_1"]] for a in answers], scores, atol=tolerance)
    clear = np.abs(scores[:, 0] - 0.5) > tolerance
    assert [a.label for a, c in zip(answers, clear, strict=True) if c] == [
        f"LABEL_{i}" for i, c in zip(scores.argmax(1), clear, strict=True) if c
    ]
    assert all(a.score == max(a.scores.values()) for a in answers)


def test_pairs_are_answered_as_pairs(bundle, checkpoint_folder):
    rows = texts(5, seed=1)
    with bertopt.load(bundle.folder) as model:
        answers = model.predict(rows, PAIRS)
        alone = model.predict(rows)
    right = logits_of(checkpoint_folder("bert"), rows, PAIRS)
    margins = [np.log(a.scores["LABEL_1"] / a.scores["LABEL_0"]) for a in answers]
    np.testing.assert_allclose(margins, right[:, 1] - right[:, 0], atol=1e-4)
    assert [a == b for a, b in zip(answers, alone, strict=True)] == [pair is None for pair in PAIRS]


def test_heads_mean_what_they_were_trained_for(checkpoint_folder, tmp_path):
    rows = texts(6, seed=2)
    several = checkpoint_folder("bert", problem_type="multi_label_classification", num_labels=3)
    number = checkpoint_folder("bert", num_labels=1)
    for name, folder in {"several": several, "number": number}.items():
        bundle_of(folder, tmp_path / name)
    with bertopt.load(tmp_path / "several/bundle") as model:
        answers = model.predict(rows)
    right = 1 / (1 + np.exp(-logits_of(several, rows)))
    np.testing.assert_allclose([list(a.scores.values()) for a in answers], right, atol=1e-5)
    assert [set(a.labels) for a in answers] == [{f"LABEL_{i}" for i in np.flatnonzero(row > 0.5)} for row in right]
    with bertopt.load(tmp_path / "number/bundle") as model:
        np.testing.assert_allclose([a.value for a in model.predict(rows)], logits_of(number, rows)[:, 0], atol=1e-5)
        with pytest.raises(UsageError, match="no embeddings"):
            model.embed(rows)


def test_an_encoder_gives_vectors(checkpoint_folder, tmp_path):
    folder, rows = checkpoint_folder("bert", head="Model"), texts(6, seed=3)
    bundle_of(folder, tmp_path)
    with bertopt.load(tmp_path / "bundle") as model:
        np.testing.assert_allclose(model.embed(rows), logits_of(folder, rows), atol=1e-5)
        assert model.embed([]).shape == (0, 32)


def test_a_bundle_stands_alone_and_needs_no_torch(bundle, tmp_path):
    """Moved elsewhere, its checkpoint and its cache gone."""
    shutil.copytree(bundle.folder, tmp_path / "moved")
    code = (
        "import sys, bertopt\n"
        "with bertopt.load('moved') as model:\n"
        "    answer = model.predict(['the film was good'])[0]\n"
        "print(answer.label, *[m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.split()[0] in ("LABEL_0", "LABEL_1")
    assert len(found.stdout.split()) == 1, f"imported {found.stdout}"


def test_long_texts_say_that_they_were_cut(bundle):
    with bertopt.load(bundle.folder) as model:
        short, long = model.predict(["good", "good " * 500])
    assert (short.tokens, short.truncated, long.tokens, long.truncated) == (3, False, 32, True)


@pytest.mark.parametrize(
    ("what", "pairs", "said"),
    [
        ("a text", None, "a list of texts"),
        (["good", None], None, "text 2 is no text but a NoneType"),
        (["good", ["a", "b"]], None, "text 2 is no text but a list"),
        (["good"], ["a", "b"], "1 texts and 2 second texts"),
        (["good"], [3], "second text 1 is no text but a int"),
    ],
)
def test_what_is_no_text_is_named(bundle, what, pairs, said):
    with bertopt.load(bundle.folder) as model, pytest.raises(DataError, match=said):
        model.predict(what, pairs)


def test_no_score_is_made_of_nan():
    logits = np.array([[0.0, 1.0], [np.nan, 1.0]], np.float32)
    with pytest.raises(GraphError, match="request 2 is NaN"):
        interpret("single_label", ["a", "b"], logits, np.array([3, 3]), None)


@pytest.mark.parametrize("damage", ["model.onnx", "tokenizer/tokenizer.json", "record.json"])
def test_a_damaged_bundle_is_refused_with_the_file(bundle, tmp_path, damage):
    home = shutil.copytree(bundle.folder, tmp_path / "bundle")
    file = home / damage
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(PlanError, match=f"{file.name} is another file"):
        bertopt.load(home)
    file.write_bytes(content[:-10])
    with pytest.raises(PlanError, match="bytes, and the manifest says"):
        bertopt.load(home)
    file.unlink()
    with pytest.raises(PlanError, match=f"there is no {damage}"):
        bertopt.load(home)


def test_what_is_no_bundle_is_refused(tmp_path, bundle):
    with pytest.raises(PlanError, match=r"there is no bundle\.json"):
        bertopt.load(tmp_path)
    home = shutil.copytree(bundle.folder, tmp_path / "newer")
    manifest = json.loads((home / "bundle.json").read_text())
    (home / "bundle.json").write_text(json.dumps(manifest | {"schema_version": 99}))
    with pytest.raises(PlanError, match="install a newer one"):
        bertopt.load(home)
    (home / "bundle.json").write_text("{")
    with pytest.raises(PlanError, match="cannot be read"):
        bertopt.load(home)


def test_export_refuses_what_cannot_be_served(checkpoint_folder, tmp_path, copy):
    folder = checkpoint_folder("bert")
    run, out = run_of(folder, tmp_path / "run"), tmp_path / "bundle"
    with pytest.raises(UsageError, match="no rung 'fast'"):
        export(Wanted(run, out, "fast"))
    with pytest.raises(UsageError, match="none passed"):
        export(Wanted(run_of(folder, tmp_path / "none", best=None), out))
    weights = copy / "config.json"
    weights.write_text(weights.read_text() + "\n")
    with pytest.raises(ModelError, match="give the same --model"):
        export(Wanted(run, out, model=str(copy)))
    tagger = checkpoint_folder("bert", head="ForTokenClassification")
    with pytest.raises(ModelError, match="token_classification, which is not served"):
        export(Wanted(run_of(tagger, tmp_path / "tagger"), out))
    assert not out.exists()


def test_export_replaces_a_bundle_and_nothing_else(checkpoint_folder, tmp_path, capsys):
    run = run_of(checkpoint_folder("bert"), tmp_path / "run")
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    assert cli(["export", str(run), "--out", str(other)]) == 2
    assert "holds something else" in capsys.readouterr().err
    assert [f.name for f in other.iterdir()] == ["thesis.txt"]
    for rung in ("baseline", "onnx"):
        assert cli(["export", str(run), "--out", str(tmp_path / "bundle"), "--rung", rung]) == 0
    assert open_bundle(tmp_path / "bundle").manifest.rung == "onnx"
    assert not (tmp_path / "bundle/checkpoint").exists()
    assert sorted(f.name for f in tmp_path.iterdir()) == ["bundle", "other", "run"]


def test_int8_is_exported_with_the_calibration_that_was_measured(checkpoint_folder, tmp_path):
    """Found in the cache by the hash in the record; the graph is the one that the rung ran."""
    from bertopt import calibration, records
    from bertopt.text import Requests
    from bertopt.workspace import Workspace

    folder = checkpoint_folder("bert")
    workspace = Workspace(open_checkpoint(str(folder)))
    used, _ = calibration.cached(workspace, Requests(texts(16), name="calibration"), max_length=32)
    run = run_of(folder, tmp_path / "run", best="int8")
    record = records.load_ladder(run)
    rungs = [dataclasses.replace(r, graph={"calibration": used.sha256} if r.name == "int8" else r.graph) for r in record.rungs]
    records.save(dataclasses.replace(record, rungs=rungs), run / "ladder.json")
    made = export(Wanted(run, tmp_path / "bundle"))
    assert (made.manifest.precision, made.manifest.info["calibration"]) == ("int8", used.sha256)
    assert made.manifest.info["int8_linears"] > 0
    rows = texts(12)
    with bertopt.load(made.folder) as model:
        answers = model.predict(rows)
    right = logits_of(folder, rows)
    margins = np.array([np.log(a.scores["LABEL_1"] / a.scores["LABEL_0"]) for a in answers])
    assert 0 < np.abs(margins - (right[:, 1] - right[:, 0])).max() < 1.5 * right.std()
    records.save(dataclasses.replace(record, best="int8"), run / "ladder.json")
    with pytest.raises(UsageError, match="is not in the cache any more"):
        export(Wanted(run, tmp_path / "other"))


def test_full_range_weights_are_refused_where_they_would_saturate(bundle, monkeypatch):
    from bertopt import environment
    from bertopt.bundle import _check_levels

    made = dataclasses.replace(bundle.manifest, precision="int8", info={"weight_levels": 127})
    monkeypatch.setattr(environment, "cpu_features", lambda: ["avx2"])
    with pytest.raises(PlanError, match="127 levels"):
        _check_levels(made)
    _check_levels(dataclasses.replace(made, info={"weight_levels": 63}))


def test_a_plan_becomes_a_bundle_by_itself(checkpoint_folder, tmp_path):
    folder = checkpoint_folder("bert")
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(texts(40)))
    plan, out = tmp_path / "tiny.plan", tmp_path / "bundle"
    arguments = ["--model", str(folder), "--data", str(data), "--target", "openvino", "--seq", "32"]
    assert cli(["build-engine", *arguments, "--out", str(plan)]) == 0
    assert cli(["export", str(plan), "--out", str(out)]) == 0
    rows = texts(9)
    with bertopt.load(out) as model:
        scores = [a.scores["LABEL_1"] for a in model.predict(rows)]
    right = logits_of(folder, rows)
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(right[:, 0] - right[:, 1])), atol=2e-2)  # BF16
    with pytest.raises(UsageError, match="--rung, --model and --calibration are for runs"):
        export(Wanted(plan, out, rung="int8"))
