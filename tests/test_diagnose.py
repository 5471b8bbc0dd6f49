"""The ladder's verdict: which finding speaks on which record, in a ladder's words."""

import dataclasses
import json
import sys
import time

import pytest

from bertopt import diagnose
from bertopt.assemble import card_reading
from bertopt.measure import gpu
from bertopt.records import LadderRecord, RungRecord, from_json, to_json
from bertopt.records_card import CardReading
from tests.made_up import made_up_ladder, made_up_rung
from tests.simulated_nvml import SimulatedNvml

NOTHING = RungRecord("bare", "", None, "measured", throughput_seq_s=100.0)


def rung(**more):
    """A bucketed rung near the device's ceiling, with little padding and a tokenizer that is fast enough."""
    fields = {
        "throughput_seq_s": 95.0,
        "throughput_low_seq_s": 94.0,
        "throughput_high_seq_s": 96.0,
        "repeats_seq_s": [94.0, 95.0, 96.0],
        "device_ceiling_seq_s": 100.0,
        "tokenizer_ceiling_seq_s": 1000.0,
        "ceiling_share": 0.95,
        "padding_fraction": 0.03,
        "attention_waste_fraction": 0.05,
        "utilization_span": 0.96,
        "utilization_kernel_busy": None,
        "tokenize_ms": 64.0,
        "collate_ms": 0.4,
        "launch_ms": 0.1,
        "device_ms": 322.0,
        "postprocess_ms": 0.2,
        "workers": 2,
        "window": 1024,
    }
    return made_up_rung("bucketed", 95.0, "prefetch", **{**fields, **more})


def verdict(best, rungs=(), device="cpu", policy=None):
    return diagnose.verdict(best, [best, *rungs], device, policy)


def test_there_is_no_verdict_without_evidence():
    assert diagnose.verdict(None, [], "cpu") is None
    assert verdict(RungRecord("failed", "", None, "failed")) is None
    assert verdict(NOTHING) is None


def test_near_the_devices_ceiling_arithmetic_binds():
    found = verdict(rung())
    assert found.bound_by == "the processor's arithmetic"
    assert verdict(rung(), device="cuda").bound_by == "the GPU's arithmetic"


def test_near_the_tokenizers_ceiling_the_tokenizer_binds():
    found = verdict(rung(tokenizer_ceiling_seq_s=100.0, tokenize_ms=640.0, device_ceiling_seq_s=1000.0, device_ms=32.0))
    assert found.bound_by == "the tokenizer"
    assert "--workers 3" in found.next


def test_a_serial_rung_bound_by_the_tokenizer_is_sent_to_workers():
    serial = {"workers": None, "in_flight": 1, "tokenize_ms": 305.0, "device_ms": 31.0}
    found = verdict(rung(tokenizer_ceiling_seq_s=105.0, device_ceiling_seq_s=1000.0, **serial))
    assert found.bound_by == "the tokenizer"
    assert "serially" in found.why
    assert "prefetch" in found.next


def test_padding_is_named_before_arithmetic_although_the_device_is_busy():
    """BEN-02: 27 of 128 tokens, with the device at its ceiling, is padding waste and no reason for a bigger card."""
    stages = {"tokenizer": "fast", "feed": "workers", "batching": "fixed", "backend": "eager", "precision": "fp32"}
    found = verdict(rung(padding_fraction=1 - 27 / 128, attention_waste_fraction=0.9, stages=stages))
    assert found.bound_by == "padding"
    assert "79%" in found.why
    assert "--rungs bucketed" in found.next


def test_padding_that_buckets_leave_wants_a_wider_window_and_not_buckets_again():
    found = verdict(rung(padding_fraction=0.3, window=64))
    assert found.bound_by == "padding"
    assert "bucketed)" not in found.next
    assert "--window beyond 64" in found.next
    few = verdict(rung(padding_fraction=0.3, window=1024, requests=400, batches=13))
    assert "400 do not fill a window of 1,024" in few.next


def test_launching_is_named_where_kernels_run_in_little_of_the_span():
    found = verdict(rung(utilization_kernel_busy=0.2), device="cuda")
    assert found.bound_by == "launching kernels"
    assert "20%" in found.why
    assert verdict(rung(utilization_kernel_busy=0.9), device="cuda").bound_by == "the GPU's arithmetic"


def test_a_device_that_is_busy_and_slower_than_alone_shares_what_it_computes_with():
    found = verdict(rung(device_ceiling_seq_s=140.0, utilization_span=0.95))
    assert found.bound_by == "other work on the processor's cores"
    assert "95%" in found.why


THROTTLED = CardReading(
    2.0, 20, power_w=699.0, power_limit_w=700.0, sm_clock_mhz=1400.0, max_sm_clock_mhz=1980.0, throttled={"power cap": 0.8}
)


@pytest.mark.parametrize(
    ("card", "bound_by"),
    [
        (THROTTLED, "the card's power or temperature"),
        (dataclasses.replace(THROTTLED, throttled={}), "the GPU's arithmetic"),
        (dataclasses.replace(THROTTLED, throttled={"power cap": 0.1}), "the GPU's arithmetic"),
        (dataclasses.replace(THROTTLED, sm_clock_mhz=1960.0), "the GPU's arithmetic"),
        (dataclasses.replace(THROTTLED, sm_clock_mhz=None), "the GPU's arithmetic"),
        (CardReading(2.0, reasons=["power not read: Not Supported"]), "the GPU's arithmetic"),
        (None, "the GPU's arithmetic"),
    ],
)
def test_a_card_whose_clocks_were_held_back_is_limited_by_its_power(card, bound_by):
    found = verdict(rung(card=card), device="cuda")
    assert found.bound_by == bound_by
    if card is THROTTLED:
        assert "power cap held the clocks back in 80% of 20 samples: 1400 of 1980 MHz, at 699 W of 700" in found.why


def test_a_ladder_that_was_written_before_cards_were_kept_still_opens():
    ladder = made_up_ladder(rungs=[rung(card=THROTTLED)])
    assert from_json(LadderRecord, to_json(ladder)) == ladder
    old = json.loads(to_json(ladder))
    del old["rungs"][0]["card"]
    assert from_json(LadderRecord, json.dumps(old)).rungs[0].card is None


def test_the_record_of_a_rung_keeps_what_its_last_repeat_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", SimulatedNvml(throttle_bits=0x4))
    monkeypatch.setattr(gpu, "POLL_SECONDS", 0.001)
    with gpu.GpuProbe("cuda") as probe:
        time.sleep(0.05)
    kept = card_reading(probe)
    assert (kept.sm_clock_mhz, kept.max_sm_clock_mhz, kept.throttled) == (1500, 1980, {"power cap": 1.0})
    with gpu.GpuProbe("cpu") as nothing:
        pass
    assert card_reading(nothing) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with gpu.GpuProbe("cuda") as blind:
        pass
    assert "nvidia-ml-py" in card_reading(blind).reasons[0]


def test_what_was_not_measured_concludes_nothing():
    for field in ("tokenizer_ceiling_seq_s", "device_ceiling_seq_s", "device_ms", "tokenize_ms", "collate_ms", "batches"):
        verdict(rung(**{field: None}))  # no verdict rests on it, and none trips over it
    assert verdict(rung(device_ceiling_seq_s=None, device_ms=None, tokenize_ms=None)) is None


def test_a_run_of_few_batches_can_tell_nothing_and_says_so():
    found = verdict(rung(requests=64, batches=2, repeats_seq_s=[95.0]))
    assert found.bound_by == "nothing that this run can tell"
    assert "--limit" in found.next


def test_what_to_try_next_is_what_was_skipped_for_want_of_something():
    skipped = RungRecord("int8", "", "bucketed", "skipped", reason="no calibration", remedy="bertopt calibrate --model demo")
    assert "bertopt calibrate --model demo" in verdict(rung(), [skipped]).next
    helpless = dataclasses.replace(skipped, remedy=None)
    assert "INT8" not in verdict(rung(), [helpless]).next


def test_the_thresholds_are_not_in_the_rules():
    assert verdict(rung(), policy=diagnose.Policy(reached=0.99)).bound_by == "nothing that this run can tell"
    assert verdict(rung(), policy=diagnose.Policy(padding=0.01, worth=0.01)).bound_by == "padding"
