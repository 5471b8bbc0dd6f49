"""`bertopt sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from bertopt.cli import options
from bertopt.cli.options import option
from bertopt.errors import UsageError


def sweep(
    model: options.Model = "demo",
    data: options.Data = None,
    bs: Annotated[str, typer.Option("--bs", help="Batch sizes; '1,2,4,...,256' doubles from 1 to 256.")] = "1,2,4,...,256",
    seq: Annotated[Optional[str], option("--seq", help="Longest sequences in tokens, comma-separated (default: 128).")] = None,
    rungs: Annotated[str, typer.Option("--rungs", help="The ladder's rungs whose pipelines are swept.")] = "prefetch",
    limit: options.Limit = None,
    repeats: Annotated[int, typer.Option(help="Passes over the texts per batch size.")] = 3,
    workers: options.Workers = "auto",
    window: options.Window = 1024,
    knee: Annotated[float, typer.Option(help="Share of speed that a larger batch must bring to be worth it.")] = 0.1,
    bisect: Annotated[int, typer.Option(help="Where memory ends: steps to the largest batch that fits, 0 for none.")] = 4,
    device: options.DeviceOption = options.Device.auto,
    random_weights: options.RandomWeights = False,
    out: Annotated[Optional[Path], option("--out", help="The run's folder (default: runs/<time>-sweep-<model>).")] = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = "utf-8",
) -> None:
    """Throughput, latency, utilization, memory and power over batch size: where the gain ends, and where memory does."""
    from bertopt import sweep as sweeping
    from bertopt.prepare import Climb
    from bertopt.progress import progress
    from bertopt.report import sweep as report

    climb = Climb(
        model=model,
        data=data,
        columns={"text": text_column, "text_pair": text_pair_column, "label": label_column},
        encoding=encoding,
        limit=limit,
        repeats=repeats,
        window=window,
        workers=options.number_or_auto(workers, "--workers"),
        device=options.chosen_device(device),
        random_weights=random_weights,
        out=out,
        command=options.command_line(),
    )
    wanted = sweeping.Wanted(
        climb,
        numbers(bs, "--bs"),
        numbers(seq, "--seq") if seq is not None else (),
        options.names(rungs, "--rungs") or (),
        knee,
        bisect,
    )
    with progress() as bar:
        record, folder = sweeping.sweep(wanted, bar)
    report.write_report(record, folder / "report.html")
    print("\n".join(sweeping.lines(record)))
    print(f"\nreport  {folder / 'report.html'}\nrecord  {folder / 'sweep.json'}")


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """A list of whole numbers; '...' goes on doubling up to the number after it. Raises UsageError where it is none."""
    found: list[int] = []
    words = [word.strip() for word in text.split(",")]
    for at, word in enumerate(words):
        if word in ("...", "…"):
            if not found or at + 1 == len(words) or not words[at + 1].isdigit():
                raise UsageError(f"{flag} {text}: '...' stands between two numbers")
            while 2 * found[-1] < int(words[at + 1]):
                found.append(2 * found[-1])
        elif word.isdigit() and int(word) > 0:
            found.append(int(word))
        else:
            raise UsageError(f"{flag} {text}: {word!r} is no whole number above 0")
    return tuple(dict.fromkeys(found))
