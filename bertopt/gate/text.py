"""A verdict in plain lines for a terminal: Verdict, Why, Next, and a small table."""

from __future__ import annotations

from bertopt.gate.verdict import PASSED, GateVerdict, Side
from bertopt.report.wording import NOT_MEASURED, count, figure, percent, times

_LISTED = 5  # flips and changed rows that the lines show
_TEXT_WIDTH = 72


def headline(verdict: GateVerdict) -> str:
    """ "INT8 FAILED", and on what."""
    stood_in = " (a CPU stood in for the plan)" if verdict.evidence == "proxy" else ""
    accurate = " on speed, accurate as it is" if verdict.accuracy_verdict == PASSED and verdict.verdict != PASSED else ""
    return (
        f"{verdict.verdict.upper()}{accurate}{stood_in}: {verdict.candidate.precision} for {verdict.reference.precision} by "
        f"{verdict.metric_title}, at most {verdict.max_drop_points:g} points on {verdict.rows:,} rows"
    )


def verdict_lines(verdict: GateVerdict) -> list[str]:
    """What the terminal prints."""
    lines = [
        f"Verdict: {headline(verdict)}",
        f"Why:     {verdict.reasons[0]}",
        *(f"         {reason}" for reason in verdict.reasons[1:]),
        f"Next:    {verdict.next}",
        "",
        *_aligned(sides_table(verdict)),
        "",
        *_aligned([[check.status, check.name, check.reason] for check in verdict.checks]),
    ]
    if verdict.flips:
        lines += [
            "",
            f"{count(verdict.changed_rows)} of {count(verdict.rows)} rows changed their label",
            *_aligned(flips_table(verdict)),
        ]
    if verdict.changed:
        lines += ["", *(_changed_line(verdict, at) for at in range(min(_LISTED, len(verdict.changed))))]
    if verdict.worst_class is not None:
        worst = next(c for c in verdict.classes if c.label == verdict.worst_class)
        recalls = f"{percent(worst.recall_reference)} to {percent(worst.recall_candidate)} % of {worst.rows} rows"
        lines += ["", f"Worst label: {worst.label}, from {recalls}"]
    return lines + [f"Note: {note}" for note in verdict.notes]


def sides_table(verdict: GateVerdict) -> list[list[str]]:
    """Reference and candidate side by side, and the drop between them."""
    drop, level = verdict.drop, f"{verdict.drop.interval_percent:g} %"
    head = ["", "what ran", verdict.metric_title, f"{verdict.confidence_percent:g} % interval", "seq/s"]
    change = [
        "drop, points",
        "",
        f"{drop.points:.2f}",
        f"{drop.low_points:.2f} to {drop.high_points:.2f} ({level})",
        times(verdict.speed.speedup) if verdict.speed else NOT_MEASURED,
    ]
    return [head, _side("reference", verdict.reference), _side("candidate", verdict.candidate), change]


def flips_table(verdict: GateVerdict) -> list[list[str]]:
    rows = [[f"{f.reference} -> {f.candidate}", count(f.rows), *_effect(f.worse, f.better)] for f in verdict.flips[:_LISTED]]
    if len(verdict.flips) > _LISTED:
        rows.append([f"{len(verdict.flips) - _LISTED} more kinds", count(sum(f.rows for f in verdict.flips[_LISTED:])), ""])
    return rows


def _effect(worse: int | None, better: int | None) -> list[str]:
    return [""] if worse is None else [f"{worse} worse, {better} better"]


def _side(which: str, side: Side) -> list[str]:
    value = side.value
    return [
        which,
        f"{side.name} ({side.backend}, {side.precision})",
        f"{100 * value.value:.2f}",
        f"{100 * value.low:.2f} to {100 * value.high:.2f}",
        figure(side.throughput_seq_s),
    ]


def _changed_line(verdict: GateVerdict, at: int) -> str:
    row = verdict.changed[at]
    effect = f", {row.effect}" if row.effect else ""
    text = " ".join((row.text or "").split())
    short = text if len(text) <= _TEXT_WIDTH else text[: _TEXT_WIDTH - 1] + "…"
    return f"row {row.row}: {row.reference} -> {row.candidate}{effect}  {short}".rstrip()


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
