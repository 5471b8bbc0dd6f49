"""`bertopt ladder` from a checkpoint and a file to a record, on models of milliseconds."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertopt import assemble, run
from bertopt.backends import eager, onnxruntime
from bertopt.climb import climb
from bertopt.errors import DataError, UsageError
from bertopt.model import open_checkpoint
from bertopt.prepare import Climb
from bertopt.progress import Lines
from bertopt.records import LadderRecord, RungRecord, load_ladder
from bertopt.tokenization import load_tokenizer
from tests import models
from tests.made_up import made_up_rung

FAMILIES = ["bert", "distilbert", "roberta", "albert", "electra", "xlm-roberta"]
FLOAT_RUNGS = ["baseline", "fast-tokenizer", "prefetch", "bucketed", "onnx"]
ROWS = 19
BATCH, LENGTH = 4, 16


def texts(rows: int = ROWS) -> list[str]:
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(models.WORDS, n)) for n in generator.integers(1, 22, rows)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTOPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "texts.jsonl", [{"text": text} for text in texts()])


@pytest.fixture(scope="module")
def climbed(data, tmp_path_factory):
    """`climbed(model, **more)` -> (record, folder) of a ladder with one repeat."""

    def run_it(model: Path, **more: Any) -> tuple[LadderRecord, Path]:
        fields = {"data": data, "batch_size": BATCH, "sequence_length": LENGTH, "repeats": 1, "rungs": ("onnx",)}
        fields |= {"out": tmp_path_factory.mktemp("run") / "run"}
        return climb(Climb(model=str(model), **(fields | more)), Lines(quiet=True))

    return run_it


def with_margin(folder: Path) -> Path:
    """Labels that rounding to BF16 does not flip: of untrained models, some rows lie on the edge."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    bias = next(name for name in tensors if name.startswith("classifier") and name.endswith("bias") and len(tensors[name]) == 2)
    tensors[bias][1] += 1.0
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, climbed, tmp_path_factory):
    """(lengths in tokens, record, folder) of the default ladder on each family."""
    folder = with_margin(models.save(request.param, tmp_path_factory.mktemp(request.param)))
    lengths = load_tokenizer(folder, max_length=LENGTH, model_type=request.param).encode(texts()).lengths
    return (lengths, *climbed(folder, rungs=None))


def by_name(record: LadderRecord) -> dict[str, RungRecord]:
    return {rung.name: rung for rung in record.rungs}


def test_every_family_is_measured_on_every_rung_that_a_cpu_has(family):
    _, record, _ = family
    rungs = by_name(record)
    assert list(rungs) == [*FLOAT_RUNGS, "fp16", "int8", "packed"]
    for name in FLOAT_RUNGS:
        assert (rungs[name].status, rungs[name].precision) == ("measured", "fp32"), rungs[name].reason
    half = rungs["fp16"]
    assert (half.status, half.precision) in [("measured", "bf16"), ("measured", "fp16"), ("skipped", None)], half.reason
    for rung in record.rungs:
        if rung.status != "measured":
            assert rung.reason
            assert rung.throughput_seq_s is None or "parity" in rung.reason  # INT8 of untrained models need not hold it
    assert rungs["int8"].status in ("measured", "failed")
    assert (rungs["int8"].precision, rungs["int8"].gate) == ("int8", "not gated")
    assert record.best in set(rungs) - {"int8"}
    assert record.verdict is not None
    assert (rungs["onnx"].graph or {}).get("Attention") == 2


def test_the_figures_of_a_record_agree_with_each_other(family):
    lengths, record, _ = family
    fixed = 1 - lengths.mean() / LENGTH
    for rung in [r for r in record.rungs if r.status == "measured"]:
        assert rung.requests == ROWS
        assert rung.failed_batches == 0
        assert rung.batches == rung.batch_ms.samples == math.ceil(ROWS / BATCH)
        assert rung.repeats_seq_s == [rung.throughput_seq_s] == [rung.throughput_low_seq_s] == [rung.throughput_high_seq_s]
        assert rung.throughput_tokens_s / rung.throughput_seq_s == pytest.approx(lengths.mean())
        assert rung.ceiling_share == pytest.approx(
            rung.throughput_seq_s / min(rung.device_ceiling_seq_s, rung.tokenizer_ceiling_seq_s)
        )
        assert rung.speedup_over_baseline == pytest.approx(rung.throughput_seq_s / record.rungs[0].throughput_seq_s)
        assert rung.parent_verdict is None  # one repeat has no spread, so nothing lies outside of it
        assert rung.truncated_requests == record.data.truncated_requests > 0
        for share in ("utilization_predicted", "utilization_span", "utilization_cores_busy", "attention_waste_fraction"):
            assert 0 <= getattr(rung, share) <= 1, share
        for phase in ("tokenize_ms", "collate_ms", "launch_ms", "device_ms", "postprocess_ms", "warmup_s", "first_batch_ms"):
            assert getattr(rung, phase) >= 0, phase
        for unmeasured in ("copy_in_ms", "copy_out_ms", "utilization_sm_active", "utilization_nvidia_smi", "peak_device_mib"):
            assert getattr(rung, unmeasured) is None, unmeasured  # a CPU has none of these, which is not zero
        assert rung.parity.passed
        assert rung.label_agreement == 1.0
        assert rung.timeline
        bucketed = rung.stages["batching"] == "bucketed"
        assert rung.padding_fraction < fixed if bucketed else rung.padding_fraction == pytest.approx(fixed)
        assert (rung.bucket_edges is not None) == bucketed
        assert (rung.workers is None) == (rung.stages["feed"] == "serial")
    assert sum(record.lengths.counts) == ROWS
    assert record.lengths.mean == pytest.approx(lengths.mean())
    offline = {(p.policy, p.window): p.padding_fraction for p in record.padding}
    assert offline["padded to --seq", BATCH] == pytest.approx(fixed)
    assert offline["bucketed", 1024] == pytest.approx(by_name(record)["bucketed"].padding_fraction)  # measured and computed


def test_a_record_reads_back_as_it_was_written(family):
    _, record, folder = family
    assert load_ladder(folder) == record
    assert "NaN" not in (folder / "ladder.json").read_text()


def test_the_naive_tokenizer_says_what_it_is(family):
    _, record, _ = family
    said = any("a row at a time" in note for note in record.notes)
    assert said == (record.model.architecture != "BertForSequenceClassification")


HEADS = {
    "ForTokenClassification": ("token_classification", 3),
    "ForQuestionAnswering": ("question_answering", 2),
    "Model": ("embedding", 32),
}


@pytest.mark.parametrize("head", HEADS)
def test_other_heads_keep_their_meaning(climbed, checkpoint_folder, head):
    task, outputs = HEADS[head]
    changes = {"num_labels": 3} if task == "token_classification" else {}
    record, folder = climbed(checkpoint_folder("bert", head=head, **changes))
    assert record.model.task == task
    assert [(r.name, r.status, r.reason) for r in record.rungs] == [(name, "measured", None) for name in FLOAT_RUNGS]
    with np.load(folder / "answers.npz") as stored:
        answers = stored["baseline"]
    rows = ROWS if task == "embedding" else sum(n * count for n, count in enumerate(record.lengths.counts))
    assert answers.shape == (rows, outputs)
    assert np.isfinite(answers).all()
    for rung in record.rungs:
        assert rung.parity.passed
        assert rung.accuracy is None
        assert rung.label_agreement == (1.0 if task == "token_classification" else None)


@pytest.mark.parametrize(
    ("task", "changes"),
    [
        ("multi_label", {"problem_type": "multi_label_classification", "num_labels": 3}),
        ("regression", {"num_labels": 1}),
    ],
)
def test_heads_without_one_label_claim_no_accuracy(climbed, checkpoint_folder, data, tmp_path, task, changes):
    scored = write(tmp_path / "scored.jsonl", [{"text": text, "label": str(i / 10)} for i, text in enumerate(texts())])
    record, _ = climbed(checkpoint_folder("bert", **changes), data=scored)
    assert record.model.task == task
    for rung in record.rungs:
        assert rung.status == "measured"
        assert rung.accuracy is rung.label_agreement is None
        assert (rung.parity.label_agreement is None) == (task == "regression")


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    names = {"id2label": {0: "neg", 1: "pos"}, "label2id": {"neg": 0, "pos": 1}}
    return models.save("bert", tmp_path_factory.mktemp("named"), **names)


def test_accuracy_is_of_labels_matched_by_name_or_else_by_number_with_a_note(climbed, named, tmp_path):
    """DAT-04: the model's own answers as labels are 100 % right, turned over 0 %, and as numbers right with a warning."""
    _, folder = climbed(named, rungs=("baseline",))
    with np.load(folder / "answers.npz") as stored:
        classes = stored["baseline"].argmax(axis=1)

    def accuracy(label) -> tuple[float, list[str]]:
        labelled = write(tmp_path / "x.jsonl", [{"text": t, "label": label(c)} for t, c in zip(texts(), classes, strict=True)])
        record, _ = climbed(named, rungs=("baseline",), data=labelled)
        found = record.rungs[0].accuracy
        assert found.rows == ROWS
        assert found.low - 1e-9 <= found.value <= found.high + 1e-9
        return found.value, [note for note in record.notes if "indices" in note]

    assert accuracy(lambda c: ["neg", "pos"][c]) == (1.0, [])
    assert accuracy(lambda c: ["POS", "NEG"][c]) == (0.0, [])
    value, notes = accuracy(str)
    assert value == 1.0
    assert len(notes) == 1
    with pytest.raises(DataError, match="row 1: the model has no label 'meh'"):
        accuracy(lambda c: "meh")


def test_a_bad_label_is_found_also_in_rows_that_would_not_be_measured(climbed, named, tmp_path, monkeypatch):
    monkeypatch.setattr("bertopt.prepare.FEWEST", 4)
    monkeypatch.setattr("bertopt.prepare.PASS_SECONDS", 1e-9)
    rows = [{"text": text, "label": "neg"} for text in texts()]
    record, _ = climbed(named, rungs=("baseline",), data=write(tmp_path / "x.jsonl", rows))
    assert record.data.requests == record.rungs[0].accuracy.rows == 4
    assert any(note.startswith("4 of 19 requests") for note in record.notes)
    rows[-1]["label"] = "meh"
    with pytest.raises(DataError, match="row 19"):
        climbed(named, rungs=("baseline",), data=write(tmp_path / "x.jsonl", rows))


def test_pairs_of_every_kind(climbed, checkpoint_folder, tmp_path):
    """TOK-01: (a, b), an empty side, both empty, and none at all, in one batch."""
    pairs = [("a film", "good"), ("", "good " * 20), ("good " * 20, ""), ("", ""), ("alone", None), (" ", " ")]
    rows = [{"text": one} | ({} if two is None else {"text_pair": two}) for one, two in pairs]
    record, _ = climbed(checkpoint_folder("bert"), data=write(tmp_path / "x.jsonl", rows))
    assert record.data.pairs
    assert record.data.truncated_requests == 2
    assert [r.status for r in record.rungs] == ["measured"] * 5
    assert all(r.label_agreement == 1.0 for r in record.rungs)


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_one_row_in_batches_of_any_size(climbed, checkpoint_folder, tmp_path, batch):
    record, _ = climbed(checkpoint_folder("bert"), data=write(tmp_path / "x.jsonl", [{"text": "good"}]), batch_size=batch)
    assert [(r.status, r.requests, r.batches) for r in record.rungs] == [("measured", 1, 1)] * 5


def test_texts_with_nothing_in_them_are_answered_and_noted(climbed, checkpoint_folder, tmp_path):
    """TOK-07 and EXP-07: no NaN, and the report names the kinds of row that mean less than they seem."""
    odd = ["", " ", "\0\a", "\U0001f600\U0001f600", "a [SEP] b", "good film\r\n", "\N{ZERO WIDTH NO-BREAK SPACE}news"]
    record, _ = climbed(checkpoint_folder("bert"), data=write(tmp_path / "x.jsonl", [{"text": text} for text in odd]))
    assert [r.status for r in record.rungs] == ["measured"] * 5
    notes = " / ".join(record.notes)
    assert "3 of the first 7 requests: no content (row 1 first)" in notes
    assert "1 of the first 7 requests: all content unknown (row 4 first)" in notes
    assert "1 of the first 7 requests: special tokens typed in the text (row 5 first)" in notes
    assert "tokenized otherwise" not in notes


def test_random_weights_are_for_speed_only(climbed, named, tmp_path):
    labelled = write(tmp_path / "x.jsonl", [{"text": text, "label": "whatever"} for text in texts()])
    record, _ = climbed(named, data=labelled, random_weights=True)
    assert record.model.weights == "random"
    assert any("speed only" in note for note in record.model.notes)
    for rung in record.rungs:
        assert rung.status == "measured"
        assert rung.accuracy is None
        assert rung.parity.label_agreement is None


def test_a_random_head_is_marked_and_gives_the_same_numbers_twice(climbed, checkpoint_folder):
    """MOD-01."""
    found = []
    for _ in range(2):
        record, folder = climbed(checkpoint_folder("bert", head="ForMaskedLM"), rungs=("baseline",))
        assert any("head: random, accuracy not meaningful" in note for note in record.model.notes)
        assert record.rungs[0].accuracy is None
        with np.load(folder / "answers.npz") as stored:
            found.append(stored["baseline"])
    assert np.array_equal(*found)


def test_traces_are_json_with_the_rows_that_the_browser_draws(climbed, checkpoint_folder):
    record, folder = climbed(checkpoint_folder("bert"), trace=True)
    for rung in record.rungs:
        events = json.loads((folder / f"trace-{rung.name}.json").read_text())["traceEvents"]
        assert {e["tid"] for e in events} >= {"loop", "device"}
        assert all(e["ph"] == "X" and e["dur"] >= 0 for e in events)


class TestResume:
    @pytest.fixture(scope="class")
    @classmethod
    def first(cls, climbed, named):
        return climbed(named, rungs=("bucketed",), window=8)

    def test_it_adds_rungs_and_keeps_what_was_measured(self, climbed, named, first):
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

    def test_ablations_come_once_however_often_a_run_is_resumed(self, climbed, named, first):
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

    def test_other_models_and_texts_are_refused(self, climbed, named, checkpoint_folder, first, tmp_path):
        _, folder = first
        with pytest.raises(UsageError, match="give the same --model"):
            climbed(checkpoint_folder("bert", seed=1), resume=folder)
        with pytest.raises(UsageError, match="give the same --data"):
            climbed(named, resume=folder, data=write(tmp_path / "x.jsonl", [{"text": text[1:]} for text in texts()]))
        with pytest.raises(UsageError, match="give the same --data"):
            climbed(named, resume=folder, data=write(tmp_path / "x.jsonl", [{"text": text} for text in texts()[:-1]]))

    @pytest.mark.parametrize("spoil", [Path.unlink, lambda file: file.write_bytes(b"no archive")])
    def test_a_run_that_is_not_whole_is_refused(self, climbed, named, first, tmp_path, spoil):
        _, folder = first
        copy = Path(shutil.copytree(folder, tmp_path / "copy"))
        spoil(copy / "reference.npz")
        with pytest.raises(UsageError, match=r"reference\.npz"):
            climbed(named, resume=copy)

    def test_it_works_without_torch(self, named, data, first, tmp_path):
        """TensorRT often lives in another environment; here it is OpenVINO and ONNX Runtime that do."""
        _, folder = first
        words = ["ladder", "--model", named, "--data", data, "--resume", folder, "--repeats", 1, "--out", tmp_path / "run"]
        code = f"import sys; sys.modules['torch'] = None; from bertopt import cli; sys.exit(cli.run({list(map(str, words))}))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1])
        assert done.returncode == 0, done.stderr
        rungs = by_name(load_ladder(tmp_path / "run"))
        assert (rungs["onnx"].status, rungs["onnx"].label_agreement) == ("measured", 1.0), rungs["onnx"].reason
        assert rungs["fp16"].status in ("measured", "skipped"), rungs["fp16"].reason

    def test_a_graph_that_is_gone_is_exported_again(self, climbed, named, first, tmp_path):
        _, folder = first
        copy = Path(shutil.copytree(folder, tmp_path / "copy"))
        record = json.loads((copy / "ladder.json").read_text())
        record["environment"]["canonical_graph"] = str(tmp_path / "gone.onnx")
        (copy / "ladder.json").write_text(json.dumps(record))
        assert climbed(named, resume=copy)[0].rungs[-1].status == "measured"


@contextlib.contextmanager
def spoiled(session: type, answer: Any) -> Any:
    """Inside timed passes, `answer(call, logits)` stands for a session's answers; calls count from 0 in each pass."""
    timed: dict[str, int | None] = {"call": None}
    run_pass, compute = run.run_pass, session.compute  # type: ignore[attr-defined]

    def passing(*args: Any, **more: Any) -> Any:
        timed["call"] = 0
        try:
            return run_pass(*args, **more)
        finally:
            timed["call"] = None

    def computing(self: Any, feeds: Any) -> Any:
        logits = compute(self, feeds)
        if timed["call"] is None:
            return logits
        timed["call"] += 1
        return answer(timed["call"] - 1, logits)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "run_pass", passing)
        patch.setattr(session, "compute", computing)
        yield


def fails(call, logits):
    if call == 1:
        raise RuntimeError("out of memory\nwith much more to say")
    return logits


def nan(call, logits):
    logits = logits.copy()
    logits[0, 0] = np.nan if call == 2 else logits[0, 0]
    return logits


def both(call, logits):
    return nan(call, fails(call, logits))


def test_a_batch_that_fails_is_counted_and_is_no_work_done(climbed, named):
    with spoiled(onnxruntime.OnnxSession, fails):
        record, _ = climbed(named)
    rung = by_name(record)["onnx"]
    assert rung.status == "measured"
    assert (rung.failed_batches, rung.batches, rung.requests) == (1, 5, ROWS - BATCH)
    assert any("out of memory" in note for note in rung.notes)
    assert rung.label_agreement == 1.0  # of the rows that were answered
    assert all(r.failed_batches == 0 for r in record.rungs[:-1])


@pytest.mark.parametrize("answer", [nan, both])
def test_nan_in_the_answers_fails_the_rung_whatever_its_speed(climbed, named, answer):
    with spoiled(onnxruntime.OnnxSession, answer):
        record, _ = climbed(named)
    rung = by_name(record)["onnx"]
    assert (rung.status, rung.reason) == ("failed", "some logits are NaN or infinite")
    assert record.best in FLOAT_RUNGS[:-1]


def test_a_rung_of_which_every_batch_fails_fails_alone(climbed, named):
    def dies(call, logits):
        raise RuntimeError("the device is gone")

    with spoiled(onnxruntime.OnnxSession, dies):
        record, _ = climbed(named, repeats=2)
    rung = by_name(record)["onnx"]
    assert rung.status == "failed"
    assert "the device is gone" in rung.reason
    assert rung.throughput_seq_s is None
    assert [r.status for r in record.rungs[:-1]] == ["measured"] * 4


def test_a_library_that_refuses_fails_its_rung_alone(climbed, named, monkeypatch):
    def refuse(self, *args):
        raise RuntimeError("\nno kernel for this\nand a page of detail")

    monkeypatch.setattr(onnxruntime.OnnxSession, "compute", refuse)
    record, folder = climbed(named)
    assert (record.rungs[-1].status, record.rungs[-1].reason) == ("failed", "RuntimeError: no kernel for this")
    assert [r.status for r in record.rungs[:-1]] == ["measured"] * 4
    assert load_ladder(folder) == record


def test_logits_that_are_wrong_fail_parity_before_they_are_timed(climbed, named, monkeypatch):
    compute = onnxruntime.OnnxSession.compute
    monkeypatch.setattr(onnxruntime.OnnxSession, "compute", lambda self, feeds: compute(self, feeds)[::-1])
    rung = by_name(climbed(named)[0])["onnx"]
    assert rung.status == "failed"
    assert "parity with eager FP32 is broken" in rung.reason
    assert not rung.parity.passed


def test_a_baseline_that_fails_is_no_yardstick(climbed, named):
    def dies(call, logits):
        raise RuntimeError("the device is gone")

    with spoiled(eager.EagerSession, dies):
        record, folder = climbed(named)
    assert [r.status for r in record.rungs] == ["failed"] * 4 + ["measured"]
    onnx = record.rungs[-1]
    assert onnx.speedup_over_baseline is onnx.label_agreement is None
    assert record.best == "onnx"
    assert not (folder / "answers.npz").exists()
    again, _ = climbed(named, resume=folder, rungs=("prefetch",))
    assert [r.status for r in again.rungs] == ["measured"] * 3 + ["failed", "measured"]


def test_a_missing_back_end_is_skipped_with_the_command_that_brings_it(climbed, named, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    rung = by_name(climbed(named)[0])["onnx"]
    assert (rung.status, rung.reason) == ("skipped", "ONNX Runtime is not installed")
    assert rung.remedy == "pip install 'bertopt[cpu]'"


def test_more_workers_than_cores_are_not_started(climbed, named):
    record, _ = climbed(named, rungs=("prefetch",), workers=99)
    rung = record.rungs[-1]
    assert rung.workers < 99
    assert any("99 workers were asked for" in note for note in rung.notes)


def test_the_fingerprint_of_a_record_is_the_checkpoints(climbed, named):
    assert climbed(named, rungs=("baseline",))[0].model.fingerprint == open_checkpoint(str(named)).fingerprint


class TestComparisons:
    def rungs(self, ours: list[float], theirs: list[float]) -> list[RungRecord]:
        parent = made_up_rung("baseline", 1.0, None, repeats_seq_s=theirs, throughput_seq_s=np.median(theirs))
        child = made_up_rung("fast-tokenizer", 1.0, "baseline", repeats_seq_s=ours, throughput_seq_s=np.median(ours))
        return assemble.with_comparisons([dataclasses.replace(r, parent_verdict=None) for r in (parent, child)])

    @pytest.mark.parametrize(
        ("ours", "theirs", "verdict"),
        [
            ([12, 13, 14], [10, 10.5, 11], "faster"),
            ([9, 9.5, 9.9], [10, 10.5, 11], "slower"),
            ([10.9, 13, 14], [10, 10.5, 11], "no difference"),
            ([14], [10], None),
            ([14, 15], [10], None),
        ],
    )
    def test_a_gain_inside_the_spread_is_no_gain(self, ours, theirs, verdict):
        child = self.rungs(ours, theirs)[1]
        assert child.parent_verdict == verdict
        assert child.speedup_over_parent == pytest.approx(np.median(ours) / np.median(theirs))

    def test_the_best_is_the_fastest_whose_answers_are_right(self):
        rungs = [
            made_up_rung("baseline", 10, None, gate=None),
            made_up_rung("prefetch", 20, "fast-tokenizer", gate=None),
            made_up_rung("onnx", 30, "bucketed", gate=None, status="failed"),
            made_up_rung("int8", 40, "bucketed", gate="not gated"),
            made_up_rung("prefetch without feed", 50, "prefetch", gate=None),
        ]
        assert assemble.best(rungs).name == "prefetch"
        passed = dataclasses.replace(rungs[3], gate="passed")
        assert assemble.best([*rungs, passed]).name == "int8"
        for gate in ("failed", "inconclusive", "not gated", None):
            assert assemble.best([*rungs, dataclasses.replace(rungs[3], gate=gate)]).name == "prefetch"
        half = made_up_rung("fp16", 45, "bucketed", gate="failed", precision="bf16")
        assert assemble.best([*rungs, half]).name == "prefetch"
        for gate in ("inconclusive", "not gated", "passed"):  # parity is the evidence
            assert assemble.best([*rungs, dataclasses.replace(half, gate=gate)]).name == "fp16"
        assert assemble.best(rungs[2:]) is None
