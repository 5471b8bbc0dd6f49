"""Figures with axes, drawn by matplotlib from plain data and returned as SVG to put into a page.

Text stays text in the page's own font, and every colour is a CSS variable of `_style.css.j2`, so that one figure
serves a light page, a dark one and paper. A figure is drawn at the width of a phone and grows with the page.
"""

from __future__ import annotations

import html
import io
import logging
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# matplotlib wants colours; each stands for a CSS variable until `_to_inline` puts that in its place.
COLOURS = {
    "#010101": "--ink",
    "#020202": "--muted",
    "#030303": "--line",
    "#040404": "--surface",
    "#050505": "--series-1",
    "#060606": "--series-2",
    "#070707": "--series-3",
    "#080808": "--series-4",
    "#090909": "--bar",
}
INK, MUTED, LINE, SURFACE, *SERIES, BAR = COLOURS
DASHES = ("-", (0, (6, 2)), (0, (2, 2)), (0, (6, 2, 1, 2)))  # so that no series is told by its colour alone

POINTS_PER_PIXEL = 0.75
SIZE = (420, 300)  # pixels
FONT_SIZE = 13 * POINTS_PER_PIXEL


@dataclass(frozen=True)
class Series:
    """One line of `lines`; a series of one point is drawn as a level across the figure."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Mark:
    """A labelled vertical line at `x`."""

    x: float
    label: str


def ticks(highest: float, about: int = 5) -> list[float]:
    """Round positions from 0 to `highest`, roughly `about` of them: steps of 1, 2, 2.5 or 5 times a power of ten."""
    if highest <= 0:
        return [0.0]
    raw = highest / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((s * power for s in (1, 2, 2.5, 5, 10)), key=lambda s: abs(math.log(s / raw)))
    return [i * step for i in range(int(highest / step * (1 + 1e-9)) + 1)]


def apart(positions: Sequence[float], gap: float) -> list[float]:
    """`positions` moved as little as it takes for neighbours to lie at least `gap` apart, in the order they had."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    moved = [positions[i] - gap * rank for rank, i in enumerate(order)]
    pools: list[list[float]] = []  # pool adjacent violators: sum and size of each run of labels that touch
    for value in moved:
        pools.append([value, 1.0])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            total, size = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += size
    levels = [total / size for total, size in pools for _ in range(int(size))]
    result = [0.0] * len(positions)
    for rank, i in enumerate(order):
        result[i] = levels[rank] + gap * rank
    return result


def bins(counts: Sequence[int], most: int = 48) -> tuple[list[int], list[int]]:
    """Counts by exact value as at most `most` bins of one whole width: left edges (with the last right one), sums."""
    width = max(1, math.ceil(len(counts) / most))
    edges = list(range(0, len(counts) + width, width))
    return edges, [sum(counts[left : left + width]) for left in edges[:-1]]


def histogram(
    counts: Sequence[int], *, x_label: str, y_label: str, label: str, marks: Sequence[Mark] = (), edges: Sequence[int] = ()
) -> str:
    """`counts[n]` things of size n as bars, with labelled `marks` and, under the axis, the `edges` of buckets.

    `label` says in words what the figure shows, for those who cannot see it.
    """
    lefts, heights = bins(counts)
    right = max([lefts[-1], *(m.x * 1.02 for m in marks)])
    with _axes(x_label, y_label) as (figure, axes):
        width = lefts[1] - lefts[0]
        axes.bar(lefts[:-1], heights, width=width * 0.92, align="edge", color=BAR, linewidth=0)
        top = max([*heights, 1])
        axes.set_ylim(0, top * (1.06 + 0.09 * len(marks)))
        axes.set_xlim(0, right)
        for row, mark in enumerate(sorted(marks, key=lambda m: m.x)):
            height = top * (1.06 + 0.09 * (len(marks) - 1 - row))
            to_right = mark.x < right * 0.7
            axes.plot([mark.x, mark.x], [0, height + top * 0.05], color=INK, linewidth=1, linestyle=DASHES[2])
            axes.annotate(
                mark.label,
                (mark.x, height),
                xytext=(4 if to_right else -4, 0),
                textcoords="offset points",
                ha="left" if to_right else "right",
                va="center",
                color=INK,
                bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 1},
            )
        if edges:
            axes.plot(
                edges,
                [0] * len(edges),
                linestyle="",
                marker="|",
                markersize=9,
                markeredgewidth=1.6,
                color=SERIES[0],
                clip_on=False,
            )
        return _svg(figure, label)


def lines(
    series: Sequence[Series], *, x_label: str, y_label: str, label: str, doubling_x: bool = False, y_top: float | None = None
) -> str:
    """Lines with their names at their right ends. With `doubling_x` the axis is logarithmic to base 2.

    `label` says in words what the figure shows, for those who cannot see it.
    """
    longest = max((len(s.name) for s in series), default=0)
    right = min(12 + 8 * longest, SIZE[0] // 2)  # a generous width for the names at the right ends
    with _axes(x_label, y_label, right) as (figure, axes):
        xs = sorted({x for s in series if len(s.x) > 1 for x in s.x}) or sorted({x for s in series for x in s.x})
        top = (y_top or max((y for s in series for y in s.y), default=1.0)) * 1.08 or 1.0
        axes.set_ylim(0, top)
        if doubling_x:
            axes.set_xscale("log", base=2)
            axes.set_xticks(xs, [f"{x:g}" for x in xs])
            axes.minorticks_off()
        names_at = apart([s.y[-1] for s in series], top * 0.075)
        for i, (one, name_at) in enumerate(zip(series, names_at, strict=True)):
            colour, dash = SERIES[i % len(SERIES)], DASHES[i % len(DASHES)]
            level = len(one.x) == 1
            x, y = ([xs[0], xs[-1]], [one.y[0]] * 2) if level else (one.x, one.y)
            axes.plot(x, y, color=colour, linestyle=dash, linewidth=2, marker="" if level else "o", markersize=4)
            axes.annotate(
                one.name, (1, name_at), xycoords=("axes fraction", "data"), xytext=(6, 0), textcoords="offset points",
                va="center", color=colour, weight="bold", annotation_clip=False,
            )  # fmt: skip
        return _svg(figure, label)


@contextmanager
def _axes(x_label: str, y_label: str, right: int = 8) -> Iterator[tuple[Any, Any]]:
    """A figure with bare axes that end `right` pixels from its edge, within the settings that `_svg` needs when it draws."""
    with _quiet():
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "bertopt",  # the same data gives the same file
        "text.parse_math": False,
        "font.size": FONT_SIZE,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(SIZE[0] / 96, SIZE[1] / 96), dpi=96)
        axes = figure.add_axes((46 / SIZE[0], 46 / SIZE[1], 1 - (46 + right) / SIZE[0], 1 - (46 + 26) / SIZE[1]))
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        axes.set_xlabel(x_label, color=MUTED)
        axes.set_title(y_label, loc="left", color=MUTED, fontsize=FONT_SIZE)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(MUTED)
        axes.tick_params(colors=MUTED, length=0, pad=5)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(axis="y", color=LINE, linewidth=0.8)
        axes.set_axisbelow(True)
        yield figure, axes


def _svg(figure: Any, label: str) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _to_inline(out.getvalue(), label)


def _to_inline(svg: str, label: str) -> str:
    """matplotlib's file as an element of a page: no prologue, ids of its own, CSS colours, the page's font."""
    prefix = f"f{zlib.crc32(svg.encode()):08x}-"
    body = svg[svg.index(">", svg.index("<svg")) + 1 :].strip()
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", body.replace("xlink:href", "href"))
    body = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", body)
    for colour, variable in COLOURS.items():
        body = body.replace(colour, f"var({variable})")
    width, height = (side * POINTS_PER_PIXEL for side in SIZE)
    return f'<svg class="plot" role="img" aria-label="{html.escape(label)}" viewBox="0 0 {width:g} {height:g}">{body}'


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps matplotlib's import from telling about its font cache, or about a home folder that cannot be written.

    It then makes a temporary folder for the process and removes it at exit, which is what is wanted here.
    """
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
