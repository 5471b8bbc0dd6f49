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
) -> None:
    """Build a plan: TensorRT where it can build, else OpenVINO, with a manifest that says what it is."""
    from bertopt.engines import Request, build_engine, load_recipe
    from bertopt.profiles import from_options
    from bertopt.progress import progress

    if fp16 and fp32:
        raise UsageError("--fp16 and --fp32 exclude each other")
    given: dict[str, Any] = {
        "model": model,
        "onnx": onnx,
        "precision": "fp32" if fp32 else "fp16" if fp16 else None,
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
        result = build_engine(request, lambda seconds, doing: bar.tick(seconds, doing))
    print("\n".join(result.lines()))


@plan.command("show")
def show(file: Annotated[Path, typer.Argument(help="A plan that bertopt built.")]) -> None:
    """Print a plan's manifest, and fail where the plan cannot be used on this machine."""
    from bertopt.plan import show as lines

    for line in lines(file):
        print(line)
