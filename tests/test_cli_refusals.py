"""What a user can do wrong: one sentence on standard error, exit code 2, and nothing half-written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import threading
from pathlib import Path

import pytest

from bertopt import cli, files
from bertopt.tokenization import FastTokenizer
from tests import models
from tests.command import refused, untouched

OPTIONS = {
    "--bs 0": ["--bs 0", "at least 1"],
    "--bs -1": ["--bs -1", "at least 1"],
    "--bs x": ["--bs"],
    "--limit 0": ["--limit 0"],
    "--repeats 0": ["--repeats 0"],
    "--window 0": ["--window 0"],
    "--workers 0": ["--workers 0"],
    "--workers x": ["--workers x", "auto"],
    "--rungs fp17": ["'fp17'", "bucketed"],
    "--rungs ,": ["--rungs"],
    "--rungs onnx-fp16": ["onnx-fp16", "cuda"],
    "--device tpu": ["'tpu'", "cuda"],
    "--seq 65": ["65", "64 positions"],
    "--seq 2": ["--seq 2", "special tokens"],
    "--seq 0": ["--seq 0"],
    "--data no-such.jsonl": ["no-such.jsonl"],
    "--data": ["--data"],
    "--encoding klingon": ["klingon"],
    "--text-column nope": ["'nope'", "'text'"],
    "--model no-such/model": ["no-such/model", "cannot be reached", "what works offline"],
    "--model bert-base-uncased": ["--random-weights", "what works offline"],
    "--model ./no/such/folder": ["./no/such/folder"],
    "--resume no-such-run": ["no-such-run is no run"],
    "--nonsense": ["--nonsense"],
}


@pytest.mark.parametrize("options", OPTIONS)
def test_an_option_that_cannot_be_used(ladder, tmp_path, options):
    refused(ladder(*options.split()), *OPTIONS[options])
    untouched(tmp_path, "texts.jsonl")


def test_a_card_that_is_not_there(ladder, tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    refused(ladder("--device", "cuda"), "--device cpu")
    untouched(tmp_path, "texts.jsonl")


def test_no_torch(ladder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(ladder(), "PyTorch is not installed", "pip install")
    untouched(tmp_path, "texts.jsonl")


FILES = {
    "empty.jsonl": (b"", ["empty.jsonl is empty"]),
    "blank.txt": (b"\n\n", ["blank.txt is empty"]),
    "no-text.jsonl": (b'{"text": "a"}\n{"label": "neg"}\n', ["row 2", "no text"]),
    "latin.txt": ("café".encode("latin-1"), ["byte 3", "--encoding"]),
    "utf16.csv": ("text\na".encode("utf-16"), ["utf-16", "--encoding utf-16"]),
    "unknown.jsonl": (b'{"text": "a", "label": "neg"}\n{"text": "b", "label": "meh"}\n', ["row 2", "'meh'", "neg, pos"]),
    "mixed.jsonl": (b'{"text": "a", "label": "neg"}\n{"text": "b", "label": "1"}\n', ["row 2", "'1'", "neg, pos"]),
    "half.jsonl": (b'{"text": "a", "label": "neg"}\n{"text": "b"}\n', ["row 2", "all or none"]),
    "texts.xlsx": (b"PK", [".xlsx"]),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_used(ladder, tmp_path, name):
    content, words = FILES[name]
    (tmp_path / name).write_bytes(content)
    refused(ladder("--data", tmp_path / name), name, *words)
    untouched(tmp_path, "texts.jsonl", name)


def no_config(folder):
    (folder / "config.json").unlink()


def broken_config(folder):
    (folder / "config.json").write_text("{")


def other_family(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))


def other_head(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMultipleChoice"]}))


def cut_weights(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:40000])


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def no_tokenizer(folder):
    for file in ("tokenizer.json", "vocab.txt"):
        (folder / file).unlink()


CHECKPOINTS = [
    (no_config, ["no config.json"]),
    (broken_config, ["config.json"]),
    (other_family, ["'gpt2'", "roberta"]),
    (other_head, ["BertForMultipleChoice"]),
    (cut_weights, ["model.safetensors", "40000"]),
    (no_weights, ["no weights"]),
    (no_tokenizer, ["no tokenizer"]),
]


@pytest.mark.parametrize(("spoil", "words"), CHECKPOINTS)
def test_a_checkpoint_that_cannot_be_served(ladder, named, tmp_path, spoil, words):
    folder = Path(shutil.copytree(named, tmp_path / "model"))
    spoil(folder)
    refused(ladder("--model", folder), str(folder), *words)
    untouched(tmp_path, "texts.jsonl", "model")


def test_a_tokenizer_with_more_ids_than_the_embedding_table(ladder, checkpoint_folder, tmp_path):
    refused(ladder("--model", checkpoint_folder("bert", vocab_size=60)), "ids up to 99", "60 rows")
    untouched(tmp_path, "texts.jsonl")


@pytest.mark.parametrize("out", ["file", "file/run", "/proc/bertopt/run", "/dev/full"])
def test_a_folder_that_cannot_be_written_is_refused_before_any_work(ladder, tmp_path, out):
    (tmp_path / "file").write_text("kept")
    refused(ladder("--out", tmp_path / out), "cannot write")
    untouched(tmp_path, "texts.jsonl", "file")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("full", ["reference.npz", "answers.npz", "ladder.json", "one"])
def test_a_disk_that_fills_up(ladder, tmp_path, monkeypatch, full):
    """Whichever file it is that no longer fits, also when the finished ones are moved."""
    real = os.replace

    def replace(source, target):
        if Path(target).name == full or Path(target).parent.name == full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        real(source, target)

    monkeypatch.setattr(files.os, "replace", replace)
    refused(ladder(), "No space left on device")
    untouched(tmp_path, "texts.jsonl", *(["runs"] if full == "one" else []))
    assert not list(tmp_path.rglob("*.npz")) + list(tmp_path.rglob("*.json"))


def test_a_report_that_does_not_fit_leaves_the_record_to_make_it_from(ladder, tmp_path, monkeypatch):
    real = os.replace

    def replace(source, target):
        if Path(target).name == "report.html":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", replace)
        refused(ladder(), "report.html", "No space left on device")
    run = tmp_path / "runs" / "one"
    untouched(run, "answers.npz", "ladder.json", "reference.npz")
    assert cli.run(["report", str(run)]) == 0
    assert (run / "report.html").exists()


def test_a_library_that_the_report_lacks_is_named_and_leaves_the_record(ladder, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        refused(ladder(), "matplotlib", "missing")
    run = tmp_path / "runs" / "one"
    untouched(run, "answers.npz", "ladder.json", "reference.npz")
    assert cli.run(["report", str(run)]) == 0


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"schema_version": 99}', '{"schema_version": 1}', '{"schema_version": ']
)
def test_what_is_no_run_can_be_neither_resumed_nor_reported(ladder, tmp_path, capfd, content):
    run = tmp_path / "run"
    run.mkdir()
    if content is not None:
        (run / "ladder.json").write_text(content)
    refused(ladder("--resume", run), str(run))
    assert cli.run(["report", str(run)]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1
    untouched(run, *(["ladder.json"] if content is not None else []))


def test_a_worker_that_fails_ends_the_run_with_its_own_words(ladder, tmp_path, monkeypatch):
    real = FastTokenizer.encode

    def encode(self, *args):
        if threading.current_thread().name.startswith("tokenize"):
            raise ValueError("lost its vocabulary")
        return real(self, *args)

    monkeypatch.setattr(FastTokenizer, "encode", encode)
    code, said = ladder("--rungs", "prefetch")
    assert code == 1
    assert said == ["bertopt: a tokenizing worker failed: ValueError: lost its vocabulary"]
    untouched(tmp_path, "texts.jsonl")


def test_no_command_prints_the_help(capfd):
    assert cli.run([]) == 2
    assert "Commands:" in capfd.readouterr().out


def test_no_such_command(capfd):
    assert cli.run(["lader"]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_a_tokenizer_without_a_limit_is_held_to_the_positions(ladder, tmp_path, capfd):
    """TOK-02: no --seq and --seq 64 truncate to 64 and count it; --seq 128 stops before any work and names 64."""
    folder = models.save("bert", tmp_path / "model")
    models.save_tokenizer("bert", folder, max_length=None)
    (tmp_path / "long.txt").write_text("good " * 500)
    refused(ladder("--model", folder, "--data", tmp_path / "long.txt", "--seq", 128), "--seq 128", "64")
    for sequence in ([], ["--seq", "64"]):
        command = [
            "ladder",
            "--model",
            str(folder),
            "--data",
            str(tmp_path / "long.txt"),
            "--rungs",
            "baseline",
            "--repeats",
            "1",
        ]
        assert cli.run([*command, *sequence, "--out", str(tmp_path / "run")]) == 0
        record = json.loads((tmp_path / "run" / "ladder.json").read_text())
        assert record["sequence_length"] == 64
        assert record["data"]["truncated_requests"] == record["rungs"][0]["truncated_requests"] == 1
