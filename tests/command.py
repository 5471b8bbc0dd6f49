"""The command line as a user meets it: a quick ladder, what it says on standard error, and what lies in a folder afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from bertopt import cli

ROOT = Path(__file__).parents[1]
PROGRESS = re.compile(r"\[ *\d+\.\d s\] ")
TEXTS = "\n".join(json.dumps({"text": t, "label": x}) for t, x in [("a good film", "pos"), ("bad", "neg"), ("the news", "neg")])


def ladder(model: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[str]]]:
    """See the fixture."""
    data = folder / "texts.jsonl"
    data.write_text(TEXTS)

    def run(*options: object) -> tuple[int, list[str]]:
        given = ["--model", model, "--data", data, "--bs", 2, "--seq", 16, "--repeats", 1, "--rungs", "baseline"]
        given += ["--out", folder / "runs" / "one"]
        capfd.readouterr()
        code = cli.run(["ladder", *map(str, given), *map(str, options)])
        said = capfd.readouterr().err.splitlines()
        return code, [line for line in said if not PROGRESS.match(line)]

    return run


def refused(result: tuple[int, list[str]], *words: str) -> None:
    code, said = result
    assert code == 2
    assert len(said) == 1, said
    assert said[0].startswith("bertopt: ")
    for word in words:
        assert word in said[0]


def untouched(folder: Path, *allowed: str) -> None:
    assert sorted(p.name for p in folder.iterdir()) == sorted(allowed)


def python(code: str, **options) -> subprocess.Popen:
    environment = dict(os.environ, PYTHONPATH=str(ROOT)) | options.pop("env", {})
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in environment.items() if value is not None},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # whatever runs the tests may ignore it
        **options,
    )
