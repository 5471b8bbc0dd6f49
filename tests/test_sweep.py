"""A sweep's knee, how it ends where memory does, and what its report shows."""

import dataclasses
import json
import re
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertopt import sweep
from bertopt.cli import run
from bertopt.cli.sweep import numbers
from bertopt.errors import UsageError
from bertopt.records import from_json, to_json
from bertopt.records_sweep import Point, Series, Sweep
from bertopt.report import sweep as report
from tests.made_up import made_up_ladder
from tests.models import WORDS

SATURATING = {1: 100.0, 2: 195.0, 4: 370.0, 8: 620.0, 16: 800.0, 32: 860.0, 64: 880.0}


def test_the_knee_is_where_no_larger_batch_brings_a_tenth_more():
    assert sweep.knee(SATURATING, 0.1) == 16
    assert sweep.knee(SATURATING, 0.0) == 64
    assert sweep.knee({1: 50.0, 2: 40.0}, 0.1) == 1, "on a device that one row fills, a larger batch may be slower"
    assert sweep.knee({}, 0.1) is None


@given(st.dictionaries(st.integers(1, 512), st.floats(1, 1e6), min_size=1), st.floats(0, 1))
def test_from_the_knee_on_nothing_is_faster_by_more_than_the_gain(speeds, gain):
    found = sweep.knee(speeds, gain)
    assert all(v <= (1 + gain) * speeds[found] for size, v in speeds.items() if size > found)
    for smaller in (s for s in speeds if s < found):
        assert any(v > (1 + gain) * speeds[smaller] for size, v in speeds.items() if size > smaller)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("1,2,4,...,256", (1, 2, 4, 8, 16, 32, 64, 128, 256)), ("3,...,20", (3, 6, 12, 20)), ("8", (8,)), ("4,4,2", (4, 2))],
)
def test_batch_sizes_as_one_writes_them(text, sizes):
    assert numbers(text, "--bs") == sizes


@pytest.mark.parametrize("text", ["", "0", "1,x", "...,8", "1,...", "1,...,y", "-2", "1.5"])
def test_a_list_that_is_none_names_the_option(text):
    with pytest.raises(UsageError, match="--bs"):
        numbers(text, "--bs")


@pytest.mark.parametrize(
    "words",
    [
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory",
        "MemoryError",
        "RuntimeException: std::bad_alloc",
    ],
)
def test_what_libraries_say_where_memory_ends(words):
    assert sweep.out_of_memory(words)
    assert not sweep.out_of_memory("ValueError: wrong shape")


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(json.dumps({"text": " ".join(WORDS[1 + i % 5 : 9 + i % 9])}) for i in range(24)))
    return file


def arguments(tiny, data, tmp_path, *more):
    return ["sweep", "--model", str(tiny), "--data", str(data), "--seq", "16", "--repeats", "1", "--device", "cpu",
            "--out", str(tmp_path / "run"), *more]  # fmt: skip


def test_a_real_sweep_on_the_cpu(tiny, data, tmp_path, capsys):
    assert run(arguments(tiny, data, tmp_path, "--bs", "1,4,...,16", "--rungs", "fast-tokenizer")) == 0
    shown = capsys.readouterr().out
    record = from_json(Sweep, (tmp_path / "run" / "sweep.json").read_text())
    assert [p.batch_size for p in record.points] == [1, 4, 8, 16]
    assert all(p.throughput_seq_s > 0 and p.peak_process_mib > 0 for p in record.points)
    assert record.data.requests == 32, "24 requests do not fill two batches of 16, so they are repeated"
    assert "repeated to 32" in shown
    assert record.series[0].largest == 16
    assert record.series[0].knee in (1, 4, 8, 16)
    assert "no larger one was tried" in shown
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()


def test_what_is_to_be_known_of_the_texts_is_in_the_record(tiny, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("good\tfilm\n" * 8)
    record = swept(tiny, file, tmp_path, "--bs", "4")
    assert "every line of texts.txt holds a tab" in record.data.notes[0]


def room_for(rows, monkeypatch, words="DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."):
    """A back end whose memory ends beyond `rows` rows of a batch."""
    from bertopt.backends.eager import EagerSession

    real = EagerSession.compute

    def compute(self, feeds):
        if len(feeds["input_ids"]) > rows:
            raise RuntimeError(words)
        return real(self, feeds)

    monkeypatch.setattr(EagerSession, "compute", compute)


def sizes_tried(progress):
    return [int(size) for size in re.findall(r"batch (\d+)$", progress, re.MULTILINE)]


def swept(tiny, data, tmp_path, *more):
    assert run(arguments(tiny, data, tmp_path, "--rungs", "fast-tokenizer", "--limit", "32", *more)) == 0
    return from_json(Sweep, (tmp_path / "run" / "sweep.json").read_text())


@pytest.mark.parametrize(
    ("rows", "tried", "largest", "stopped_at"),
    [
        (11, [12, 10, 11], 11, 12),
        (8, [12, 10, 9], 8, 9),
        (15, [12, 14, 15], 15, 16),
    ],
)
def test_where_memory_ends_the_largest_batch_is_searched(
    tiny, data, tmp_path, capsys, monkeypatch, rows, tried, largest, stopped_at
):
    room_for(rows, monkeypatch)
    record = swept(tiny, data, tmp_path, "--bs", "2,4,8,16")
    shown = capsys.readouterr()
    assert sizes_tried(shown.err) == [2, 4, 8, 16, *tried]
    series = record.series[0]
    assert (series.largest, series.stopped_at) == (largest, stopped_at)
    assert "can't allocate memory" in series.stopped
    assert [p.batch_size for p in record.of(series)] == sorted({2, 4, 8, *(t for t in tried if t <= rows)})
    assert f"largest batch that fits is {largest}: {stopped_at} does not" in shown.out


def test_the_search_takes_no_more_steps_than_it_is_allowed(tiny, data, tmp_path, monkeypatch):
    room_for(11, monkeypatch)
    series = swept(tiny, data, tmp_path, "--bs", "8,16", "--bisect", "1").series[0]
    assert (series.largest, series.stopped_at) == (8, 12)
    none = swept(tiny, data, tmp_path, "--bs", "8,16", "--bisect", "0").series[0]
    assert (none.largest, none.stopped_at) == (8, 16)


def test_where_not_even_the_smallest_fits_smaller_ones_are_searched(tiny, data, tmp_path, monkeypatch):
    room_for(3, monkeypatch)
    record = swept(tiny, data, tmp_path, "--bs", "8,16")
    assert (record.series[0].largest, record.series[0].stopped_at) == (3, 4)
    room_for(0, monkeypatch)
    nothing = swept(tiny, data, tmp_path, "--bs", "8,16")
    assert (nothing.series[0].largest, nothing.series[0].stopped_at, nothing.points) == (None, 1, [])


def test_what_fails_for_another_reason_is_not_searched(tiny, data, tmp_path, capsys, monkeypatch):
    room_for(8, monkeypatch, "a kernel that knows no more than 8 rows")
    series = swept(tiny, data, tmp_path, "--bs", "8,16").series[0]
    assert sizes_tried(capsys.readouterr().err) == [8, 16]
    assert (series.stopped_at, series.stopped) == (16, "failed: RuntimeError: a kernel that knows no more than 8 rows")


@pytest.mark.parametrize(("option", "value"), [("--bisect", "-1"), ("--knee", "-0.1"), ("--knee", "nan")])
def test_an_option_out_of_range_is_one_sentence(tiny, data, tmp_path, capsys, option, value):
    assert run(arguments(tiny, data, tmp_path, option, value)) == 2
    assert option in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_memory_that_would_end_the_process_is_foreseen(monkeypatch):
    monkeypatch.setattr(sweep, "memory_left_mib", lambda: 1000.0)
    monkeypatch.setattr(sweep, "resident_mib", lambda: 500.0)
    walk = sweep.Walk(sweep.ladder.RUNGS[0], 128, [made_up_point(64, 100.0, peak_process_mib=1300.0)])
    assert "foreseen" in sweep._no_room(walk, 128, 500.0, "cpu")
    assert sweep._no_room(walk, 128, 1200.0, "cpu") is None
    assert sweep._no_room(walk, 128, 500.0, "cuda") is None, "a card says so itself"


def test_an_unknown_rung_is_refused_before_any_work(tiny, data, tmp_path, capsys):
    assert run(arguments(tiny, data, tmp_path, "--rungs", "warp")) == 2
    assert "warp" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def made_up_point(size, speed, rung="prefetch", **more):
    return Point(rung, 128, size, speed, [speed * 0.99, speed, speed * 1.01], batch_ms_p50=1e3 * size / speed, **more)


def made_up_sweep(**more):
    ladder = made_up_ladder()
    points = [made_up_point(size, speed, peak_process_mib=900.0 + size) for size, speed in SATURATING.items()]
    series = [Series("prefetch", 128, 16, 64, 64, 128, "out of memory: tried to allocate 2 GiB")]
    fields = {
        "created": ladder.created,
        "command": "bertopt sweep --bs 1,2,4,...,256",
        "bertopt_version": "0.1.0",
        "environment": ladder.environment,
        "device": "cpu",
        "model": ladder.model,
        "data": ladder.data,
        "repeats": 3,
        "knee_gain": 0.1,
        "points": points,
        "series": series,
    }
    return Sweep(**{**fields, **more})


def test_the_report_says_knee_and_end_and_survives_any_name(tmp_path):
    record = made_up_sweep()
    report.write_report(record, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "The knee of demo lies at batch 16" in page
    assert "tried to allocate 2 GiB" in page
    assert page.count("<figure>") == 3, "what was not measured has no figure"
    odd = dataclasses.replace(record, model=dataclasses.replace(record.model, name="<b>&"))
    report.write_report(odd, tmp_path / "r.html")
    assert "<b>&" not in (tmp_path / "r.html").read_text()
    assert from_json(Sweep, to_json(record)) == record
    assert median(p.throughput_seq_s for p in record.points) == 620


def test_a_sweep_of_which_nothing_was_measured_still_has_a_report(tmp_path):
    series = [Series("prefetch", 128, None, None, None, 1, "out of memory")]
    record = made_up_sweep(points=[], series=series)
    report.write_report(record, tmp_path / "r.html")
    assert "No batch size was measured" in (tmp_path / "r.html").read_text()
    assert "Nothing was measured: out of memory." in "\n".join(sweep.lines(record))
