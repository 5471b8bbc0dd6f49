"""The report of a comparison as one HTML file."""

from __future__ import annotations

import os
from typing import Any

from bertopt import compare
from bertopt.files import write_bytes
from bertopt.records_compare import Comparison, Side
from bertopt.report import wording
from bertopt.report.html import render
from bertopt.report.plots import ticks

# The colours of the ladder's phases, and of a training step's
KINDS = {
    "input": "host",
    "tokenize": "host",
    "collate": "host-2",
    "stalled": "host-2",
    "copy": "copy",
    "copy_in": "copy",
    "launch": "copy-2",
    "device": "device",
    "forward": "device",
    "backward": "device-2",
    "copy_out": "copy-2",
    "optimizer": "post",
    "postprocess": "post",
}


def write_report(record: Comparison, path: os.PathLike[str] | str) -> None:
    """Writes the report of `record` to `path`, whole or not at all. Raises UsageError where it cannot be written."""
    page = render(
        "compare.html.j2",
        record=record,
        headline_of=compare.headline(record),
        bars=_bars(record),
        strips=_strips(record),
        axis_of=_axis(record),
        keys=_keys(record),
        rows=compare.rows(record),
    )
    write_bytes(path, page.encode("utf-8", errors="replace"))


def _bars(record: Comparison) -> list[dict[str, Any]]:
    """Throughput on one scale from zero, with the ends of the repeats, in percent of the track."""
    ends = [s.ends_seq_s or (0.0, s.throughput_seq_s or 0.0) for s in record.sides]
    top = max(high for _, high in ends) or 1.0
    fastest = max(s.throughput_seq_s or 0.0 for s in record.sides)
    return [
        {
            "side": s,
            "width": 100 * (s.throughput_seq_s or 0.0) / top,
            "low": 100 * low / top,
            "high": 100 * high / top,
            "spread": len(s.repeats_seq_s) > 1,
            "best": s.throughput_seq_s == fastest and s.against_first != "no difference",
        }
        for s, (low, high) in zip(record.sides, ends, strict=True)
    ]


def _longest(record: Comparison) -> float:
    return max((sum(s.phases_ms.values()) for s in record.sides), default=0.0)


def _strips(record: Comparison) -> list[dict[str, Any]]:
    """Each run's phases of a batch, one after the other, on one axis."""
    longest = _longest(record)
    return [{"side": s, "parts": _parts(s, longest)} for s in record.sides if s.phases_ms and longest]


def _parts(side: Side, longest: float) -> list[dict[str, Any]]:
    at, parts = 0.0, []
    for name, ms in side.phases_ms.items():
        width = 100 * ms / longest
        label = f"{name.replace('_', ' ')} {wording.figure(ms)} ms"
        parts.append(
            {"at": at, "width": width, "kind": KINDS.get(name, "plain"), "label": label, "name": name.replace("_", " ")}
        )
        at += width
    return parts


def _keys(record: Comparison) -> list[tuple[str, str]]:
    """Colour and name of every phase that is drawn."""
    names = dict.fromkeys(name for s in record.sides for name in s.phases_ms)
    return [(KINDS.get(name, "plain"), name.replace("_", " ")) for name in names]


def _axis(record: Comparison) -> list[dict[str, Any]]:
    longest = _longest(record)
    return [{"at": 100 * t / longest, "label": f"{t:,g}"} for t in ticks(longest)] if longest else []
