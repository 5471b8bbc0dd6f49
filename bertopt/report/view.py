"""A ladder's record as the geometry of its report: positions in percent of a track, and the same in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bertopt.records import LadderRecord, PolicyPadding, RungRecord, Span
from bertopt.report import wording
from bertopt.report.plots import ticks
from bertopt.report.wording import figure


@dataclass(frozen=True)
class Tick:
    at: float  # percent of the track
    label: str


@dataclass(frozen=True)
class Bar:
    """One rung of the ladder on the shared scale; positions in percent of the track."""

    rung: RungRecord
    kind: str  # "best", "measured", "failed" or "skipped"
    width: float | None
    low: float | None
    high: float | None
    ceiling: float | None
    ceiling_text: str | None


@dataclass(frozen=True)
class Segment:
    at: float
    width: float
    kind: str  # names its colour: "host", "copy" or "device", each also with "-2", or "post"
    label: str


@dataclass(frozen=True)
class Track:
    """A labelled strip of segments."""

    label: str
    segments: list[Segment]
    text: str  # the same in words


@dataclass(frozen=True)
class Strip:
    """One rung's tracks."""

    rung: RungRecord
    tracks: list[Track]
    total: str


@dataclass(frozen=True)
class Scale:
    """Strips on one shared axis."""

    ticks: list[Tick]
    strips: list[Strip]


CLOSER = 0.15  # of the longest batch: what is shorter is drawn again on an axis of its own
LANES = ("host", "copy", "device", "post")
PHASES = (
    ("tokenize", "tokenize_ms", "host"),
    ("collate", "collate_ms", "host-2"),
    ("copy in", "copy_in_ms", "copy"),
    ("device", "device_ms", "device"),
    ("copy out", "copy_out_ms", "copy-2"),
    ("postprocess", "postprocess_ms", "post"),
)


def bars(record: LadderRecord) -> list[Bar]:
    """The ladder's bars on one scale from zero to the highest throughput or ceiling."""
    ceilings = {r.name: wording.lower_ceiling(r) for r in record.rungs}
    reach = [r.throughput_high_seq_s or r.throughput_seq_s or 0.0 for r in record.rungs]
    top = max([*reach, *(c[1] for c in ceilings.values() if c)], default=0.0) or 1.0

    def at(value: float | None) -> float | None:
        return None if value is None else 100 * value / top

    result = []
    for rung in record.rungs:
        ceiling = ceilings[rung.name]
        result.append(
            Bar(
                rung=rung,
                kind="best" if rung.name == record.best else rung.status,
                width=at(rung.throughput_seq_s),
                low=at(rung.throughput_low_seq_s),
                high=at(rung.throughput_high_seq_s),
                ceiling=at(ceiling[1]) if ceiling else None,
                ceiling_text=f"{ceiling[0]}'s ceiling {figure(ceiling[1])} seq/s" if ceiling else None,
            )
        )
    return result


def timelines(record: LadderRecord) -> list[Scale]:
    """One batch of each rung in lanes of host, copy, device and post, on one axis; the fast ones again, closer."""
    return _closer([(r, max(s.end_ms for s in r.timeline)) for r in record.rungs if r.timeline], _timeline)


def phases(record: LadderRecord) -> list[Scale]:
    """The mean milliseconds of each phase of a batch, one after the other, on one axis; the fast ones again, closer."""
    return _closer([(r, sum(ms for _, ms, _ in parts)) for r in record.rungs if (parts := _parts(r))], _phases)


def _closer(ends: list[tuple[RungRecord, float]], draw: Callable[[list[RungRecord]], Scale]) -> list[Scale]:
    """All rungs on one axis, given with their ends on it, and those that would vanish there again on their own."""
    longest = max((end for _, end in ends), default=0.0)
    groups = [[r for r, _ in ends], [r for r, end in ends if end < CLOSER * longest]]
    return [draw(group) for group in groups if group]


def _timeline(rungs: list[RungRecord]) -> Scale:
    spans = [s for r in rungs for s in r.timeline]
    start, end = min(0.0, *(s.start_ms for s in spans)), max(s.end_ms for s in spans)
    length = end - start or 1.0
    strips = []
    for rung in rungs:
        tracks = []
        for lane in [*LANES, *sorted({s.lane for s in rung.timeline} - set(LANES))]:
            mine = [s for s in rung.timeline if s.lane == lane]
            if not mine:
                continue
            segments = [
                Segment(
                    at=100 * (s.start_ms - start) / length,
                    width=100 * (s.end_ms - s.start_ms) / length,
                    kind=_kind(s, i),
                    label=f"{s.name} {figure(s.end_ms - s.start_ms)} ms",
                )
                for i, s in enumerate(mine)
            ]
            words = ", ".join(f"{s.name} from {figure(s.start_ms)} to {figure(s.end_ms)} ms" for s in mine)
            tracks.append(Track(lane, segments, f"{rung.name}, {lane}: {words}"))
        strips.append(Strip(rung, tracks, f"{figure(max(s.end_ms for s in rung.timeline))} ms"))
    return Scale([Tick(100 * (t - start) / length, f"{t:,g}") for t in ticks(end)], strips)


def _phases(rungs: list[RungRecord]) -> Scale:
    longest = max(sum(ms for _, ms, _ in _parts(r)) for r in rungs) or 1.0
    strips = []
    for rung in rungs:
        segments, start = [], 0.0
        for name, ms, kind in _parts(rung):
            segments.append(Segment(100 * start / longest, 100 * ms / longest, kind, f"{name} {figure(ms)} ms"))
            start += ms
        words = ", ".join(s.label for s in segments)
        strips.append(Strip(rung, [Track("", segments, f"{rung.name}: {words}")], f"{figure(start)} ms"))
    return Scale([Tick(100 * t / longest, f"{t:,g}") for t in ticks(longest)], strips)


def _parts(rung: RungRecord) -> list[tuple[str, float, str]]:
    return [(name, getattr(rung, key), kind) for name, key, kind in PHASES if getattr(rung, key) is not None]


def _kind(span: Span, position: int) -> str:
    """The colour of a span: as in `phases`, and batch by batch in turn on the device."""
    if span.lane == "device":
        return "device-2" if position % 2 else "device"
    second = {"host": span.name != "tokenize", "copy": span.name.endswith("out")}.get(span.lane, False)
    return f"{span.lane if span.lane in LANES else 'post'}{'-2' if second else ''}"


@dataclass(frozen=True)
class Wasted:
    """What policies waste by window: each row a policy, of what, and a fraction for each window that was computed."""

    windows: list[int]
    rows: list[tuple[str, str, dict[int, float]]]


def wasted(padding: Sequence[PolicyPadding]) -> Wasted:
    rows = []
    for policy in dict.fromkeys(p.policy for p in padding):
        mine = [p for p in padding if p.policy == policy]
        rows.append((policy, "tokens", {p.window: p.padding_fraction for p in mine}))
        rows.append((policy, "attention FLOPs", {p.window: p.attention_waste_fraction for p in mine}))
    return Wasted(sorted({p.window for p in padding}), rows)


def flat(environment: dict[str, Any], above: str = "") -> list[tuple[str, str]]:
    """A nested description as rows: `libraries.torch`, `2.13.0`."""
    rows: list[tuple[str, str]] = []
    for key, value in environment.items():
        if isinstance(value, dict):
            rows += flat(value, f"{above}{key}.")
        else:
            rows.append((f"{above}{key}", plain(value)))
    return rows


def plain(value: Any) -> str:
    """Any JSON value in one line."""
    if value is None:
        return wording.NOT_MEASURED
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{k} {plain(v)}" for k, v in value.items()) or wording.NOT_MEASURED
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value)) or wording.NOT_MEASURED
    return str(value)
