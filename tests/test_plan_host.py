"""The seeds' worked numbers, and what a host planner must not get wrong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertopt import plan_host
from bertopt.cli import run
from bertopt.errors import DataError, UsageError
from tests.made_up import made_up_rung


def test_18_over_6_ms_is_a_quarter_busy_serially_and_wants_three_workers(capsys):
    assert run(["plan-host", "--host-ms", "18", "--device-ms", "6"]) == 0
    shown = capsys.readouterr().out
    lines = {line.split()[0]: line for line in reversed(shown.splitlines()) if line.strip()}
    assert "25%" in lines["serial"]
    assert "100%" in lines["3"]
    assert "enough" in lines["3"]
    assert "67%" in lines["2"]
    assert "3 workers" in shown
    assert "Prefetch 4 batches" in shown


def test_fewer_cores_than_workers_wanted_are_not_called_enough(capsys):
    assert run(["plan-host", "--host-ms", "18", "--device-ms", "6", "--cores", "2"]) == 0
    shown = capsys.readouterr().out
    assert "3 workers would keep the device busy; with 2 it waits 33% of the time" in shown
    assert "Prefetch 3 batches" in shown


def test_a_mean_of_27_in_128_is_79_percent_padding(tmp_path, capsys):
    file = tmp_path / "lengths.csv"
    file.write_text("length\n" + "\n".join(["27"] * 640))
    assert run(["plan-host", "--lengths", str(file), "--bs", "32", "--seq", "128"]) == 0
    shown = capsys.readouterr().out
    assert "78.9%" in shown
    assert "mean 27.0" in shown
    bert_base = 8 * 128 * 768**2 + 4 * 128 * 768 * 3072 + 4 * 128**2 * 768
    assert f"{12 * bert_base / 1e9:.2f}" in shown


def test_times_come_from_a_rung_too():
    host, device = plan_host.times_of(made_up_rung("r", 100.0, None, tokenize_ms=3.0, collate_ms=0.5, postprocess_ms=0.5))
    assert (host, device) == (4.0, 310.0)
    with pytest.raises(UsageError, match="--host-ms"):
        plan_host.times_of(made_up_rung("r", 100.0, None, device_ms=None))


@pytest.mark.parametrize("times", [(0, 6), (18, 0), (-1, 6), (float("nan"), 6), (float("inf"), 6)])
def test_a_time_that_is_none_is_refused(times):
    with pytest.raises(UsageError, match="-ms"):
        plan_host.plan(*times)


@pytest.mark.parametrize(
    ("text", "says"), [("a\nb\n", "row 2"), ("12\n0\n", "row 2"), ("", "no lengths"), ("length\n", "no lengths")]
)
def test_a_file_of_lengths_that_is_none_names_the_row(tmp_path, text, says):
    file = tmp_path / "lengths.txt"
    file.write_text(text)
    with pytest.raises(DataError, match=says):
        plan_host.read_lengths(file)


@given(st.floats(0.01, 1e3), st.floats(0.01, 1e3))
def test_enough_workers_fill_the_device_and_one_fewer_does_not(host_ms, device_ms):
    found = plan_host.plan(host_ms, device_ms)
    by_count = {o.workers: o for o in found.options}
    assert by_count[found.workers].utilization == pytest.approx(1.0)
    assert by_count[found.workers + 1].batch_ms == pytest.approx(by_count[found.workers].batch_ms), "more do not help"
    if found.workers > 1:
        assert by_count[found.workers - 1].utilization < 1.0
    gains = [o.gain for o in found.options]
    assert gains == sorted(gains) or np.allclose(gains, sorted(gains))
