from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bertopt.errors import DataError
from bertopt.gate import load_predictions, save_predictions, text_hash, text_hashes
from tests.gate_data import predictions, texts


def _same(path: Path, **changes: object) -> None:
    before = predictions([0, 1, 1], **changes)
    save_predictions(before, path)
    after = load_predictions(path)
    for name in before.__dataclass_fields__:
        if name != "logits":
            assert getattr(after, name) == getattr(before, name)
    assert after.logits.dtype == np.float32
    np.testing.assert_array_equal(after.logits, before.logits)


def test_round_trip(tmp_path: Path) -> None:
    _same(tmp_path / "p.jsonl", throughput_seq_s=812.5, evidence="proxy", fingerprint="ab12", device="CPU", noise=3)
    _same(tmp_path / "p.jsonl", names=["café \u2028", 'a "quoted" label'])
    _same(tmp_path / "p.jsonl", task="embedding", labels=None)


@settings(deadline=None)
@given(logits=arrays.arrays(np.float32, (4, 2), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_every_float32_comes_back(logits: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("floats") / "p.jsonl"
    save_predictions(predictions([0] * 4, logits=logits), path)
    np.testing.assert_array_equal(load_predictions(path).logits, logits)


def test_logits_that_are_not_finite_stay_so(tmp_path: Path) -> None:
    logits = np.array([[1, np.nan], [np.inf, 0], [2, 1]], dtype=np.float32)
    save_predictions(predictions([0] * 3, logits=logits), tmp_path / "p.jsonl")
    assert "NaN" not in (tmp_path / "p.jsonl").read_text()
    loaded = load_predictions(tmp_path / "p.jsonl")
    assert np.isfinite(loaded.logits).all(axis=1).tolist() == [False, False, True]
    assert loaded.predicted() == [None, None, "negative"]


def test_labels_of_a_multi_label_row(tmp_path: Path) -> None:
    logits = np.array([[1, -1, 1], [-1, -1, -1]], dtype=np.float32)
    before = predictions([0, 0], task="multi_label", labels=["a", "b", "c"], logits=logits)
    save_predictions(before, tmp_path / "p.jsonl")
    assert load_predictions(tmp_path / "p.jsonl").predicted() == ["a|c", ""]


def _broken(path: Path, at: int, old: str, new: str) -> None:
    save_predictions(predictions([0, 1, 1]), path)
    lines = path.read_text().splitlines()
    assert old in lines[at]
    lines[at] = lines[at].replace(old, new)
    path.write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("at", "old", "new", "said"),
    [
        (0, '"bertopt_predictions": 1', '"bertopt_predictions": 9', "line 1"),
        (0, '"precision": "fp32", ', "", "line 1: the header has no 'precision'"),
        (0, "single_label", "question_answering", "line 1: the task 'question_answering'"),
        (2, "1,", "one,", "line 3: not JSON"),
        (2, '"index":1', '"index":5', "line 3: the row has index 5, and 1 comes next"),
        (2, '"positive"', '"negative"', "line 3: the label is 'negative' and the logits say 'positive'"),
        (2, "[-1,1]", "[-1,1,2]", "line 3: the logits are not 2 numbers"),
        (2, "[-1,1]", '[-1,"x"]', "line 3: a logit is not a number"),
        (3, '"text"', '"txt"', "line 4: the row has no 'text'"),
    ],
)
def test_a_file_that_is_wrong_names_its_line(tmp_path: Path, at: int, old: str, new: str, said: str) -> None:
    path = tmp_path / "p.jsonl"
    _broken(path, at, old, new)
    with pytest.raises(DataError) as caught:
        load_predictions(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    save_predictions(predictions([0, 1, 1]), path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    with pytest.raises(DataError, match="2 of 3 rows"):
        load_predictions(path)
    path.write_text("")
    with pytest.raises(DataError, match="line 1"):
        load_predictions(path)
    with pytest.raises(DataError, match="no file"):
        load_predictions(tmp_path / "absent.jsonl")


def test_hashes_tell_a_pair_from_a_text() -> None:
    assert len({text_hash("a"), text_hash("a", ""), text_hash("a", "b"), text_hash("b", "a"), text_hash("ab")}) == 5
    assert text_hashes(["a", "a"], [None, "b"]) == [text_hash("a"), text_hash("a", "b")]


def test_no_heavy_library_is_imported() -> None:
    heavy = ("torch", "transformers", "onnx", "onnxruntime", "openvino", "scipy", "matplotlib", "tokenizers")
    code = f"import sys, bertopt.gate, bertopt.report.junit; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    assert done.stdout.strip() == "[]"


def test_many_rows_in_one_file(tmp_path: Path) -> None:
    many = predictions(np.arange(7600) % 2, noise=5)
    save_predictions(many, tmp_path / "p.jsonl")
    loaded = load_predictions(tmp_path / "p.jsonl")
    assert loaded.text_hashes == text_hashes(texts(7600))
    np.testing.assert_array_equal(loaded.logits, many.logits)
