"""`bertopt ladder --resume`: rungs are added to a run, on the same model and texts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertopt.errors import UsageError
from bertopt.records import load_ladder
from tests.climbing import BATCH, FLOAT_RUNGS, LENGTH, by_name, texts, write


@pytest.fixture(scope="module")
def first(climbed, named):
    return climbed(named, rungs=("bucketed",), window=8)


def test_it_adds_rungs_and_keeps_what_was_measured(climbed, named, first):
    earlier, folder = first
    record, _ = climbed(named, resume=folder, rungs=("onnx",), batch_size=7, sequence_length=None)
    assert record.rungs[:4] == earlier.rungs
    assert [r.name for r in record.rungs] == FLOAT_RUNGS
    assert (record.batch_size, record.sequence_length, record.data) == (BATCH, LENGTH, earlier.data)
    added = record.rungs[-1]
    assert (added.status, added.window) == ("measured", 8)
    assert added.label_agreement == 1.0  # with the baseline of the earlier run
    assert added.parity.passed
    assert added.speedup_over_baseline == pytest.approx(added.throughput_seq_s / earlier.rungs[0].throughput_seq_s)
    assert record.environment["resumed_from"] == earlier.environment


def test_ablations_come_once_however_often_a_run_is_resumed(climbed, named, first):
    _, folder = first
    seen = []
    for _ in range(2):
        record, folder = climbed(named, resume=folder, rungs=("bucketed",), ablate=True)
        seen.append([r.name for r in record.rungs if " without " in r.name])
        for rung in record.rungs:
            assert (rung.status, rung.label_agreement) == ("measured", 1.0)
    best = record.best
    assert best in FLOAT_RUNGS
    assert len(set(seen[-1])) == len(seen[-1])
    assert set(seen[0]) <= set(seen[-1])
    if best != "baseline":
        assert f"{best} without tokenizer" in seen[-1]


def test_other_models_and_texts_are_refused(climbed, named, checkpoint_folder, first, tmp_path):
    _, folder = first
    with pytest.raises(UsageError, match="give the same --model"):
        climbed(checkpoint_folder("bert", seed=1), resume=folder)
    with pytest.raises(UsageError, match="give the same --data"):
        climbed(named, resume=folder, data=write(tmp_path / "x.jsonl", [{"text": text[1:]} for text in texts()]))
    with pytest.raises(UsageError, match="give the same --data"):
        climbed(named, resume=folder, data=write(tmp_path / "x.jsonl", [{"text": text} for text in texts()[:-1]]))


@pytest.mark.parametrize("spoil", [Path.unlink, lambda file: file.write_bytes(b"no archive")])
def test_a_run_that_is_not_whole_is_refused(climbed, named, first, tmp_path, spoil):
    _, folder = first
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    spoil(copy / "reference.npz")
    with pytest.raises(UsageError, match=r"reference\.npz"):
        climbed(named, resume=copy)


def test_it_works_without_torch(named, first, tmp_path):
    """TensorRT often lives in another environment; here it is OpenVINO and ONNX Runtime that do."""
    _, folder = first
    data = write(tmp_path / "texts.jsonl", [{"text": text} for text in texts()])
    words = ["ladder", "--model", named, "--data", data, "--resume", folder, "--repeats", 1, "--out", tmp_path / "run"]
    code = f"import sys; sys.modules['torch'] = None; from bertopt import cli; sys.exit(cli.run({list(map(str, words))}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    rungs = by_name(load_ladder(tmp_path / "run"))
    assert (rungs["onnx"].status, rungs["onnx"].label_agreement) == ("measured", 1.0), rungs["onnx"].reason
    assert rungs["fp16"].status in ("measured", "skipped"), rungs["fp16"].reason


def test_a_graph_that_is_gone_is_exported_again(climbed, named, first, tmp_path):
    _, folder = first
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    record = json.loads((copy / "ladder.json").read_text())
    record["environment"]["canonical_graph"] = str(tmp_path / "gone.onnx")
    (copy / "ladder.json").write_text(json.dumps(record))
    assert climbed(named, resume=copy)[0].rungs[-1].status == "measured"
