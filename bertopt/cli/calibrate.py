"""`bertopt calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from bertopt.cli import options
from bertopt.cli.options import option


def calibrate(
    model: options.Model = "demo",
    data: Annotated[Optional[Path], option("--data", "-d", help="Calibration texts (demo: those that trained it).")] = None,
    samples: Annotated[Optional[int], option("--samples", help="Texts, spread evenly over the file (default: 512).")] = None,
    method: Annotated[Optional[str], option("--method", help="minmax, percentile, entropy or mse (default: minmax).")] = None,
    smooth: Annotated[
        Optional[float], option("--smooth", help="Strength of moving outliers into weights, 0 (off) to 1 (default: 0.95).")
    ] = None,
    attention: Annotated[bool, typer.Option("--attention", help="Ranges for the products of attention too.")] = False,
    seq: Annotated[Optional[int], option("--seq", help="Longest text in tokens (default: 128 or the model's).")] = None,
    recipe: Annotated[Optional[Path], option("--recipe", help="A TOML file with any of these; options win over it.")] = None,
    evaluation: Annotated[Optional[Path], option("--eval", help="Report rows of this file that were calibrated with.")] = None,
    out: Annotated[Optional[Path], option("--out", help="The cache (default: calibration/<model>.json).")] = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.PairColumn = None,
    encoding: options.Encoding = "utf-8",
) -> None:
    """Observe every layer on real texts, and keep the ranges for INT8 in a small file for review."""
    from bertopt import calibrating
    from bertopt.calibration import load_recipe
    from bertopt.progress import progress

    given: dict[str, Any] = {
        "samples": samples,
        "method": method,
        "smooth": smooth,
        "attention": attention or None,
        "max_length": seq,
    }
    chosen = (load_recipe(recipe) if recipe else {}) | {name: value for name, value in given.items() if value is not None}
    reading = {"text": text_column, "text_pair": text_pair_column, "encoding": encoding}
    with progress() as bar:
        bar.stage("exporting the graph")
        told = 0

        def tell(done: int, total: int) -> None:
            nonlocal told
            if not told:
                bar.stage("observing layers")
                bar.total(total)
            bar.advance(done - told)
            told = done

        seen = calibrating.run(model, data, out, evaluation=evaluation, reading=reading, progress=tell, **chosen)
    print("\n".join(seen.lines()))
