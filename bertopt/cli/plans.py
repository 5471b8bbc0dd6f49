"""`bertopt build-engine` and `bertopt plan show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from bertopt.cli import options
from bertopt.cli.options import option
from bertopt.errors import UsageError

DEFAULT_OUT = Path("engines/model.plan")
plan = typer.Typer(help="What a built plan is.", no_args_is_help=True, rich_markup_mode=None)


def build_engine(
    model: Annotated[Optional[str], option("--model", "-m", help="A folder, a hub name, or `demo` (default: demo).")] = None,
    onnx: Annotated[Optional[Path], option("--onnx", help="A graph in place of the model's own export.")] = None,
    fp16: Annotated[
        bool, typer.Option("--fp16", help="Half precision: FP16, or BF16 on a CPU that has it (the default).")
    ] = False,
    fp32: Annotated[bool, typer.Option("--fp32", help="Full precision.")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="INT8 by a calibration cache (bertopt calibrate).")] = False,
    calibration: Annotated[Optional[Path], option("--calibration", help="The cache that INT8 is placed by.")] = None,
    max_drop: Annotated[
        Optional[float], option("--max-drop", help="Keep INT8 only if it loses at most so many points on --data.")
    ] = None,
    metric: Annotated[
        Optional[str], option("--metric", help="What may not drop (default: accuracy, or as bertopt gate has it).")
    ] = None,
    reference: Annotated[
        Optional[Path], option("--reference", help="Predictions to compare with (default: eager FP32, which wants torch).")
    ] = None,
    budget: Annotated[
        Optional[float], option("--budget", help="Seconds for finding layers to leave in float (default: 300).")
    ] = None,
    target: Annotated[
        Optional[str], option("--target", help="auto, tensorrt, tensorrt-rtx or openvino (default: auto).")
    ] = None,
    low: Annotated[Optional[str], option("--min", help="Smallest shape of a profile, ROWSxLENGTH: 1x16.")] = None,
    best: Annotated[Optional[str], option("--opt", help="The shape that it is tuned for: 32x128.")] = None,
    high: Annotated[Optional[str], option("--max", help="Its largest shape: 64x256.")] = None,
    profile: Annotated[Optional[list[str]], option("--profile", help="One more profile, MIN:OPT:MAX; may be repeated.")] = None,
    bs: Annotated[
        Optional[int], option("--bs", help="Rows of a batch, where profiles come from the texts (default: 32).")
    ] = None,
    seq: Annotated[Optional[int], option("--seq", help="Longest sequence, likewise (default: 128).")] = None,
    data: options.Data = None,
    recipe: Annotated[Optional[Path], option("--recipe", help="A TOML file with any of these; options win over it.")] = None,
    tactics: Annotated[Optional[str], option("--tactics", help="all, or internal: none of cuBLAS and cuDNN.")] = None,
    random_weights: options.RandomWeights = False,
    out: Annotated[Optional[Path], option("--out", help=f"The plan (default: {DEFAULT_OUT}).")] = None,
) -> int:
    """Build a plan: TensorRT where it can build, else OpenVINO, with a manifest that says what it is.

    With --max-drop it exits with 1 where INT8 fails, and no plan is kept, and with 3 where the rows do not decide.
    """
    from bertopt.engines import Request, build_engine, build_gated, load_recipe
    from bertopt.profiles import from_options
    from bertopt.progress import progress

    asked = [name for name, given in {"fp16": fp16, "fp32": fp32, "int8": int8}.items() if given]
    if len(asked) > 1:
        raise UsageError(f"--{asked[0]} and --{asked[1]} exclude each other")
    given: dict[str, Any] = {
        "model": model,
        "onnx": onnx,
        "precision": asked[0] if asked else None,
        "calibration": calibration,
        "max_drop": max_drop,
        "metric": metric,
        "reference": reference,
        "budget": budget,
        "target": target,
        "profiles": from_options(low, best, high, profile or ()) or None,
        "batch_size": bs,
        "sequence_length": seq,
        "data": data,
        "tactics": tactics,
        "random_weights": random_weights or None,
        "out": out,
    }
    chosen = (load_recipe(recipe) if recipe else {}) | {name: value for name, value in given.items() if value is not None}
    request = Request(**{"out": DEFAULT_OUT} | chosen, command=options.command_line())
    with progress() as bar:
        if request.max_drop is None:
            done, code = build_engine(request, bar.tick).lines(), 0
        else:
            outcome = build_gated(request, bar.tick, bar)
            done, code = outcome.lines(), outcome.exit_code
    print("\n".join(done))
    return code


@plan.command("show")
def show(file: Annotated[Path, typer.Argument(help="A plan that bertopt built.")]) -> None:
    """Print a plan's manifest, and fail where the plan cannot be used on this machine."""
    from bertopt.plan import show as lines

    for line in lines(file):
        print(line)
