"""`bertopt ladder` from a checkpoint and a file to a record, on models of milliseconds."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from bertopt.errors import DataError
from bertopt.model import open_checkpoint
from bertopt.records import load_ladder
from bertopt.tokenization import load_tokenizer
from tests import models
from tests.climbing import BATCH, FLOAT_RUNGS, LENGTH, ROWS, by_name, texts, write

FAMILIES = ["bert", "distilbert", "roberta", "albert", "electra", "xlm-roberta"]


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
def test_heads_without_one_label_claim_no_accuracy(climbed, checkpoint_folder, tmp_path, task, changes):
    scored = write(tmp_path / "scored.jsonl", [{"text": text, "label": str(i / 10)} for i, text in enumerate(texts())])
    record, _ = climbed(checkpoint_folder("bert", **changes), data=scored)
    assert record.model.task == task
    for rung in record.rungs:
        assert rung.status == "measured"
        assert rung.accuracy is rung.label_agreement is None
        assert (rung.parity.label_agreement is None) == (task == "regression")


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


def test_the_fingerprint_of_a_record_is_the_checkpoints(climbed, named):
    assert climbed(named, rungs=("baseline",))[0].model.fingerprint == open_checkpoint(str(named)).fingerprint
