"""The seeds' worked numbers come out as written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertopt.measure import arithmetic
from bertopt.measure.statistics import compare, percentiles, union_seconds, wilson


def test_a_blocking_loop_of_18_over_6_ms_is_busy_a_quarter_of_the_time_and_wants_three_workers():
    assert arithmetic.serial_utilization(18, 6) == pytest.approx(0.25)
    assert arithmetic.workers_needed(18, 6) == 3
    assert [arithmetic.overlapped_utilization(18, 6, w) for w in (1, 2, 3, 4)] == pytest.approx([1 / 3, 2 / 3, 1, 1])


def test_a_ratio_that_is_whole_but_for_rounding_costs_no_worker():
    assert arithmetic.workers_needed(0.3, 0.1) == 3


def test_padding_of_a_mean_of_27_in_128():
    assert arithmetic.padding_fraction(27, 128) == pytest.approx(0.789, abs=1e-3)


def test_flops_of_a_bert_base_layer():
    # 32 x 128: projections 19.3, feed-forward 38.7, attention 1.6 GFLOP
    found = arithmetic.encoder_flops(32 * 128, 32 * 128**2, 768, 3072, layers=1)
    assert found == 8 * 4096 * 768**2 + 4 * 4096 * 768 * 3072 + 4 * 32 * 128**2 * 768 == pytest.approx(59.6e9, rel=0.01)


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.integers(1, 16))
def test_utilizations_are_shares_and_the_needed_workers_suffice(host, device, workers):
    assert 0 <= arithmetic.serial_utilization(host, device) <= 1
    assert 0 <= arithmetic.overlapped_utilization(host, device, workers) <= 1
    needed = arithmetic.workers_needed(host, device)
    assert arithmetic.overlapped_utilization(host, device, needed) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("rows", "half_width"), [(20, 13.2), (872, 2.0), (2000, 1.3)])
def test_interval_of_an_accuracy_of_90_percent(rows, half_width):
    found = wilson(round(0.9 * rows), rows)
    assert found is not None
    assert (found.high - found.low) / 2 * 100 == pytest.approx(half_width, abs=0.6)


def test_interval_of_nothing_is_nothing():
    assert wilson(0, 0) is None
    assert percentiles([]) is None


def test_repeats_that_overlap_are_no_difference():
    assert compare([10, 11, 12], [12, 13, 14]) == "no difference"
    assert compare([15, 16], [12, 14]) == "faster"
    assert compare([10, 11], [12, 14]) == "slower"


def test_union_of_overlapping_spans():
    assert union_seconds([0, 1, 5], [2, 3, 6]) == pytest.approx(4.0)
    assert union_seconds([], []) == 0.0
    assert union_seconds([0, 1], [10, 2]) == pytest.approx(10.0)  # one within the other
