"""`bertopt gate` and `bertopt predict` on a classifier that was trained in the test: sides of every kind, exits, outputs."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from bertopt import cli, engines, plan, predict
from bertopt.gate import load_predictions, load_verdict
from bertopt.text import read
from tests import trained

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained.classifier(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained.write(tmp_path_factory.mktemp("data") / "eval.jsonl", trained.rows(600, seed=1))


@pytest.fixture(scope="module")
def built(model: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plans") / "half.plan"
    engines.build_engine(engines.Request(out=out, model=str(model), data=data, target="openvino", sequence_length=32))
    return out


@pytest.fixture
def half(built: Path, tmp_path: Path) -> Path:
    """A plan of one's own."""
    for file in built.parent.glob("half.plan*"):
        (shutil.copytree if file.is_dir() else shutil.copy)(file, tmp_path / file.name)
    return tmp_path / "half.plan"


@pytest.fixture(scope="module")
def answers(model: Path, data: Path, built: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Predictions of the checkpoint and of the plan."""
    reference, candidate = (tmp_path_factory.mktemp("answers") / name for name in ("reference.jsonl", "candidate.jsonl"))
    assert cli.run(["predict", "--model", str(model), "--data", str(data), "--seq", "32", "--out", str(reference)]) == 0
    assert cli.run(["predict", "--plan", str(built), "--data", str(data), "--out", str(candidate)]) == 0
    return reference, candidate


def gate(reference: object, candidate: object, data: object, *options: object) -> int:
    given = ["--reference", reference, "--candidate", candidate, "--data", data, *options]
    return cli.run(["gate", *map(str, given)])


def altered(path: Path, to: Path, change: Any, **header: Any) -> Path:
    """Predictions with the logits of each row changed, and said to be INT8."""
    first, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    found = load_predictions(path)
    labels = found.label_names()
    for number, row in enumerate(rows):
        row["logits"] = change(number, row["logits"])
        row["label"] = labels[row["logits"].index(max(row["logits"]))]
    first |= {"precision": "int8", **header}
    to.write_text("\n".join(map(json.dumps, [first, *rows])) + "\n")
    return to


def test_a_checkpoint_and_its_plan_give_the_same_answers(answers: tuple[Path, Path], data: Path, built: Path) -> None:
    reference, candidate = map(load_predictions, answers)
    assert (reference.precision, candidate.evidence) == ("fp32", "plan")
    assert candidate.precision == plan.read_manifest(built).precision in ("bf16", "fp16")
    assert reference.labels == candidate.labels == trained.LABELS
    assert reference.max_length == candidate.max_length == 32
    assert reference.text_hashes == candidate.text_hashes
    truth = read(data).labels
    assert truth is not None
    right = sum(a == b for a, b in zip(reference.predicted(), truth, strict=True)) / len(truth)
    assert 0.9 < right < 1  # really trained, and not beyond all error
    for found in (reference, candidate):
        assert found.throughput_low_seq_s <= found.throughput_seq_s <= found.throughput_high_seq_s


def test_a_plan_answers_without_torch_and_without_its_checkpoint(
    built: Path, data: Path, answers: tuple[Path, Path], tmp_path: Path
) -> None:
    code = textwrap.dedent("""
        import sys
        sys.modules.update(dict.fromkeys(["torch", "onnxruntime"]))
        from bertopt import cli
        sys.exit(cli.run(sys.argv[1:]))
    """)
    out = tmp_path / "p.jsonl"
    command = [sys.executable, "-c", code, "predict", "--plan", built, "--data", data, "--out", out]
    done = subprocess.run(
        map(str, command), capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    assert load_predictions(out).logits.tolist() == load_predictions(answers[1]).logits.tolist()


def test_a_plan_that_passes_says_so_in_its_manifest_and_in_every_report(
    model: Path, half: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary, junit, verdict = tmp_path / "summary.md", tmp_path / "junit.xml", tmp_path / "verdict.json"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert gate(model, half, data, "--max-drop", 2, "--junit", junit, "--json", verdict) == 0
    found = load_verdict(verdict)
    assert (found.verdict, found.evidence, found.rows) == ("passed", "plan", 600)
    assert found.speed is not None
    stamped = plan.open_plan(half).manifest.gate
    assert (stamped["verdict"], stamped["metric"], stamped["rows"]) == ("passed", "accuracy", 600)
    assert 'failures="0" errors="0"' in junit.read_text()
    assert "PASSED" in summary.read_text()
    assert capsys.readouterr().out.startswith("Verdict: PASSED")
    cli.run(["plan", "show", str(half)])
    assert "accuracy gate: passed" in capsys.readouterr().out


def test_predictions_say_nothing_in_a_manifest(answers: tuple[Path, Path], built: Path, data: Path) -> None:
    assert gate(*answers, data, "--max-drop", 2) == 0
    assert plan.open_plan(built).manifest.gate == {}


@pytest.mark.parametrize(
    ("change", "options", "code", "words"),
    [
        (lambda i, x: [v + 1e-3 for v in x], ["--max-drop", "2"], 0, "PASSED"),
        (lambda i, x: [v + 1e-3 for v in x], ["--max-drop", "0.05"], 3, "INCONCLUSIVE"),
        (lambda i, x: x[::-1] if i % 9 == 0 else [v + 1e-3 for v in x], [], 1, "accuracy fell by"),
        (lambda i, x: [9.0, *x[1:]], ["--max-drop", "99"], 1, "always answers 'bad'"),
        (lambda i, x: x, ["--max-drop", "2"], 1, "bit by bit"),
    ],
)
def test_the_exit_code_is_the_verdict(
    answers: tuple[Path, Path], data: Path, tmp_path: Path, capsys: Any, change: Any, options: list[str], code: int, words: str
) -> None:
    candidate = altered(answers[0], tmp_path / "c.jsonl", change)
    assert gate(answers[0], candidate, data, *options) == code
    assert words in capsys.readouterr().out


def test_accurate_and_not_faster_fails_where_speed_is_asked_for(answers: tuple[Path, Path], data: Path, tmp_path: Path) -> None:
    slow = {f"throughput{end}_seq_s": 1.0 for end in ("", "_low", "_high")}
    candidate = altered(answers[0], tmp_path / "c.jsonl", lambda i, x: [v + 1e-3 for v in x], **slow)
    assert gate(answers[0], candidate, data, "--max-drop", 2) == 0
    assert gate(answers[0], candidate, data, "--max-drop", 2, "--min-speedup", 1) == 1


def test_a_fall_since_the_last_accepted_plan_fails(answers: tuple[Path, Path], data: Path, tmp_path: Path) -> None:
    worse = altered(answers[0], tmp_path / "c.jsonl", lambda i, x: x[::-1] if i % 60 == 0 else [v + 1e-3 for v in x])
    assert gate(answers[0], worse, data, "--max-drop", 8) == 0
    assert gate(answers[0], worse, data, "--max-drop", 8, "--baseline", answers[1]) == 1


def test_a_refusal_is_one_sentence_and_a_report_that_is_no_success(
    model: Path, answers: tuple[Path, Path], data: Path, tmp_path: Path, capsys: Any
) -> None:
    other = trained.write(tmp_path / "other.jsonl", trained.rows(600, seed=2))
    junit = tmp_path / "junit.xml"
    assert gate(*answers, other, "--junit", junit) == 2
    assert "row 1 differs" in capsys.readouterr().err
    assert 'errors="1"' in junit.read_text()


def test_labels_that_are_permuted_are_refused(answers: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    swapped = [{**row, "label": {"bad": "good", "good": "bad"}[row["label"]]} for row in trained.rows(600, seed=1)]
    assert gate(*answers, trained.write(tmp_path / "swapped.jsonl", swapped)) == 2
    assert "labels probably permuted" in capsys.readouterr().err


def test_labels_of_another_task_are_refused(answers: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    odd = [{**row, "label": "sports"} for row in trained.rows(600, seed=1)]
    assert gate(*answers, trained.write(tmp_path / "odd.jsonl", odd)) == 2
    assert "no label 'sports'; it knows bad, good" in capsys.readouterr().err


def test_an_untrained_head_is_no_reference(checkpoint_folder: Any, half: Path, data: Path, tmp_path: Path, capsys: Any) -> None:
    from tests import models

    folder = models.save("bert", tmp_path / "headless")
    models.rewrite(folder, lambda t: [t.pop(name) for name in list(t) if name.startswith("classifier.")])
    assert gate(folder, half, data) == 2
    assert "untrained head" in capsys.readouterr().err


def test_a_plan_of_other_weights_is_refused(checkpoint_folder: Any, half: Path, data: Path, capsys: Any) -> None:
    assert gate(checkpoint_folder("bert"), half, data) == 2
    said = capsys.readouterr().err
    assert "was built of" in said
    assert plan.read_manifest(half).model_fingerprint in said


def test_what_a_side_may_be(half: Path, model: Path, data: Path, tmp_path: Path, capsys: Any) -> None:
    for reference, candidate, words in [
        (model, model, "is a plan, or predictions"),
        (tmp_path / "none.jsonl", half, "there is no file"),
        (model, data, "neither a plan that bertopt built nor predictions"),
        (model, tmp_path / "none.plan", "there is no file"),
    ]:
        assert gate(reference, candidate, data) == 2
        assert words in capsys.readouterr().err


def test_a_plan_that_lost_its_tokenizer_says_what_would_help(
    half: Path, model: Path, data: Path, tmp_path: Path, capsys: Any
) -> None:
    shutil.rmtree(plan.tokenizer_folder(half))
    out = tmp_path / "p.jsonl"
    assert cli.run(["predict", "--plan", str(half), "--data", str(data), "--out", str(out)]) == 2
    assert "--model" in capsys.readouterr().err
    assert not out.exists()
    assert cli.run(["predict", "--plan", str(half), "--model", str(model), "--data", str(data), "--out", str(out)]) == 0


def test_a_tokenizer_that_was_exchanged_is_refused(half: Path, data: Path, tmp_path: Path, capsys: Any) -> None:
    (plan.tokenizer_folder(half) / "tokenizer_config.json").write_text("{}")
    assert cli.run(["predict", "--plan", str(half), "--data", str(data), "--out", str(tmp_path / "p.jsonl")]) == 2
    assert "was built for tokenizer" in capsys.readouterr().err


def test_the_served_shapes_are_those_of_the_plan(built: Path) -> None:
    manifest = plan.read_manifest(built)
    served = predict.served_by(manifest)
    assert served.edges == tuple(manifest.bucket_edges)
    assert served.max_length == 32
    assert predict.served_by(manifest, max_length=16).max_length == 16
    with pytest.raises(predict.UsageError, match="--seq 64 is more than the 32 tokens"):
        predict.served_by(manifest, max_length=64)
