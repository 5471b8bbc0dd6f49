"""What reports say in words, in a terminal and in a pipe, and the arithmetic of figures."""

from __future__ import annotations

import dataclasses
import io
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from bertopt.records import LadderRecord
from bertopt.report import plots, wording
from bertopt.report.terminal import print_ladder
from tests.made_up import empty_ladder, made_up_ladder, made_up_rung, with_every_string


def printed(record: LadderRecord, width: int = 200, encoding: str = "utf-8", **options: object) -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    print_ladder(record, Console(file=out, width=width, **options))  # type: ignore[arg-type]
    out.seek(0)
    return out.read()


# ---- The words


def test_the_headline_says_what_was_gained() -> None:
    assert wording.headline(made_up_ladder()) == (
        "BF16 on OpenVINO with length buckets serves 5.3x the naive service: 49 → 262 sequences a second"
    )


def test_the_headline_claims_no_gain_inside_the_spread() -> None:
    """BEN-01: a difference inside the noise is no speed-up."""
    record = made_up_ladder()
    base, same = record.rungs[0], made_up_rung("prefetch", 49.5, "baseline", speedup_over_baseline=1.004)
    said = wording.headline(dataclasses.replace(record, rungs=[base, same], best="prefetch"))
    assert "no different from the naive service" in said
    assert "x the" not in said


@pytest.mark.parametrize(
    ("best", "expected"),
    [("baseline", "Nothing that was measured beats the naive service"), (None, "No rung was measured"), ("gone", "No rung")],
)
def test_the_headline_without_a_winner(best: str | None, expected: str) -> None:
    assert wording.headline(made_up_ladder(best=best)).startswith(expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "–"),
        (0.0, "0"),
        (0.00612, "0.00612"),
        (1.1e-6, "1.1e-06"),
        (49.31, "49.3"),
        (262.4, "262"),
        (15_700.4, "15,700"),
        (-0.5, "-0.500"),
    ],
)
def test_figures(value: float | None, expected: str) -> None:
    assert wording.figure(value) == expected


def test_nothing_measured_is_not_zero() -> None:
    assert [wording.percent(v) for v in (None, 0.0, 0.789)] == ["–", "0.0", "78.9"]
    assert [wording.times(v) for v in (None, 0.965, 9.996, 124.2)] == ["–", "0.96x", "10.0x", "124x"]
    assert wording.interval(None) == wording.count(None) == "–"


# ---- The terminal


def test_a_pipe_gets_plain_aligned_lines_of_100_columns() -> None:
    text = printed(made_up_ladder())
    assert "\x1b" not in text
    assert not re.search("[\u2500-\u257f]", text)
    assert max(cell_len(line) for line in text.splitlines()) <= 100
    gains = [found for line in text.splitlines() if (found := re.search(r"±1.2% +\d\.\d\dx", line))]
    assert len(gains) == 7
    assert len({found.end() for found in gains}) == 1
    assert "262 ±1.2%   5.31x          2.87x   3.1    98    97   0.0061  88.3 (86.3–90.0) bf16" in text


def test_the_table_says_why_a_rung_is_missing_and_how_to_run_it() -> None:
    text = printed(made_up_ladder())
    assert "skipped: there is no calibration cache for demo" in text
    assert "to run it: bertopt calibrate --model demo --recipe calibration/default.toml" in text
    assert "failed: its logits differ from eager FP32 by 0.31" in text
    assert re.search(r"onnx-fp16 .* FAILED ", text)
    assert re.search(r"prefetch .* no difference ", text)
    assert "2 of 37 batches failed and are not counted" in text
    assert text.count("Bound by the device: fp16 reaches") == 1


def test_a_measured_zero_and_an_unmeasured_rung_read_differently() -> None:
    record = made_up_ladder()
    zero = dataclasses.replace(record.rungs[0], padding_fraction=0.0, utilization_span=None, parity=None, accuracy=None)
    row = next(line for line in printed(dataclasses.replace(record, rungs=[zero])).splitlines() if line.startswith("baseline"))
    assert row.split() == ["baseline", "49.3", "±1.2%", "1.00x", "–", "0.0", "–", "91", "–", "–", "fp32"]
    unknown = next(line for line in printed(empty_ladder()).splitlines() if line.startswith("baseline"))
    assert set(unknown.split()[1:]) == {"–"}


@pytest.mark.parametrize("width", [60, 80, 99, 100, 140])
def test_a_terminal_gets_colour_and_lines_that_fit_it(width: int) -> None:
    record = made_up_ladder()
    ablated = made_up_rung("fp16 without tokenizer", 240.0, "fp16", speedup_over_parent=0.91)
    text = printed(
        dataclasses.replace(record, rungs=[*record.rungs, ablated]), width, force_terminal=True, color_system="standard"
    )
    assert "\x1b[" in text
    lines = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()
    table = lines[: next(i for i, line in enumerate(lines) if line.startswith("* the fastest"))]
    assert max(cell_len(line) for line in lines if line not in table) <= width
    if width >= 80:
        assert max(cell_len(line) for line in table) <= width
    assert "fp16 without tokenizer" in lines


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_encoding_and_no_escape_code_breaks_the_table(encoding: str) -> None:
    record = with_every_string(made_up_ladder(), "\x1b[2J[bold]名前\udcff\n\r")
    assert isinstance(record, LadderRecord)
    text = printed(record, encoding=encoding)
    assert "\x1b" not in text
    assert "[bold]" in text
    assert max(cell_len(line) for line in text.splitlines()) <= 100


# ---- The arithmetic of figures


@given(st.floats(1e-6, 1e9))
def test_ticks_are_few_even_and_within(highest: float) -> None:
    at = plots.ticks(highest)
    assert 2 <= len(at) <= 9
    assert at[0] == 0
    assert at[-1] <= highest * (1 + 1e-6)
    assert at[-1] + at[1] > highest * (1 - 1e-6)


@given(st.lists(st.floats(-1e3, 1e3), max_size=8), st.floats(0, 100))
def test_labels_keep_their_order_and_distance(positions: list[float], gap: float) -> None:
    moved = plots.apart(positions, gap)
    ranked = [m for _, m in sorted(zip(positions, moved, strict=True))]
    assert all(b - a >= gap - 1e-6 for a, b in itertools.pairwise(ranked))
    if all(b - a >= gap for a, b in itertools.pairwise(sorted(positions))):
        assert moved == pytest.approx(positions)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=600))
def test_bins_lose_no_request(counts: list[int]) -> None:
    edges, sums = plots.bins(counts)
    assert sum(sums) == sum(counts)
    assert len(sums) <= 48
    assert edges[-1] >= len(counts)
