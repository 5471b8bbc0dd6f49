"""`bertopt plan-host`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from bertopt.cli.options import option
from bertopt.errors import UsageError


def plan_host(
    host_ms: Annotated[Optional[float], option("--host-ms", help="What preparing a batch costs one core.")] = None,
    device_ms: Annotated[Optional[float], option("--device-ms", help="What the device needs for it.")] = None,
    run: Annotated[Optional[Path], option("--run", help="A run's folder, in place of the two times.")] = None,
    rung: Annotated[Optional[str], option("--rung", help="Of a ladder's run (default: its best).")] = None,
    cores: Annotated[Optional[int], option("--cores", help="The most workers there are cores for.")] = None,
    lengths: Annotated[Optional[Path], option("--lengths", help="A file of lengths in tokens, a number a line.")] = None,
    bs: Annotated[int, typer.Option("--bs", help="Rows of a batch, for --lengths.")] = 32,
    seq: Annotated[int, typer.Option("--seq", help="Longest sequence in tokens, for --lengths.")] = 128,
    hidden: Annotated[int, typer.Option(help="Width of the encoder, for --lengths.")] = 768,
    intermediate: Annotated[int, typer.Option(help="Width of its feed-forward layers.")] = 3072,
    layers: Annotated[int, typer.Option(help="Its layers.")] = 12,
) -> None:
    """How many workers a device wants, and what padding costs: arithmetic, nothing is run."""
    from bertopt import plan_host as planner

    blocks = []
    if run is not None:
        if host_ms is not None or device_ms is not None:
            raise UsageError("--run and --host-ms with --device-ms exclude each other")
        from bertopt.runs import pipeline_of

        host_ms, device_ms = planner.times_of(pipeline_of(run, rung))
    if (host_ms is None) != (device_ms is None):
        raise UsageError("--host-ms and --device-ms belong together")
    if host_ms is not None and device_ms is not None:
        blocks.append(planner.plan(host_ms, device_ms, cores).lines())
    if lengths is not None:
        if bs < 1 or seq < 1 or min(hidden, intermediate, layers) < 1:
            raise UsageError("--bs, --seq, --hidden, --intermediate and --layers are at least 1")
        found = planner.read_lengths(lengths)
        blocks.append(planner.padding_lines(found, bs, seq, hidden=hidden, intermediate=intermediate, layers=layers))
    if not blocks:
        raise UsageError("give --host-ms and --device-ms, or --run, or --lengths")
    print("\n\n".join("\n".join(block) for block in blocks))
