"""`bertopt compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from bertopt.cli import options
from bertopt.cli.options import option
from bertopt.errors import UsageError


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or their JSON; the first is what others are held against.")
    ],
    rung: Annotated[Optional[str], option("--rung", help="Of ladders (default: the best of each).")] = None,
    price_per_hour: Annotated[
        Optional[str], option("--price-per-hour", help="Of a machine: one price, or one for each run, comma-separated.")
    ] = None,
    unlike: Annotated[bool, typer.Option("--unlike", help="Compare also what did other work, and say what differs.")] = False,
    out: Annotated[Optional[Path], option("--out", help="The comparison's folder (default: runs/<time>-compare).")] = None,
) -> None:
    """Runs side by side: phases, throughput, utilization, power, cost, verdicts, and what differs in their environments."""
    from rich.console import Console
    from rich.table import Table

    from bertopt import compare as comparing
    from bertopt.outputs import new_folder
    from bertopt.report import compare as report

    folder = out or new_folder("compare")
    record = comparing.compare(
        runs, rung=rung, prices=_prices(price_per_hour), unlike=unlike, command=options.command_line(), out=folder
    )
    report.write_report(record, folder / "report.html")
    console = Console()
    if not console.is_terminal:
        console = Console(width=40 + 34 * len(record.sides))
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for side in record.sides:
        table.add_column(side.run, justify="right", overflow="fold")
    for name, cells in comparing.rows(record):
        table.add_row(name, *cells)
    console.print(comparing.headline(record), highlight=False)
    console.print(table)
    for title, found in (("Other work", record.unlike), ("Other environment", record.environment)):
        if found:
            console.print(f"\n{title}:", highlight=False)
        for difference in found:
            console.print(f"  {difference.name}: {' | '.join(difference.values)}", highlight=False, markup=False)
    print(f"\nreport  {folder / 'report.html'}\nrecord  {folder / 'compare.json'}")


def _prices(text: str | None) -> list[float]:
    try:
        return [float(word) for word in (text or "").split(",") if word.strip()]
    except ValueError:
        raise UsageError(f"--price-per-hour {text}: a number, or one for each run, comma-separated") from None
