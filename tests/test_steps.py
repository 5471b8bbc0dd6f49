"""A training loop's record: phases that add up, warm-up left out, real tokens, and a checkpoint that the ladder opens."""

import json
import math
import sys
import time
from pathlib import Path

import pytest
import torch

import bertopt
from bertopt.model import open_checkpoint
from bertopt.records import from_json
from bertopt.records_diagnosis import Diagnosis
from tests.models import WORDS

EXAMPLE = Path(__file__).parents[1] / "examples"


def loop(steps, count, *, wait=0.0, forward=0.002, rows=4, length=8, real=2, ends=0.0):
    mask = torch.zeros(rows, length, dtype=torch.long)
    mask[:, :real] = 1

    def loader():
        for _ in range(count):
            time.sleep(wait)
            yield mask
        time.sleep(ends)

    for batch in steps.over(loader()):
        with steps.phase("forward"):
            time.sleep(forward)
        with steps.phase("optimizer"):
            time.sleep(0.001)
        steps.done(batch)


def record(tmp_path, count=14, warmup=4, **how):
    with bertopt.record_steps(warmup=warmup, device="cpu", out=tmp_path / "run", quiet=True) as steps:
        loop(steps, count, **how)
    return steps.record


def test_phases_add_up_and_warm_up_is_left_out(tmp_path):
    seen = record(tmp_path).observation
    assert seen.batches == 10
    assert seen.explained == pytest.approx(1.0, abs=0.05)
    assert seen.loop_ms["forward"] >= 2.0
    assert seen.loop_ms["optimizer"] >= 1.0
    assert seen.device_ms == pytest.approx(seen.loop_ms["forward"] + seen.loop_ms["optimizer"])
    assert len(seen.repeats_ms) == 5


def test_a_loader_that_takes_time_to_end_slows_no_step(tmp_path):
    """Its workers are joined after the last step: the mean of the steps lies among those of its blocks all the same."""
    began = time.perf_counter()
    found = record(tmp_path, ends=0.3)
    clock_ms = 1e3 * (time.perf_counter() - began - 0.3)
    seen = found.observation
    assert min(seen.repeats_ms) <= seen.batch_ms <= max(seen.repeats_ms)
    assert 14 * 3.0 <= 14 * seen.batch_ms <= clock_ms + 4 * seen.batch_ms
    assert any("after the last step belong to none" in note for note in found.notes)
    assert found.seconds == pytest.approx(10 * seen.batch_ms / 1e3)


def test_rows_real_tokens_and_padding(tmp_path):
    seen = record(tmp_path).observation
    assert (seen.rows, seen.tokens) == (4, 8)
    assert seen.padding_fraction == pytest.approx(0.75)
    assert seen.throughput_tokens_s == pytest.approx(2 * seen.throughput_seq_s)


def test_a_loop_that_waits_for_its_input_is_told_so(tmp_path):
    found = record(tmp_path, wait=0.02)
    assert found.first.verdict == "TOKENIZE-BOUND"
    assert found.first.next.startswith("bertopt plan-host --host-ms 2")
    assert found.observation.loop_ms["input"] >= 20


def test_the_record_and_its_report_are_there_and_read_back(tmp_path):
    found = record(tmp_path)
    stored = from_json(Diagnosis, (tmp_path / "run" / "diagnosis.json").read_text())
    assert stored == found
    assert "<h1>" in (tmp_path / "run" / "report.html").read_text()
    cost_ms = stored.observation.probe_cost_fraction * stored.observation.batch_ms
    assert cost_ms < 0.5, "2 % of a step of 25 ms, on a machine that others use"


def test_a_loop_that_raises_leaves_no_record(tmp_path):
    steps = bertopt.record_steps(device="cpu", out=tmp_path / "run")
    with pytest.raises(ZeroDivisionError), steps:
        loop(steps, 3, forward=1 / 0)
    assert not (tmp_path / "run").exists()


def test_a_loop_that_ends_in_its_warm_up_says_that_nothing_was_measured(tmp_path):
    found = record(tmp_path, count=2)
    assert found.first.verdict == "INCONCLUSIVE"
    assert found.observation.batch_ms is None


def test_what_the_loader_does_is_tokenize_or_collate():
    with pytest.raises(ValueError, match="collate"):
        bertopt.record_steps(input_phase="dream")


class Events:
    """CUDA events and a stream that is late: an event is reached when something waits for the device."""

    def __init__(self):
        self.now, self.waits, self.enqueued = 0.0, 0, []

    def Event(self, enable_timing):
        return Event(self)

    def synchronize(self):
        self.waits += 1
        for event in self.enqueued:
            event.reached = True

    def is_available(self):
        return True

    def reset_peak_memory_stats(self): ...

    def max_memory_allocated(self):
        return 3 * 2**20


class Event:
    def __init__(self, card):
        self.card, self.at, self.reached = card, 0.0, False

    def record(self):
        self.card.now += 1.0  # every phase takes the device a millisecond
        self.at, self.reached = self.card.now, False
        self.card.enqueued.append(self)

    def query(self):
        return self.reached

    def elapsed_time(self, end):
        assert end.reached, "a time was read before the device had passed it"
        return end.at - self.at


def test_no_event_is_waited_for_in_the_loop(tmp_path, monkeypatch):
    card = Events()
    monkeypatch.setattr(torch, "cuda", card)
    waits = []
    with bertopt.record_steps(warmup=1, device="cuda", out=tmp_path / "run", quiet=True, profile=False) as steps:
        before = card.waits
        loop(steps, 9)
        waits.append(card.waits - before)
    assert waits == [1], "once, where the warm-up ends"
    seen = steps.record.observation
    assert seen.batches == 8
    assert seen.device_ms == pytest.approx(2.0)
    assert steps.record.peak_device_mib == 3


def test_steps_that_the_device_has_passed_are_folded_so_that_memory_stays(tmp_path, monkeypatch):
    card = Events()
    monkeypatch.setattr(torch, "cuda", card)
    with bertopt.record_steps(warmup=0, device="cuda", out=tmp_path / "run", quiet=True, profile=False) as steps:
        for _ in range(20):
            loop(steps, 5, forward=0.0)
            for event in card.enqueued:
                event.reached = True
        assert len(steps._waiting) <= 5
    assert steps.record.observation.batches == 100


def test_the_example_fine_tunes_and_its_checkpoint_is_one_that_the_ladder_opens(tmp_path, tiny, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    sys.modules.pop("finetune_agnews", None)
    import finetune_agnews

    rows = [{"text": f"{WORDS[i % 20]} good film", "label": ["neg", "pos"][i % 2]} for i in range(40)]
    data = tmp_path / "train.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    folders = ["--out", str(tmp_path / "run"), "--save", str(tmp_path / "model")]
    sizes = ["--bs", "4", "--seq", "16", "--steps", "10", "--warmup", "2", "--device", "cpu"]
    steps = finetune_agnews.main(["--model", str(tiny), "--data", str(data), *sizes, *folders])
    shown = capsys.readouterr().out
    assert "Verdict" in shown
    loss = float(shown.split("mean loss ")[1].split()[0])
    assert math.isfinite(loss)
    assert steps.record.observation.batches == 10
    checkpoint = open_checkpoint(str(tmp_path / "model"))
    assert checkpoint.weights == "trained"
    assert checkpoint.labels == ["neg", "pos"]
    fixed = ["--random-weights", "--pad", "max"]
    again = finetune_agnews.main(["--model", str(tiny), "--data", str(data), *sizes, *fixed, "--out", str(tmp_path / "second")])
    assert again.record.sequence_length == 16
    assert again.record.observation.flops is not None
