"""`bertopt` from the command line: what a run leaves, what help imports, and the machine and terminal that it meets."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.command import python, untouched

HEAVY = ["torch", "transformers", "tokenizers", "onnx", "onnxruntime", "openvino", "matplotlib"]


def test_good_input_is_exit_code_0_and_a_whole_folder(ladder, tmp_path):
    assert ladder("--trace") == (0, [])
    untouched(tmp_path / "runs", "one")
    untouched(tmp_path / "runs" / "one", "answers.npz", "ladder.json", "reference.npz", "report.html", "trace-baseline.json")


def test_a_folder_that_exists_keeps_what_else_lies_in_it(ladder, tmp_path):
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "notes.txt").write_text("kept")
    assert ladder()[0] == 0
    untouched(run, "answers.npz", "ladder.json", "notes.txt", "reference.npz", "report.html")


def test_a_ladder_on_which_nothing_passes_is_no_success(ladder, named, tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(named, tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.bias"] = torch.full_like(tensors["classifier.bias"], float("nan"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert ladder("--model", folder)[0] == 1
    record = json.loads((tmp_path / "runs" / "one" / "ladder.json").read_text())
    assert [(r["status"], r["gate"]) for r in record["rungs"]] == [("failed", None)]
    assert "NaN" in record["rungs"][0]["reason"]
    assert record["best"] is record["verdict"] is None


def test_help_and_wrong_options_import_no_heavy_library():
    code = f"""
        import sys
        import typer
        from bertopt import cli
        cli._settle_libraries()
        commands = [[name] for name in typer.main.get_command(cli.app).commands]
        assert ["ladder"] in commands
        for command in [], *commands:
            assert cli.run([*command, "--help"]) == 0
        assert cli.run(["ladder", "--bs", "0"]) == 2
        assert cli.run(["ladder", "--device", "auto", "--rungs", "fp17"]) == 2
        assert cli.run(["report", "no-such-run"]) == 2
        print(*[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
    """
    child = python(code)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert out.count("Usage:") >= 3
    assert err.splitlines()[-1] == ""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
@pytest.mark.parametrize(("threads", "why"), [(None, "1 (affinity"), ("1", "1 (OMP_NUM_THREADS)")])
def test_threads_follow_the_cores_that_there_are(ladder, tmp_path, monkeypatch, threads, why):
    """HST-01: every library runs as many threads as the process may use, and none complains about the others."""
    if threads is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    cores = os.sched_getaffinity(0)
    try:
        if threads is None:
            os.sched_setaffinity(0, [min(cores)])
        assert ladder("--rungs", "onnx,fp16", "--workers", "8") == (0, [])
    finally:
        os.sched_setaffinity(0, cores)
    record = json.loads((tmp_path / "runs" / "one" / "ladder.json").read_text(encoding="utf-8"))
    assert record["environment"]["cores"].startswith(why)
    measured = {r["name"]: r for r in record["rungs"] if r["status"] == "measured"}
    assert {"baseline", "fast-tokenizer", "prefetch", "bucketed", "onnx"} <= set(measured)
    for name, rung in measured.items():
        assert rung["backend_version"].endswith(", 1 threads"), name
        assert rung["workers"] == (None if name in ("baseline", "fast-tokenizer") else 1)


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_terminal_that_knows_ascii_only(ladder, named, tmp_path):
    assert ladder("--model", shutil.copytree(named, tmp_path / "modèle")) == (0, [])
    child = python(
        f"from bertopt import cli; cli.sys.argv[1:] = ['report', {str(tmp_path / 'runs' / 'one')!r}]; cli.main()", env=C_LOCALE
    )
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    assert out.isascii()
    assert "mod?le" in out
