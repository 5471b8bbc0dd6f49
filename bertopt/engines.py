"""`bertopt build-engine`: finds the model, the texts and the shapes that a plan is built from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertopt import profiles
from bertopt.batching import choose_edges
from bertopt.build import Result, build_plan, choose_target, identify
from bertopt.builders.process import Progress
from bertopt.errors import UsageError
from bertopt.profiles import Profile

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
    sequence_length: int | None = 128
    tactics: str | None = None  # "all", or "internal": none of cuBLAS and cuDNN
    command: str = "bertopt build-engine"  # how to build it again


def build_engine(request: Request, progress: Progress | None = None) -> Result:
    """Find what `request` leaves open, and build the plan.

    Without profiles the bucket edges of the texts decide: the same edges that batching uses. Raises one of
    bertopt.errors; an unfit target is refused before any work.
    """
    from bertopt import demo
    from bertopt.model import open_checkpoint
    from bertopt.text import read
    from bertopt.tokenization import effective_length, load_tokenizer
    from bertopt.workspace import Workspace

    choose_target(request.target)
    checkpoint = open_checkpoint(request.model, random_weights=request.random_weights)
    length = effective_length(checkpoint.folder, request.sequence_length, checkpoint.max_positions)
    longest = max([length, *(p.max[1] for p in request.profiles)])
    if longest > checkpoint.max_positions:
        raise UsageError(f"a profile ends at {longest} tokens, and {checkpoint.name} has {checkpoint.max_positions} positions")
    requests = read(request.data) if request.data else demo.texts()
    requests = requests.take(np.arange(min(len(requests), 2 * WINDOW)))
    tokenizer = load_tokenizer(checkpoint.folder, max_length=longest, model_type=checkpoint.model_type)
    tokens = tokenizer.encode(requests.texts, requests.pairs)
    edges: tuple[int, ...] = ()
    shapes = request.profiles
    if not shapes:
        window = max(WINDOW, request.batch_size)
        edges = choose_edges(tokens.lengths, length, batch_size=request.batch_size, window=window)
        shapes = profiles.from_edges(edges, request.batch_size)
    return build_plan(
        Workspace(checkpoint, canonical=request.onnx).canonical(),
        request.out,
        target=request.target,
        precision=request.precision,
        profiles=shapes,
        tokens=tokens,
        pad_id=checkpoint.pad_id,
        identity=identify(checkpoint),
        bucket_edges=edges,
        tactics=request.tactics,
        rebuild=request.command,
        progress=progress,
    )


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
        wanted = {"int | None": int, "int": int, "bool": bool, "tuple[Profile, ...]": list}.get(str(known[name].type), str)
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise UsageError(f"{path}: {name} = {value!r} is no {wanted.__name__}")
    if "profiles" in found:
        found["profiles"] = tuple(profiles.parse(text) for text in found["profiles"])
    return found | {name: Path(found[name]) for name in ("out", "onnx", "data") if name in found}
