"""`bertopt ladder` and `bertopt report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from bertopt.cli import options
from bertopt.cli.options import option


def ladder(
    model: options.Model = "demo",
    data: options.Data = None,
    bs: options.BatchSize = 32,
    seq: options.Sequence = None,
    limit: options.Limit = None,
    repeats: Annotated[int, typer.Option(help="Passes over the texts per rung, in turn.")] = 3,
    rungs: Annotated[Optional[str], option("--rungs", help="Comma-separated; their parents come along.")] = None,
    ablate: Annotated[bool, typer.Option("--ablate", help="Take each stage away from the best rung in turn.")] = False,
    resume: Annotated[Optional[Path], option("--resume", help="A run's folder: add the rungs that it lacks.")] = None,
    workers: options.Workers = "auto",
    window: options.Window = 1024,
    device: options.DeviceOption = options.Device.auto,
    random_weights: options.RandomWeights = False,
    max_drop: Annotated[float, typer.Option("--max-drop", help="Points of accuracy that lowered precision may cost.")] = 0.5,
    trace: Annotated[bool, typer.Option("--trace", help="Write a Chrome trace of a few batches per rung.")] = False,
    out: Annotated[Optional[Path], option("--out", help="The run's folder (default: runs/<time>-<model>).")] = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = "utf-8",
) -> int:
    """Measure the naive service, then each change on the same texts: what did it bring, and what binds now?

    Exits with 1 where no rung passed its checks.
    """
    from bertopt.climb import climb
    from bertopt.prepare import Climb
    from bertopt.progress import progress
    from bertopt.report import html, terminal

    wanted = Climb(
        model=model,
        data=data,
        columns={"text": text_column, "text_pair": text_pair_column, "label": label_column},
        encoding=encoding,
        batch_size=bs,
        sequence_length=seq,
        limit=limit,
        repeats=repeats,
        window=window,
        rungs=options.names(rungs, "--rungs"),
        ablate=ablate,
        resume=resume,
        workers=options.number_or_auto(workers, "--workers"),
        device=options.chosen_device(device),
        random_weights=random_weights,
        max_drop=max_drop,
        trace=trace,
        out=out,
        command=options.command_line(),
    )
    with progress() as bar:
        record, folder = climb(wanted, bar)
    terminal.print_ladder(record)
    html.write_report(record, folder / "report.html")
    print(f"\nreport  {folder / 'report.html'}\nrecord  {folder / 'ladder.json'}")
    return 0 if record.best else 1


def report(
    run: Annotated[Path, typer.Argument(help="A run's folder or its ladder.json.")],
    out: Annotated[
        Optional[Path], option("--out", help="Where the HTML goes (default: report.html beside the record).")
    ] = None,
) -> None:
    """Print a run again and write its report again, from its JSON."""
    from bertopt.records import load_ladder
    from bertopt.report import html, terminal

    record = load_ladder(run)
    target = out or (run if run.is_dir() else run.parent) / "report.html"
    terminal.print_ladder(record)
    html.write_report(record, target)
    print(f"\nreport  {target}")
