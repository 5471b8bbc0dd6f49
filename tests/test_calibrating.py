"""`bertopt calibrate`: what it writes, what it says, and what a user can do wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bertopt import calibrating, cli, demo
from bertopt import calibration as caches
from bertopt.demo import sources
from bertopt.errors import UsageError
from tests.test_demo import installed

demo_missing = not (installed(sources.ENCODER_PACKAGE) and installed(sources.CORPUS_PACKAGE))
WORDS = ["good film", "bad news", "the team was great", "poor game", "it is a good stock", "news of the film"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "calib.jsonl"
    file.write_text("\n".join(json.dumps({"text": text, "label": "pos"}) for text in WORDS))
    return file


@pytest.fixture
def calibrate(tiny: Path, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`calibrate("--smooth", "0.8")` -> (exit code, standard output, standard error) on good input but for these options."""

    def run(*options: object) -> tuple[int, str, str]:
        given = ["--model", tiny, "--data", data, "--out", tmp_path / "out" / "x.json", *options]
        capfd.readouterr()
        code = cli.run(["calibrate", *map(str, given)])
        return code, *capfd.readouterr()

    return run


def test_the_cache_is_written_and_what_was_seen_is_said(calibrate: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, said, progress = calibrate("--samples", 4, "--method", "mse", "--smooth", 0.8, "--seq", 16)
    assert code == 0
    made = caches.load(tmp_path / "out" / "x.json")
    assert (made.method, made.smooth, made.max_length, made.texts, made.attention) == ("mse", 0.8, 16, 4, False)
    assert len(made.sites) == 8
    assert f"4 of 6 texts of calib.jsonl, {made.tokens} tokens" in said
    assert "8 ranges by mse, 8 of them smoothed at 0.8" in said
    assert made.sha256 in said
    assert "observing layers" in progress
    assert "were calibrated with" not in said


def test_options_win_over_the_recipe(calibrate: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text('method = "entropy"\nsmooth = 0.0\nsamples = 3\nmax_length = 24\nattention = true\n')
    assert calibrate("--recipe", recipe, "--samples", 2)[0] == 0
    made = caches.load(tmp_path / "out" / "x.json")
    assert (made.method, made.smooth, made.texts, made.max_length, made.attention) == ("entropy", 0.0, 2, 24, True)


def test_evaluation_rows_that_were_calibrated_with_are_named(
    calibrate: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    judged = tmp_path / "eval.jsonl"
    judged.write_text("\n".join(json.dumps({"text": text}) for text in ["other", *WORDS[2:4], "another"]))
    code, said, _ = calibrate("--eval", judged)
    assert code == 0
    assert "2 of 4 rows of eval.jsonl were calibrated with: rows 2, 3; the gate refuses an evaluation on them" in said
    judged.write_text(json.dumps({"text": "other"}))
    assert "0 of 1 rows of eval.jsonl were calibrated with\n" in calibrate("--eval", judged)[1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--method", "best"], "there is no calibration method 'best'; there are minmax"),
        (["--smooth", "1"], "a smoothing strength of 1 is out of range"),
        (["--samples", "0"], "--samples 0 is too small"),
        (["--seq", "65"], "--seq 65 is more than the 64 positions"),
        (["--data", "none.jsonl"], "there is no file none.jsonl"),
        (["--eval", "none.jsonl"], "there is no file none.jsonl"),
        (["--model", "no/such"], "no/such"),
        (["--recipe", "none.toml"], "none.toml cannot be read as a recipe"),
    ],
)
def test_bad_input_is_a_sentence_and_writes_nothing(
    calibrate: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    says: str,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, said, errors = calibrate(*options)
    assert (code, said) == (2, "")
    assert says in errors
    assert errors.count("bertopt: ") == 1
    assert not (tmp_path / "out").exists()


def test_without_texts_only_the_demo_can_be_calibrated(tiny: Path) -> None:
    with pytest.raises(UsageError, match="--data is missing: give some hundred texts"):
        calibrating.texts_for(str(tiny), None)


@pytest.mark.skipif(demo_missing, reason="the demo's packages are not installed")
def test_the_demo_is_calibrated_with_what_trained_it() -> None:
    """And so with none of the rows that it is evaluated on."""
    trained, held_out = calibrating.texts_for("demo", None), demo.texts("eval")
    assert trained.name == "demo-train"
    assert not set(trained.texts) & set(held_out.texts)
