"""`bertopt load`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from bertopt.cli import options
from bertopt.cli.options import option


def load(
    url: Annotated[list[str], option("--url", help="http://HOST:PORT, or NAME=http://...; may be repeated.")],
    data: options.Data = None,
    rate: Annotated[float, typer.Option(help="Requests a second, Poisson; with --find the first that is tried.")] = 50.0,
    seconds: Annotated[float, typer.Option(help="How long each rate is held.")] = 30.0,
    find: Annotated[bool, typer.Option("--find", help="Find the highest rate that keeps the SLO.")] = False,
    slo_ms: Annotated[float, typer.Option(help="99 % of all requests must be answered within it.")] = 200.0,
    texts: Annotated[int, typer.Option(help="Texts of a request.")] = 1,
    limit: Annotated[Optional[int], option("--limit", help="Texts of the file that are used (default: all).")] = None,
    out: Annotated[Optional[Path], option("--out", help="Folder for load.json and load.html (default: none).")] = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
) -> int:
    """Ask a server at a steady rate, whatever it answers, and say what its requests feel.

    Exits with 1 where a rate that was given, or every rate with --find, does not keep the SLO.
    """
    from bertopt import records
    from bertopt.loadtest.report import lines, write_report
    from bertopt.loadtest.run import Wanted, load_test
    from bertopt.progress import progress

    columns = {"text": text_column, "text_pair": text_pair_column}
    command = options.command_line()
    wanted = Wanted(url, data, columns, rate, seconds, slo_ms, find, texts, limit, command=command)
    with progress() as bar:
        record = load_test(wanted, bar.stage)
    print("\n".join(lines(record)))
    if out is not None:
        records.save(record, out / "load.json")
        write_report(record, out / "load.html")
        print(f"\nreport  {out / 'load.html'}\nrecord  {out / 'load.json'}")
    kept = [any(point.within_slo for point in curve.points) for curve in record.curves]
    return 0 if all(kept) else 1
