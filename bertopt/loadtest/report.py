"""A load test for people: a table, and one HTML file with latency against rate that opens without a network."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Iterator
from pathlib import Path

from bertopt.files import write_text
from bertopt.loadtest.records import Curve, LoadRecord, Point

COLUMNS = ("asked/s", "answered/s", "good/s", "p50 ms", "p95 ms", "p99 ms", "429", "failed", "sent late ms")


def row(point: Point) -> list[str]:
    """A point's figures in the order of COLUMNS."""
    times = ["-" if value is None else f"{value:.1f}" for value in (point.p50_ms, point.p95_ms, point.p99_ms)]
    failed = ", ".join(f"{count} x {status}" for status, count in point.failed.items()) or "0"
    rates = [f"{point.rate_asked:.1f}", f"{point.rate_answered:.1f}", f"{point.goodput:.1f}"]
    return [*rates, *times, str(point.refused), failed, f"{point.late_ms:.1f}"]


def lines(record: LoadRecord) -> Iterator[str]:
    """The record as text."""
    many = "s" * (record.texts_a_request > 1)
    yield f"{record.data}, {record.texts_a_request} text{many} a request, SLO {record.slo_ms:g} ms"
    for curve in record.curves:
        yield f"\n{curve.name}"
        table = [list(COLUMNS), *(row(point) for point in sorted(curve.points, key=lambda p: p.rate_asked))]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        yield from ("  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True)) for cells in table)
        if len(curve.points) > 1 or curve.highest_rate is not None:
            yield found(curve, record.slo_ms)
        yield from curve.notes
    yield from record.notes


def found(curve: Curve, slo_ms: float) -> str:
    if curve.highest_rate is None:
        return f"no rate that was tried keeps 99 % of the requests within {slo_ms:g} ms"
    return f"the highest rate with 99 % of the requests within {slo_ms:g} ms: {curve.highest_rate:.1f}/s"


def write_report(record: LoadRecord, path: Path) -> None:
    """One HTML file."""
    parts = [f"<h1>bertopt load</h1><p>{html.escape(record.data)}, {record.created}</p>", plot(record)]
    for curve in record.curves:
        cells = "".join(f"<th>{html.escape(name)}</th>" for name in COLUMNS)
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row(point))}</tr>"
            for point in sorted(curve.points, key=lambda p: p.rate_asked)
        )
        parts.append(f"<h2>{html.escape(curve.name)}</h2><p>{html.escape(found(curve, record.slo_ms))}</p>")
        parts.append(f"<table><tr>{cells}</tr>{rows}</table>")
        parts += [f"<p>{html.escape(note)}</p>" for note in curve.notes]
    parts += [f"<p>{html.escape(note)}</p>" for note in record.notes]
    parts.append(f"<p><code>{html.escape(record.command)}</code></p>")
    style = (
        "body{font:15px sans-serif;max-width:60em;margin:2em auto}td,th{text-align:right;padding:.2em .8em}svg{max-width:100%}"
    )
    write_text(path, f"<!doctype html><meta charset=utf-8><title>bertopt load</title><style>{style}</style>{''.join(parts)}\n")


def plot(record: LoadRecord) -> str:
    """p50 and p99 against the rate that was asked, a colour a server; SVG."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    for number, curve in enumerate(record.curves):
        points = sorted(curve.points, key=lambda p: p.rate_asked)
        rates = [p.rate_asked for p in points]
        for name, style, values in (("p99", "o-", [p.p99_ms for p in points]), ("p50", ".:", [p.p50_ms for p in points])):
            heights = [math.nan if value is None else value for value in values]
            axes.plot(rates, heights, style, color=f"C{number}", label=f"{curve.name}, {name}")
    axes.axhline(record.slo_ms, color="0.5", linewidth=1)
    axes.set(xlabel="requests a second, Poisson", ylabel="latency, ms", yscale="log")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    pyplot.close(figure)
    return buffer.getvalue().partition("<svg")[1] + buffer.getvalue().partition("<svg")[2]
