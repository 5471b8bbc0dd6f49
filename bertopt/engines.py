"""`bertopt build-engine`: finds the model, the texts and the shapes that a plan is built from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertopt import profiles
from bertopt.batching import choose_edges
from bertopt.build import Result, build_plan, choose_target, identify
from bertopt.builders.process import Progress
from bertopt.errors import UsageError
from bertopt.profiles import Profile
from bertopt.tokens import DEFAULT_LENGTH

if TYPE_CHECKING:
    from bertopt.build_int8 import Outcome
    from bertopt.run import Progress as Bar
    from bertopt.text import Requests
    from bertopt.workspace import Workspace

PATHS = ("out", "onnx", "data", "calibration", "reference")  # fields of a recipe
KINDS: dict[str, tuple[type, ...]] = {  # of a recipe's values, by the type of the field; any other is a string
    "int | None": (int,),
    "int": (int,),
    "bool": (bool,),
    "float | None": (float, int),
    "tuple[Profile, ...]": (list,),
}
WINDOW = 1024  # pending requests that bucketing will look at


@dataclass(frozen=True)
class Request:
    """Everything that `bertopt build-engine` can be told."""

    out: Path
    model: str = "demo"
    onnx: Path | None = None  # instead of the model's own export
    random_weights: bool = False
    data: Path | None = None  # texts that FP16 and the shapes are decided by; None: the demo's
    precision: str = "fp16"
    target: str = "auto"
    profiles: tuple[Profile, ...] = ()  # none: from the bucket edges of the texts
    batch_size: int = 32
    sequence_length: int | None = DEFAULT_LENGTH
    tactics: str | None = None  # "all", or "internal": none of cuBLAS and cuDNN
    calibration: Path | None = None  # the cache that INT8 is placed by; None: the demo's
    max_drop: float | None = None  # points that INT8 may lose on the data; None: not gated
    metric: str | None = None  # that loses them; None: from the task
    reference: Path | None = None  # predictions to compare with; None: eager FP32
    budget: float | None = None  # seconds for finding layers to leave in float
    command: str = "bertopt build-engine"  # how to build it again


def build_engine(request: Request, progress: Progress | None = None) -> Result:
    """Find what `request` leaves open, and build the plan, which is not gated.

    Without profiles the bucket edges of the texts decide: the same edges that batching uses. Raises one of
    bertopt.errors; an unfit target is refused before any work.
    """
    found = _find(request)
    if request.precision != "int8":
        return build_plan(found.workspace.canonical(), request.out, precision=request.precision, progress=progress, **found.how)
    from bertopt.build_int8 import calibration_for
    from bertopt.graph.emit import Int8

    calibration, notes = calibration_for(found.workspace, request.model, request.calibration, max_length=found.longest)
    int8 = Int8(calibration, attention=calibration.attention)
    graph = found.workspace.canonical()
    result = build_plan(graph, request.out, precision="int8", int8=int8, progress=progress, **found.how)
    return dataclasses.replace(result, notes=[*notes, *result.notes])


def build_gated(request: Request, progress: Progress | None = None, bar: Bar | None = None) -> Outcome:
    """As `build_engine`, in INT8 that is kept only where it loses no more than `max_drop` on the data."""
    from bertopt.build_int8 import Demand, calibration_for, gated
    from bertopt.calibrating import texts_for
    from bertopt.graph.emit import Int8
    from bertopt.tune import BUDGET_S

    if request.max_drop is None or request.precision != "int8":
        raise UsageError("--max-drop judges an INT8 plan: give --int8 too (bertopt gate judges any other)")
    found = _find(request)
    calibration, notes = calibration_for(found.workspace, request.model, request.calibration, max_length=found.longest)
    demand = Demand(
        found.requests,
        request.max_drop,
        request.metric,
        request.reference,
        BUDGET_S if request.budget is None else request.budget,
        texts_for("demo", None) if request.model == "demo" else None,
    )
    int8 = Int8(calibration, attention=calibration.attention)
    done = gated(found.workspace, request.out, int8, demand, how=found.how, progress=progress, bar=bar)
    return dataclasses.replace(done, notes=[*notes, *done.notes])


@dataclass(frozen=True)
class _Found:
    """What a build needs, with nothing left open."""

    workspace: Workspace
    requests: Requests  # of the whole file
    longest: int  # tokens
    how: dict[str, Any]  # arguments of `build.building`


def _find(request: Request) -> _Found:
    from bertopt import demo
    from bertopt.model import open_checkpoint
    from bertopt.text import read
    from bertopt.tokenization import effective_length
    from bertopt.workspace import Workspace

    if request.precision != "int8" and request.calibration is not None:
        raise UsageError(f"--calibration {request.calibration} is of use to --int8 only")
    choose_target(request.target)
    checkpoint = open_checkpoint(request.model, random_weights=request.random_weights)
    length = effective_length(checkpoint.folder, request.sequence_length, checkpoint.max_positions)
    longest = max([length, *(p.max[1] for p in request.profiles)])
    if longest > checkpoint.max_positions:
        raise UsageError(f"a profile ends at {longest} tokens, and {checkpoint.name} has {checkpoint.max_positions} positions")
    everything = read(request.data) if request.data else demo.texts()
    requests = everything.take(np.arange(min(len(everything), 2 * WINDOW)))
    tokens = checkpoint.tokenizer(longest).encode(requests.texts, requests.pairs)
    edges: tuple[int, ...] = ()
    shapes = request.profiles
    if not shapes:
        window = max(WINDOW, request.batch_size)
        edges = choose_edges(tokens.lengths, length, batch_size=request.batch_size, window=window)
        shapes = profiles.from_edges(edges, request.batch_size)
    how = {
        "target": request.target,
        "profiles": shapes,
        "tokens": tokens,
        "pad_id": checkpoint.pad_id,
        "identity": identify(checkpoint),
        "bucket_edges": edges,
        "tactics": request.tactics,
        "rebuild": request.command,
    }
    return _Found(Workspace(checkpoint, canonical=request.onnx), everything, longest, how)


def load_recipe(path: Path) -> dict[str, Any]:
    """A build recipe (TOML) as fields of `Request`. Raises UsageError where it cannot be read or has an unknown field."""
    try:
        import tomllib
    except ImportError:  # CPython 3.10
        raise UsageError(f"{path}: recipes want Python 3.11 or newer; give the same as options") from None
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read as a recipe: {error}") from None
    known = {f.name: f for f in dataclasses.fields(Request) if f.name != "command"}
    unknown = sorted(found.keys() - known.keys())
    if unknown:
        raise UsageError(f"{path}: there is no {unknown[0]!r} in a recipe, only {', '.join(sorted(known))}")
    for name, value in found.items():
        wanted: tuple[type, ...] = KINDS.get(str(known[name].type), (str,))
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            raise UsageError(f"{path}: {name} = {value!r} is no {wanted[0].__name__}")
    if "profiles" in found:
        found["profiles"] = tuple(profiles.parse(text) for text in found["profiles"])
    return found | {name: Path(found[name]) for name in PATHS if name in found}
