"""`bertopt diagnose`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from bertopt.cli import options
from bertopt.cli.options import option


def diagnose(
    model: options.Model = "demo",
    data: options.Data = None,
    bs: options.BatchSize = 32,
    seq: options.Sequence = None,
    limit: options.Limit = None,
    rung: Annotated[
        Optional[str], option("--rung", help="The ladder's rung whose pipeline is looked at (default: baseline).")
    ] = None,
    plan: Annotated[
        Optional[Path], option("--plan", help="A built plan, served with length buckets and workers ahead.")
    ] = None,
    after: Annotated[Optional[Path], option("--after", help="An earlier diagnosis: say whether its prediction held.")] = None,
    repeats: Annotated[int, typer.Option(help="Timed passes over the texts.")] = 3,
    workers: options.Workers = "auto",
    window: options.Window = 1024,
    device: options.DeviceOption = options.Device.auto,
    random_weights: options.RandomWeights = False,
    out: Annotated[Optional[Path], option("--out", help="The run's folder (default: runs/<time>-diagnose-<model>).")] = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = "utf-8",
) -> int:
    """What bounds this service, on what evidence, and what to try next, in under two minutes.

    Exits with 3 where no verdict could be given.
    """
    from bertopt.diagnose import card
    from bertopt.diagnose.live import Wanted
    from bertopt.diagnose.live import diagnose as run
    from bertopt.prepare import Climb
    from bertopt.progress import progress
    from bertopt.report import diagnosis

    climb = Climb(
        model=model,
        data=data,
        columns={"text": text_column, "text_pair": text_pair_column, "label": label_column},
        encoding=encoding,
        batch_size=bs,
        sequence_length=seq,
        limit=limit,
        repeats=repeats,
        window=window,
        workers=options.number_or_auto(workers, "--workers"),
        device=options.chosen_device(device),
        random_weights=random_weights,
        out=out,
        command=options.command_line(),
    )
    with progress() as bar:
        record, folder = run(Wanted(climb, rung, plan, after), bar)
    diagnosis.write_report(record, folder / "report.html")
    print("\n".join(card.lines(record)))
    print(f"\nreport  {folder / 'report.html'}\nrecord  {folder / 'diagnosis.json'}")
    return 3 if record.first.verdict == "INCONCLUSIVE" else 0
