"""The timed loop on a device that sleeps: order, failures, and numbers that are what they seem."""

import time

import numpy as np
import pytest

from bertopt import feed
from bertopt.batching import Bucketed, Dynamic, Fixed, TokenBudget, batches
from bertopt.measure import summary
from bertopt.measure.gpu import GpuProbe
from bertopt.measure.loop import replay, run_pass
from bertopt.measure.process import ProcessProbe
from bertopt.run import warm_up
from tests.fakes import FakeClock, FakeSession, WordTokenizer, requests, right_answers


@pytest.mark.parametrize("policy", [Fixed(8, 16), Dynamic(8), Bucketed(8, (4, 8, 16), 32), TokenBudget((64, 128), 16, 64)])
@pytest.mark.parametrize("workers", [None, 1, 3])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_answers_come_back_in_the_order_the_requests_came(policy, workers, in_flight):
    asked = requests(101)
    tokenizer = WordTokenizer()
    chunks = feed.Workers(tokenizer, workers).ahead(asked, rows=7) if workers else feed.serial(asked, tokenizer, 7)
    done = run_pass(chunks, policy, FakeSession(0.2), len(asked), in_flight)
    assert np.array_equal(done.answers.stacked(), right_answers(asked))
    assert done.rows == 101


def test_throughput_times_time_is_the_rows_and_a_device_that_returns_at_once_is_still_waited_for():
    asked = requests(64)
    done = run_pass(feed.serial(asked, WordTokenizer(), 8), Fixed(8, 16), FakeSession(10), 64, 1)
    assert done.throughput_seq_s * done.seconds == pytest.approx(64)
    assert done.seconds >= 8 * 0.010
    assert all(b.device.device_ms == 10 for b in done.batches)
    assert all(b.result_s - b.launched_s >= 0.009 for b in done.batches)


def test_failed_batches_are_counted_and_are_no_work_done():
    asked = requests(40)
    done = run_pass(feed.serial(asked, WordTokenizer(), 8), Fixed(8, 16), FakeSession(1, fails=(2,)), 40, 2)
    assert done.rows == 32
    assert done.failures == ["RuntimeError: out of memory"]
    answered = np.isfinite(done.answers.stacked()).all(axis=1)
    assert answered.sum() == 32
    assert not answered[8:16].any()


def test_every_shape_is_warmed_up_once_outside_the_clock():
    made = list(batches([WordTokenizer().encode(requests(64).texts)], Dynamic(8)))
    session = FakeSession(1)
    first_ms, seconds = warm_up(session, made)
    assert session.launched == len({b.layout for b in made})
    assert first_ms / 1e3 <= seconds


def test_replay_leaves_staging_outside_the_clock():
    class SlowStage(FakeSession):
        def stage(self, batch):
            time.sleep(0.02)
            return batch

    made = list(batches([WordTokenizer().encode(requests(32).texts)], Fixed(8, 16)))
    assert replay(SlowStage(5), made, 2) < 4 * 0.02


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_predicted_utilization_is_what_a_slowed_host_gives(share):
    """The host is slowed so that a blocking loop has the device busy `share` of the time."""
    asked, device_ms, clock = requests(80), 20.0, FakeClock()
    host_ms = device_ms * (1 - share) / share
    chunks = feed.serial(asked, WordTokenizer(host_ms, clock=clock), 8, clock=clock)
    done = run_pass(chunks, Fixed(8, 16), FakeSession(device_ms, clock=clock), 80, 1, clock=clock)
    repeat = summary.Repeat(done, ProcessProbe(), GpuProbe("cpu"), 1.0, 1.0)
    predicted = summary.predicted_utilization(summary.phases([repeat]), None)
    assert predicted == pytest.approx(share, abs=1e-6)
    assert summary.span_utilization(done) == pytest.approx(predicted, abs=1e-6)


def test_more_workers_keep_the_device_busier():
    asked, device_ms = requests(160), 8.0
    slow = WordTokenizer(24.0)
    shares = []
    for workers in (1, 3):
        chunks = feed.Workers(slow, workers).ahead(asked, rows=8)
        done = run_pass(chunks, Fixed(8, 16), FakeSession(device_ms), 160, 2)
        shares.append(summary.span_utilization(done))
    assert shares[1] > 1.3 * shares[0]


def test_the_timeline_lies_within_its_batch():
    asked = requests(80)
    done = run_pass(feed.Workers(WordTokenizer(1), 1).ahead(asked, rows=8), Fixed(8, 16), FakeSession(2), 80, 2)
    spans = summary.timeline(done)
    assert {s.lane for s in spans} >= {"host", "device"}
    assert all(0 <= s.start_ms < s.end_ms for s in spans)
