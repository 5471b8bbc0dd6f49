"""The report of a sweep as one HTML file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bertopt.files import write_bytes
from bertopt.records_sweep import Point, Series, Sweep
from bertopt.report import plots, wording
from bertopt.report.html import render
from bertopt.sweep import verdict

Value = Callable[[Point], float | None]


@dataclass(frozen=True)
class Figure:
    """One plot over batch size."""

    title: str
    y_label: str
    caption: str
    values: tuple[tuple[str, Value], ...]  # name of a line after the series' own, and its figure
    y_top: float | None = None


def _share(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _card(field: str, factor: float = 1.0) -> Value:
    def read(point: Point) -> float | None:
        value = getattr(point.card, field) if point.card is not None else None
        return None if value is None else factor * value

    return read


FIGURES = (
    Figure(
        "Throughput",
        "seq/s",
        "From raw text to answers on the host. Where the line bends, a larger batch buys latency and little else.",
        (("", lambda p: p.throughput_seq_s),),
    ),
    Figure(
        "Latency of a batch",
        "ms, median",
        "From asking for a batch to its answers, with the wait for the batches before it.",
        (("", lambda p: p.batch_ms_p50),),
    ),
    Figure(
        "Utilization",
        "%",
        "Span is an upper bound: a device that waits between kernels spans all the same. SM active is how much had work.",
        (
            ("span", lambda p: _share(p.utilization_span)),
            ("SM active", _card("sm_active", 100)),
            ("cores busy", lambda p: _share(p.utilization_cores_busy)),
        ),
        100.0,
    ),
    Figure(
        "Memory",
        "MiB, peak",
        "Of the device where there is one, else of the process.",
        (("", lambda p: p.peak_device_mib if p.peak_device_mib is not None else p.peak_process_mib),),
    ),
    Figure("Power", "W", "Mean over a pass, from the card's energy counter.", (("", _card("power_w")),)),
    Figure(
        "Energy",
        "J for 1,000 sequences",
        "Power over throughput: what the meter charges for the same work.",
        (("", lambda p: p.energy_j_per_1000),),
    ),
)


def write_report(record: Sweep, path: os.PathLike[str] | str) -> None:
    """Writes the report of `record` to `path`, whole or not at all. Raises UsageError where it cannot be written."""
    page = render(
        "sweep.html.j2",
        record=record,
        headline_of=_headline(record),
        verdicts=[(_name(record, s), verdict(record, s)) for s in record.series],
        figures=[(f, svg) for f in FIGURES if (svg := _draw(record, f)) is not None],
        tables=[(_name(record, s), s, record.of(s)) for s in record.series],
    )
    write_bytes(path, page.encode("utf-8", errors="replace"))


def _headline(record: Sweep) -> str:
    first = record.series[0]
    at = next((p for p in record.of(first) if p.batch_size == first.knee), None)
    if at is None:
        return "No batch size was measured"
    return (
        f"The knee of {record.model.name} lies at batch {first.knee}: {wording.figure(at.throughput_seq_s)} sequences a second"
    )


def _name(record: Sweep, series: Series) -> str:
    """A series by what tells it from the others."""
    several = len({s.sequence_length for s in record.series}) > 1
    return f"{series.rung}, {series.sequence_length} tokens" if several else series.rung


def _draw(record: Sweep, figure: Figure) -> Any:
    """The figure as SVG; None where none of its values was measured."""
    from markupsafe import Markup

    lines = []
    for series in record.series:
        for part, value in figure.values:
            known = [(p.batch_size, v) for p in record.of(series) if (v := value(p)) is not None]
            name = " ".join(filter(None, (_name(record, series) if len(record.series) > 1 else "", part)))
            if known:
                lines.append(plots.Series(name or series.rung, [x for x, _ in known], [y for _, y in known]))
    if not lines:
        return None
    words = "; ".join(
        f"{s.name}: {wording.figure(s.y[0])} at batch {s.x[0]:g}, {wording.figure(s.y[-1])} at {s.x[-1]:g}" for s in lines
    )
    label = f"{figure.title} against batch size. {words}."
    return Markup(
        plots.lines(lines, x_label="batch size", y_label=figure.y_label, label=label, doubling_x=True, y_top=figure.y_top)
    )
