"""The ladder as data: a pipeline is one choice for each stage, a rung replaces named stages of its parent's pipeline.

A new rung is a new row of RUNGS. Nothing here runs anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bertopt.errors import UsageError

STAGES = ("tokenizer", "feed", "batching", "backend", "precision")


@dataclass(frozen=True)
class Pipeline:
    """One choice for each stage from raw text to answers."""

    tokenizer: str = "reference"  # "reference" (pure Python where there is one) or "fast" (Rust)
    feed: str = "serial"  # "serial" or "workers": ahead of compute, pinned buffers, two batches in flight
    batching: str = "fixed"  # "fixed", "dynamic", "bucketed" or "packed"
    backend: str = "eager"  # a module of bertopt.backends
    precision: str = "fp32"  # "half" is the one that the device has: FP16 on a GPU, BF16 or FP16 on a CPU


@dataclass(frozen=True)
class Rung:
    """A row of the ladder."""

    name: str
    summary: str
    parent: str | None
    replaces: dict[str, str] = field(default_factory=dict)  # stage -> choice; "plan" is the device's plan back end
    optional: bool = False  # only with --rungs
    gated: bool = False  # its answers are expected to change, so it is the best only behind the accuracy gate
    devices: tuple[str, ...] = ("cpu", "cuda")


PLAN_BACKEND = {"cpu": "openvino", "cuda": "tensorrt"}

RUNGS: tuple[Rung, ...] = (
    Rung("baseline", "the naive service: pure-Python tokenizer, one length for all, blocking copies, eager FP32", None),
    Rung("fast-tokenizer", "the Rust tokenizer, a whole batch a call", "baseline", {"tokenizer": "fast"}),
    Rung("prefetch", "workers tokenize ahead; pinned buffers, copies beside compute", "fast-tokenizer", {"feed": "workers"}),
    Rung("bucketed", "rows of like length share a batch, padded to a few fixed edges", "prefetch", {"batching": "bucketed"}),
    Rung("onnx", "exported, fused, run by ONNX Runtime in FP32", "bucketed", {"backend": "onnxruntime"}),
    Rung(
        "onnx-fp16",
        "the fused graph in FP16",
        "bucketed",
        {"backend": "onnxruntime", "precision": "half"},
        optional=True,
        devices=("cuda",),
    ),
    Rung("tf32", "eager with TF32 products", "bucketed", {"precision": "tf32"}, optional=True, devices=("cuda",)),
    Rung("fp16", "a built plan in half precision", "bucketed", {"backend": "plan", "precision": "half"}),
    Rung("int8", "a built plan in INT8, behind the gate", "bucketed", {"backend": "plan", "precision": "int8"}, gated=True),
    Rung(
        "packed",
        "no padding at all: sequences end to end, variable-length attention",
        "prefetch",
        {"batching": "packed", "backend": "packed", "precision": "half"},
    ),
    Rung("packed-fp8", "its products in FP8, behind the gate", "packed", {"precision": "fp8"}, gated=True, devices=("cuda",)),
)


def rungs_for(device: str, names: Iterable[str] | None = None, table: Sequence[Rung] = RUNGS) -> list[Rung]:
    """The default ladder, or the named rungs with the parents that they are compared with, in the table's order.

    Raises UsageError for a name that is not in the table, or that the device has not.
    """
    known = {rung.name: rung for rung in table}
    if names is None:
        return [rung for rung in table if not rung.optional and device in rung.devices]
    wanted = {"baseline"}
    for name in names:
        if name not in known:
            raise UsageError(f"there is no rung {name!r}; there are {', '.join(known)}")
        if device not in known[name].devices:
            raise UsageError(f"the rung {name} is for {' and '.join(known[name].devices)} only, and this run is on {device}")
        step: str | None = name
        while step is not None:
            wanted.add(step)
            step = known[step].parent
    return [rung for rung in table if rung.name in wanted]


def pipeline(rung: Rung, device: str, table: Sequence[Rung] = RUNGS) -> Pipeline:
    """The rung's whole pipeline on this device: its parents' choices with its own on top."""
    known = {r.name: r for r in table}
    chain = [rung]
    while (parent := chain[-1].parent) is not None:
        chain.append(known[parent])
    choices: dict[str, str] = {}
    for step in reversed(chain):
        choices.update(step.replaces)
    if choices.get("backend") == "plan":
        choices["backend"] = PLAN_BACKEND[device]
    return Pipeline(**choices)


def ablations(best: Rung, device: str, table: Sequence[Rung] = RUNGS) -> list[Rung]:
    """The best rung with each stage in turn put back to the baseline's; what each is worth where the others are in place.

    Without its back end a rung has no lowered precision either, so those two go together.
    """
    full = pipeline(best, device, table)
    rows = []
    for stage in STAGES:
        default = getattr(Pipeline(), stage)
        if getattr(full, stage) == default or stage == "precision":
            continue
        back = {stage: default} | ({"precision": "fp32"} if stage == "backend" else {})
        if full.batching == "packed" and stage in ("batching", "backend"):
            back = {"batching": "fixed", "backend": "eager", "precision": "fp32"}  # a packed back end takes packed batches only
        rows.append(Rung(f"{best.name} without {stage}", f"the best rung with the {stage} of the baseline", best.name, back))
    return rows


def as_stages(choice: Pipeline) -> dict[str, str]:
    return dataclasses.asdict(choice)
