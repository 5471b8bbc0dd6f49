"""The ladder as a table of at most 100 columns; the same lines without colour when it is piped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from bertopt.records import LadderRecord, RungRecord
from bertopt.report import wording

WIDTH = 100
NAME_WIDTH = 16  # a longer name has a line of its own
NARROW_DROPS = ("ran", "util", "ceiling", "padding")  # what goes first in a terminal that is narrower than the table
ASCII = str.maketrans({"–": "-", "±": "~", "·": "|", "→": "->"})


@dataclass(frozen=True)
class Column:
    """One column: a header of two lines, the text of a rung's cell, and the gap before it."""

    key: str
    head: tuple[str, str]
    cell: Callable[[RungRecord], str]
    left: bool = False
    gap: int = 2


COLUMNS = (
    Column("seq", ("", "seq/s"), lambda r: wording.figure(r.throughput_seq_s)),
    Column("spread", ("", "spread"), wording.spread, left=True, gap=1),
    Column("base", ("over", "base"), lambda r: wording.times(r.speedup_over_baseline)),
    Column("parent", ("over", "parent"), wording.over_parent),
    Column("padding", ("pad", "%"), lambda r: wording.percent(r.padding_fraction)),
    Column("util", ("util", "%"), lambda r: wording.percent(r.utilization_span, 0)),
    Column("ceiling", ("ceil", "%"), lambda r: wording.percent(r.ceiling_share, 0)),
    Column("parity", ("", "parity"), wording.parity),
    Column("accuracy", ("accuracy", "%"), lambda r: wording.interval(r.accuracy)),
    Column("ran", ("", "ran"), lambda r: _clean(r.precision or wording.NOT_MEASURED), left=True),
)


@dataclass(frozen=True)
class Layout:
    """The columns that are shown, and widths in cells; a column's includes the gap before it."""

    columns: list[Column]
    widths: dict[str, int]
    name: int
    total: int

    def line(self, cells: Iterable[tuple[str, str]], name: Text) -> Text:
        """`name` with a cell, as text and style, for every column."""
        for column, (text, style) in zip(self.columns, cells, strict=True):
            width = self.widths[column.key]
            name.append(f" {text}".ljust(width) if column.left else text.rjust(width), style=style)
        return name


def print_ladder(record: LadderRecord, console: Console | None = None) -> None:
    """The table, what its columns mean, and the verdict in one paragraph.

    A terminal gets colour; anything else gets the same lines as plain text, 100 columns wide.
    """
    console = console or Console()
    width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    for line in _lines(record, width):
        line.rstrip()
        if console.options.ascii_only:
            line = Text(line.plain.translate(ASCII).encode("ascii", "replace").decode())
        console.print(line, soft_wrap=True, highlight=False)


def _lines(record: LadderRecord, width: int) -> list[Text]:
    layout = _layout(record, width)
    lines = [Text("")]
    lines += _wrapped(" · ".join(wording.facts(record)), width, style="dim")
    lines.append(Text(""))
    for row in (0, 1):
        name = Text(("", "rung")[row].ljust(layout.name), style="bold")
        lines.append(layout.line(((c.head[row], "bold") for c in layout.columns), name))
    for rung in record.rungs:
        lines += _row(record, rung, layout)
    lines.append(Text(""))
    lines += _wrapped(_legend(record, [c.key for c in layout.columns]), width, style="dim")
    if record.verdict is not None:
        lines.append(Text(""))
        lines += _wrapped(wording.bound(record.verdict), width)
    for note in record.notes:
        lines += _wrapped(f"Note: {note}", width, style="dim")
    return lines


def _row(record: LadderRecord, rung: RungRecord, layout: Layout) -> list[Text]:
    """A rung's line with, below it, what a reader must know before believing it."""
    style = "bold green" if rung.name == record.best else {"failed": "red", "skipped": "dim"}.get(rung.status, "")
    name, blank = Text(_name(record, rung).ljust(layout.name), style=style), " " * layout.name
    lines: list[Text] = []
    if name.cell_len > layout.name:
        lines.append(name)
        name = Text(blank)
    if rung.status == "measured" or rung.throughput_seq_s is not None:
        lines.append(layout.line(((c.cell(rung), _cell_style(rung, c, style)) for c in layout.columns), name))
        name = Text(blank)
    for aside in _asides(rung):
        told = style if rung.status != "measured" or aside.startswith("gate passed") else "yellow"
        for part in _wrapped(aside, layout.total - layout.name - 2, style=told):
            lines.append(Text.assemble(name, "  ", part))
            name = Text(blank)
    return lines or [name]


def _cell_style(rung: RungRecord, column: Column, style: str) -> str:
    if column.key == "parity" and rung.parity is not None and not rung.parity.passed:
        return "bold red"
    if column.key == "parent" and rung.parent_verdict in ("slower", "no difference"):
        return "yellow"
    return style


def _asides(rung: RungRecord) -> list[str]:
    asides = []
    if rung.status != "measured":
        asides.append(f"{rung.status}: {rung.reason}" if rung.reason else rung.status)
    if rung.remedy:
        asides.append(f"to {'mend' if rung.status == 'failed' else 'run'} it: {rung.remedy}")
    if rung.failed_batches:
        asides.append(f"{rung.failed_batches} of {wording.count(rung.batches)} batches failed and are not counted")
    if rung.status == "measured" and rung.gate is not None:
        asides.append(f"gate {wording.gate(rung)}")
    return asides


def _name(record: LadderRecord, rung: RungRecord) -> str:
    return _clean(rung.name) + (" *" if rung.name == record.best else "")


def _layout(record: LadderRecord, total: int) -> Layout:
    """What fits `total` cells. Where room is short gaps shrink to one first, and then columns go, the last needed first."""
    name = min(NAME_WIDTH, max([len("rung"), *(len(_name(record, r)) for r in record.rungs)]))
    shown = [r for r in record.rungs if r.status == "measured" or r.throughput_seq_s is not None]
    content = {c.key: max(map(len, (*c.head, *(c.cell(r) for r in shown)))) for c in COLUMNS}
    columns = list(COLUMNS)
    while True:
        widths = {c.key: content[c.key] + 1 for c in columns}
        droppable = [key for key in NARROW_DROPS if key in widths]
        if name + sum(widths.values()) <= total or not droppable:
            break
        columns = [c for c in columns if c.key != droppable[0]]
    for column in columns:
        if column.gap > 1 and name + sum(widths.values()) < total:
            widths[column.key] += 1
    return Layout(columns, widths, name, total)


def _legend(record: LadderRecord, shown: list[str]) -> str:
    meanings = {
        "best": "* the fastest rung that passes" if record.best else "",
        "spread": "± the repeat furthest from the median",
        "util": "util: time that the device spans, an upper bound",
        "ceiling": "ceil: share of the lower ceiling",
        "parity": "parity: largest logit difference over the logits' spread",
        "accuracy": "accuracy with its 95 % interval",
        "ran": "ran: the precision read back",
        "none": "– not measured",
    }
    return "; ".join(text for key, text in meanings.items() if text and (key in shown or key in ("best", "none"))) + "."


def _wrapped(text: str, width: int, style: str = "") -> list[Text]:
    """`text` in lines of at most `width` cells; wide characters count twice, and no escape code survives."""
    return list(Text(_clean(text), style=style).wrap(Console(width=width), width))


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
