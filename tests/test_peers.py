"""benchmarks/peers.py: its worker, its table and its verdict, on tiny models and no other environment than this one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bertopt.errors import BertoptError, UsageError

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import peers
import peers_systems
import peers_worker

TEXTS = ["good film", "a bad game by the team", "x", "", "stock news, and news of stock!"]


def job(folder: Path, texts: list[str] = TEXTS) -> peers_systems.Job:
    return peers_systems.Job(str(folder), None, str(folder), texts, batch_size=2, length=16, threads=1)


def peer(name: str) -> peers_worker.Peer:
    return next(row for row in peers_worker.PEERS if row.name == name)


def entry(name: str, rates: list[float], **more: Any) -> dict[str, Any]:
    row = {"name": name, "computes": "", "status": "measured", "reason": None, "precision": "fp32", "accuracy": None}
    return row | {"agreement": 1.0, "repeats_seq_s": rates, "throughput_seq_s": float(np.median(rates))} | more


class SameProcess:
    """A worker without a process of its own."""

    def __init__(self, python: Path, given: peers_systems.Job, log: Path) -> None:
        self._server, self.hello = peers_worker.Server(given), {"versions": peers_worker.versions()}

    def ask(self, **request: str) -> dict[str, Any]:
        return json.loads(json.dumps(self._server.answer(request)))

    def __enter__(self) -> SameProcess:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@pytest.fixture
def same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "Worker", SameProcess)
    monkeypatch.setattr(peers, "SETTLE_SECONDS", 0.0)


def test_every_peer_gives_the_same_labels_in_the_order_of_the_texts(
    same_process: None, checkpoint_folder: Any, tmp_path: Path
) -> None:
    names = ["torch-max", "torch-longest", "pipeline", "ort-longest", "openvino-f32-longest"]
    folder = checkpoint_folder("bert", seed=5)
    rows, versions = peers.measure([peer(name) for name in names], job(folder), 2, tmp_path)
    assert {row.peer.name: row.reason for row in rows if not row.alive} == {}
    assert set(rows[0].labels) == {0, 1}, "a model that tells no texts apart would hide rows in the wrong order"
    assert [row.labels for row in rows] == [rows[0].labels] * 5
    assert [len(row.seconds) for row in rows] == [2] * 5
    assert "torch" in versions[peers_worker.HERE]


def test_sorting_brings_the_labels_back_into_order(checkpoint_folder: Any) -> None:
    given = job(checkpoint_folder("bert", seed=5))
    in_order = peers_systems.OnnxRuntime(given, padding="longest")
    by_length = peers_systems.SortedOpenVino(given, source="onnx", padding="longest", hint="f32")
    assert by_length.ran() == "fp32"
    assert by_length.predict(TEXTS) == in_order.predict(TEXTS)


def test_a_peer_that_fails_is_a_row_and_is_not_asked_again(same_process: None, tmp_path: Path) -> None:
    rows, _ = peers.measure([peer("torch-longest"), peer("ort-max")], job(tmp_path / "nothing"), 2, tmp_path)
    assert [(row.status, row.seconds) for row in rows] == [("failed", []), ("failed", [])]
    assert "nothing" in (rows[0].reason or "")


def test_a_worker_that_dies_says_so_and_does_not_hang(tiny: Path, tmp_path: Path) -> None:
    with peers.Worker(Path(sys.executable), job(tiny), tmp_path / "log") as worker:
        worker._process.kill()
        assert "died with code -9" in worker.ask(open="pipeline")["failed"]
        assert "died with code -9" in worker.ask(open="pipeline")["failed"]


def test_the_layers_behind_the_first_token_are_the_classifier(checkpoint_folder: Any) -> None:
    """For sentence-transformers, whose embedding has to be the logits."""
    import torch

    for kind in ("bert", "distilbert", "roberta", "albert", "electra"):
        loop = peers_systems.Torch(job(checkpoint_folder(kind)), padding="longest")
        model, encoded = loop.module, loop.tokenize(TEXTS[:2], padding=True, return_tensors="pt")
        with torch.inference_mode():
            hidden = getattr(model, model.base_model_prefix)(**encoded).last_hidden_state[:, 0]
            for weight, bias, activation in peers_systems.classifier_layers(model):
                hidden = activation(torch.nn.functional.linear(hidden, weight, bias))
            torch.testing.assert_close(hidden, model(**encoded).logits, msg=kind)


def test_a_head_of_another_form_is_skipped(checkpoint_folder: Any) -> None:
    loop = peers_systems.Torch(job(checkpoint_folder("deberta-v2")), padding="longest")
    with pytest.raises(peers_systems.Skipped, match="DebertaV2"):
        peers_systems.classifier_layers(loop.module)


def test_an_environment_is_made_once_and_again_when_its_requirements_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[list[str]] = []

    def run(step: list[str], **_: Any) -> SimpleNamespace:
        steps.append(step)
        (tmp_path / "st-onnx").mkdir(exist_ok=True)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(peers.subprocess, "run", run)
    for _ in range(2):
        python = peers.interpreter("st-onnx", tmp_path, tmp_path / "log")
    assert python == tmp_path / "st-onnx" / "bin" / "python"
    assert len(steps) == 3
    assert all(any("==" in word for word in step) for step in steps if "install" in step)
    monkeypatch.setitem(peers.ENVIRONMENTS, "st-onnx", ("another==1",))
    peers.interpreter("st-onnx", tmp_path, tmp_path / "log")
    assert len(steps) == 6


def test_every_environment_pins_torch_so_that_no_other_build_is_fetched() -> None:
    assert all(any(r.startswith("torch==") for r in wanted) for wanted in peers.ENVIRONMENTS.values())
    assert {row.environment for row in peers_worker.PEERS} == {peers_worker.HERE, *peers.ENVIRONMENTS}


def test_an_environment_that_cannot_be_made_skips_its_peers_with_pips_last_words(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(step: list[str], stdout: Any, **_: Any) -> SimpleNamespace:
        stdout.write("Collecting\nERROR: No matching distribution\n")
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(peers.subprocess, "run", run)
    rows, versions = peers.measure([peer("st-torch")], job(tiny), 1, tmp_path)
    assert (rows[0].status, versions) == ("skipped", {})
    assert "No matching distribution" in (rows[0].reason or "")


def test_summary_takes_the_median_and_counts_right_answers_and_agreement() -> None:
    one, other = peers.Row(peer("pipeline")), peers.Row(peer("torch-max"))
    for seconds in (1.0, 2.0, 4.0):
        one.take({"seconds": seconds, "labels": [0, 1, 1, 0]})
        other.take({"seconds": seconds / 2, "labels": [0, 1, 1, 1]})
    lost = peers.Row(peer("ort-max"))
    lost.take({"failed": "ValueError: no"})
    first, second, third = peers.summary([one, other, lost], np.array([0, 1, 0, 0]))
    assert (first["throughput_seq_s"], first["repeats_seq_s"]) == (2.0, [4.0, 2.0, 1.0])
    assert (first["accuracy"], first["agreement"]) == (0.75, 1.0)
    assert (second["accuracy"], second["agreement"]) == (0.5, 0.75)
    assert third["status"] == "failed"
    assert "throughput_seq_s" not in third
    assert peers.summary([one], None)[0]["accuracy"] is None


def test_the_table_fits_and_shows_what_is_missing() -> None:
    rows = [
        entry("pipeline", [51.04, 50.0, 52.0], accuracy=0.915),
        entry("openvino-f32-longest", [12345.6, 10000.0, 12500.0], precision="bf16", agreement=0.9988),
        {"name": "st-onnx", "status": "skipped", "reason": "no room"},
    ]
    lines = peers.table(rows).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[2].split() == ["pipeline", "51.0", "50.0", "to", "52.0", "1.00x", "91.50%", "100.00%", "fp32"]
    assert lines[3].split()[-3:] == ["241.88x", "99.88%", "bf16"]
    assert lines[4].split() == ["st-onnx", "skipped:", "no", "room"]


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ([20.0, 21.0, 22.0], [10.0, 10.5, 11.0], "bertopt-fp16 is 2.00 times st-openvino, the fastest peer: faster"),
        ([10.0, 10.5, 11.0], [20.0, 21.0, 22.0], "bertopt-fp16 is 0.50 times st-openvino, the fastest peer: slower"),
        ([10.0, 11.0, 12.0], [9.0, 11.0, 13.0], "bertopt-fp16 is 1.00 times st-openvino, the fastest peer: inside the spread"),
    ],
)
def test_the_verdict_names_the_fastest_of_both_sides(ours: list[float], theirs: list[float], words: str) -> None:
    rows = [entry("bertopt-fp16", ours), entry("bertopt-onnx", [1.0]), entry("st-openvino", theirs), entry("pipeline", [1.0])]
    assert peers.verdict(rows).startswith(words)


def test_a_rung_that_wants_a_gate_does_not_win_without_one() -> None:
    rows = [entry("bertopt-fp16", [10.0]), entry("bertopt-int8", [99.0]), entry("pipeline", [5.0])]
    assert peers.verdict(rows).startswith("bertopt-fp16 is 2.00 times pipeline")


def test_names_are_checked_and_kept_in_the_tables_order() -> None:
    assert [row.name for row in peers.chosen("st-torch, pipeline")] == ["pipeline", "st-torch"]
    assert {"bertopt-prefetch", "bertopt-bucketed", "bertopt-fp16"} <= {row.name for row in peers.chosen(None)}
    with pytest.raises(UsageError, match="'pipe'"):
        peers.chosen("pipe")


def test_no_folder_gets_into_a_record() -> None:
    words = ["--model", "/home/me/models/minilm", "--data", "../x/eval.jsonl", "--envs=/tmp/e", "--bs", "32"]
    assert peers.without_folders(words) == "python benchmarks/peers.py --model minilm --data eval.jsonl --envs=e --bs 32"


def test_a_run_from_end_to_end(
    same_process: None, copy: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one of bertopt's rungs; on labelled texts, through the files that it writes."""
    monkeypatch.setenv("BERTOPT_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"text": t, "label": str(i % 2)}) + "\n" for i, t in enumerate(TEXTS)))
    wanted = ["--model", str(copy), "--data", str(data), "--seq", "16", "--bs", "2", "--repeats", "1"]
    (tmp_path / "results").mkdir()
    peers.main([*wanted, "--only", "torch-longest,bertopt-bucketed", "--out", str(tmp_path / "results" / "tiny.v1")])
    record = json.loads((tmp_path / "results" / "tiny.v1.json").read_text())
    text = (tmp_path / "results" / "tiny.v1.txt").read_text()
    assert text in capsys.readouterr().out
    assert [row["status"] for row in record["peers"]] == ["measured", "measured"]
    assert record["peers"][1]["agreement"] == 1.0
    assert record["peers"][0]["accuracy"] == record["peers"][1]["accuracy"]
    assert str(tmp_path) not in text + json.dumps({k: v for k, v in record.items() if k != "environment"})


def test_what_cannot_be_compared_is_refused(checkpoint_folder: Any, tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    data.write_text(json.dumps({"text": "a", "text_pair": "b"}) + "\n")
    with pytest.raises(UsageError, match="pairs of texts"):
        peers.main(["--model", str(checkpoint_folder("bert")), "--data", str(data), "--seq", "16"])
    data.write_text(json.dumps({"text": "a"}) + "\n")
    with pytest.raises(UsageError, match="for embedding"):
        peers.main(["--model", str(checkpoint_folder("bert", head="Model")), "--data", str(data), "--seq", "16"])
    with pytest.raises(BertoptError, match="at least 1"):
        peers.main(["--repeats", "0"])
    with pytest.raises(UsageError, match="no folder that can be written"):
        peers.main(["--out", str(tmp_path / "absent" / "x")])
