"""`bertopt export`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from bertopt.cli.options import option


class Target(str, Enum):
    bundle = "bundle"
    triton = "triton"
    ray = "ray"


def export(
    run: Annotated[Path, typer.Argument(help="A run's folder or its ladder.json, or a plan that bertopt built.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")] = Path("bundle"),
    rung: Annotated[Optional[str], option("--rung", help="The rung to export (default: the run's best).")] = None,
    target: Annotated[
        Target, typer.Option("--target", help="A bundle, or the same laid out for another engine.")
    ] = Target.bundle,
    model: Annotated[Optional[str], option("--model", "-m", help="Where the model lies now (default: as in the run).")] = None,
    calibration: Annotated[
        Optional[Path], option("--calibration", help="The INT8 calibration (default: the one that the rung was measured with).")
    ] = None,
) -> None:
    """Write the best rung as one folder that answers texts: model, tokenizer, labels, bucket edges and hashes."""
    from bertopt.bundle import described
    from bertopt.exporting import Wanted, export
    from bertopt.progress import progress

    with progress() as bar:
        wanted = Wanted(run, out, rung, model, calibration)
        if target is Target.bundle:
            lines = described(export(wanted, bar.stage).manifest)
        else:
            from bertopt.targets import export_target

            lines = export_target(target.value, wanted, bar.stage)
    print("\n".join([*lines, f"\n{target.value}  {out}"]))
