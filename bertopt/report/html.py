"""The report of a run as one HTML file: no script, no network, light and dark, on a screen, a phone and paper."""

from __future__ import annotations

import os
from typing import Any

from bertopt.files import write_bytes
from bertopt.records import LadderRecord, LengthHistogram, PolicyPadding
from bertopt.report import plots, table, view, wording


def write_report(record: LadderRecord, path: os.PathLike[str] | str) -> None:
    """Writes the report of `record` to `path`, whole or not at all. Raises UsageError where it cannot be written."""
    page = render(
        "ladder.html.j2",
        record=record,
        naive=wording.root(record),
        best=wording.best(record),
        bars=view.bars(record),
        timelines=view.timelines(record),
        phases=view.phases(record),
        lengths=_lengths(record),
        padding=_padding(record.padding),
        wasted=view.wasted(record.padding),
    )
    write_bytes(path, page.encode("utf-8", errors="replace"))  # a file name may hold what UTF-8 cannot


def render(template: str, **values: Any) -> str:
    """A template of this folder as a page. What `values` hold is escaped, save the SVG that `plots` drew."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("bertopt", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for filter_ in (
        wording.figure,
        wording.count,
        wording.percent,
        wording.times,
        wording.interval,
        wording.spread,
        wording.over_parent,
        wording.parity,
        wording.gate,
        view.flat,
        view.plain,
        options,
    ):
        environment.filters[filter_.__name__] = filter_
    environment.globals.update(
        headline=wording.headline,
        facts=wording.facts,
        lower_ceiling=wording.lower_ceiling,
        table=table.TABLE,
        utilizations=table.UTILIZATIONS,
        missing=wording.NOT_MEASURED,
    )
    return environment.get_template(template).render(**values)


def options(text: str) -> Any:
    """`text`, escaped, whose command-line options are not broken after their hyphens."""
    from markupsafe import Markup, escape

    words = (Markup('<span class="nobr">{}</span>').format(w) if w.startswith("-") else escape(w) for w in text.split(" "))
    return Markup(" ").join(words)


def _lengths(record: LadderRecord) -> Any:
    lengths = record.lengths
    if lengths is None or not sum(lengths.counts):
        return None
    fastest = wording.best(record)
    marks = [plots.Mark(lengths.mean, f"mean {wording.figure(lengths.mean)}")]
    if lengths.p90 == record.sequence_length:
        marks.append(plots.Mark(lengths.p90, f"p90 and --seq {lengths.p90}"))
    else:
        marks += [
            plots.Mark(lengths.p90, f"p90 {lengths.p90}"),
            plots.Mark(record.sequence_length, f"--seq {record.sequence_length}"),
        ]
    return _markup(
        plots.histogram(
            lengths.counts,
            x_label="tokens of a request",
            y_label="requests",
            label=_lengths_in_words(lengths, record.sequence_length),
            marks=marks,
            edges=(fastest.bucket_edges or ()) if fastest else (),
        )
    )


def _lengths_in_words(lengths: LengthHistogram, sequence_length: int) -> str:
    return (
        f"Histogram of request lengths: mean {wording.figure(lengths.mean)} tokens, median {lengths.p50}, "
        f"90th percentile {lengths.p90}, 99th {lengths.p99}, longest {lengths.longest}, --seq {sequence_length}."
    )


def _padding(padding: list[PolicyPadding]) -> Any:
    if not padding:
        return None
    policies: dict[str, list[PolicyPadding]] = {}
    for row in sorted(padding, key=lambda p: p.window):
        policies.setdefault(row.policy, []).append(row)
    series = [
        plots.Series(name, [p.window for p in rows], [100 * p.padding_fraction for p in rows])
        for name, rows in policies.items()
    ]
    series.sort(key=lambda s: s.y[-1])
    words = "; ".join(f"{s.name}: {wording.figure(s.y[-1])} % at {s.x[-1]:,.0f} requests" for s in series)
    return _markup(
        plots.lines(
            series,
            x_label="window, requests",
            y_label="padding, % of the tokens computed",
            label=f"Padding against the window of pending requests. {words}.",
            doubling_x=True,
        )
    )


def _markup(svg: str) -> Any:
    from markupsafe import Markup

    return Markup(svg)
