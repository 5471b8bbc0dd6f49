"""When INT8 fails its gate: the fewest groups of layers to leave in float, found on calibration rows and judged once.

Groups are ranked by what quantizing each of them alone does to the logits. Errors of layers are nearly independent, so the
worst are left in float one after the other until the calibration rows answer nearly as they do in float; how many that takes
is found by bisection. The evaluation rows are seen once, at the end: choosing by them would spend what they prove.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bertopt.errors import UsageError

if TYPE_CHECKING:
    import onnx

    from bertopt.calibration import Calibration
    from bertopt.text import Requests
    from bertopt.workspace import Workspace

BUDGET_S = 300.0
RANKING_SHARE = 0.7  # of the budget; the rest finds how many groups it takes
BETTER = 0.5  # of the error of INT8 everywhere, which failed, is what may be left of it
PROXY_ROWS = 256
LISTED = 5

Logits = NDArray[np.float32]


class Verdict(Protocol):
    """What the gate answers (gate.GateVerdict)."""

    @property
    def verdict(self) -> str: ...


@dataclass(frozen=True)
class Trial:
    """One graph that was run on the calibration rows."""

    what: str
    error: float  # root mean square of the logits' change, relative to their spread
    changed: float | None  # share of labels that changed; None where logits are no labels


@dataclass(frozen=True)
class Tuned:
    """What was found, and what was tried for it."""

    outcome: str  # "kept", "slower", "nothing found", or the gate's answer: "failed", "inconclusive"
    left: list[str]  # groups that stay in float, the worst first
    sites: list[str]  # theirs: what `graph.quantize.quantize` takes as `leave`
    precisions: dict[str, str]  # group -> "int8" or "float"
    verdict: Verdict | None  # of the evaluation rows; None: not judged
    speedup: float | None  # over FP16; None: not measured
    ranking: dict[str, float]  # group -> error of quantizing it alone, the worst first
    trials: list[Trial]
    unranked: int  # groups that the budget did not reach
    seconds: float
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people: what was tried, what was found, and what came of it."""
        worst = ", ".join(f"{name} {error:.3f}" for name, error in list(self.ranking.items())[:LISTED])
        short = f"; {self.unranked} were not reached within the budget" if self.unranked else ""
        lines = [f"INT8 everywhere: {_describe(self.trials[0])}"]
        lines.append(f"{len(self.ranking)} groups ranked by the error of each alone: {worst}{short}")
        lines += [f"tried {trial.what}: {_describe(trial)}" for trial in self.trials if trial.what.endswith("in float")]
        if self.left:
            lines.append(f"left in float: {', '.join(self.left)} ({len(self.left)} of {len(self.precisions)} groups)")
        return [*lines, f"{len(self.trials)} graphs tried in {self.seconds:.0f} s", *self.notes]


def tune(
    groups: Mapping[str, Sequence[str]],
    float_logits: Logits,
    logits: Callable[[Collection[str]], Logits],
    judge: Callable[[Collection[str]], Verdict],
    speedup: Callable[[Collection[str]], float | None],
    *,
    max_drop: float,
    classes: bool = True,
    min_speedup: float = 1.0,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.monotonic,
) -> Tuned:
    """Leave the fewest groups in float, and keep the result if it passes and is faster than FP16.

    `groups` are names of sites by the name of their group. `float_logits` [rows, outputs] are of calibration rows in float,
    `logits(leave)` of the same rows with INT8 everywhere but at those sites. `judge(leave)` runs the gate on the evaluation
    rows: called once at most. `speedup(leave)` is the speed over FP16, None where it cannot be measured. `max_drop` in
    points is what the gate allows: so many hundredths of labels may change on the calibration rows. `classes`: the logits'
    largest is the label.

    Raises UsageError without groups or time.
    """
    if not groups or budget_s <= 0:
        raise UsageError(f"tuning wants groups of layers and a budget above 0, and got {len(groups)} and {budget_s:g} s")
    start = clock()
    everything = {site for sites in groups.values() for site in sites}
    trials: list[Trial] = []

    def attempt(what: str, leave: Collection[str]) -> Trial:
        trials.append(_trial(what, float_logits, logits(leave), classes))
        return trials[-1]

    whole = attempt("all groups in INT8", frozenset())
    errors: dict[str, float] = {}
    for name, sites in groups.items():
        if clock() - start > RANKING_SHARE * budget_s:
            break
        errors[name] = attempt(f"only {name} in INT8", everything.difference(sites)).error
    ranking = dict(sorted(errors.items(), key=lambda item: -item[1]))
    order = [*ranking, *(name for name in groups if name not in ranking)]

    def sites_of(count: int) -> list[str]:
        return list(dict.fromkeys(site for name in order[:count] for site in groups[name]))

    def good(count: int) -> bool:
        found = attempt(f"{count} of {len(order)} groups in float", frozenset(sites_of(count)))
        return found.error <= BETTER * whole.error and (found.changed is None or found.changed <= max_drop / 100)

    low, high = 1, len(order)  # all of them in float is FP16
    while low < high and clock() - start < budget_s:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle + 1, high)
    number = high if high < len(order) else 0

    def result(outcome: str, note: str, verdict: Verdict | None = None, speed: float | None = None) -> Tuned:
        left = order[:number]
        return Tuned(
            outcome=outcome,
            left=left,
            sites=sites_of(number),
            precisions={name: "float" if name in left else "int8" for name in groups},
            verdict=verdict,
            speedup=speed,
            ranking=ranking,
            trials=trials,
            unranked=len(groups) - len(ranking),
            seconds=clock() - start,
            notes=[note],
        )

    if not number:
        return result("nothing found", f"no part of the network in INT8 was good enough within {budget_s:g} s: take FP16")
    speed = speedup(frozenset(sites_of(number)))
    if speed is not None and speed <= min_speedup:
        return result(
            "slower", f"{speed:.2f}x the speed of FP16, and more than {min_speedup:g}x is wanted: take FP16", None, speed
        )
    verdict = judge(frozenset(sites_of(number)))
    if verdict.verdict != "passed":
        return result(verdict.verdict, f"the gate on the evaluation rows: {verdict.verdict}; take FP16", verdict, speed)
    how_fast = "its speed was not measured" if speed is None else f"{speed:.2f}x the speed of FP16"
    return result("kept", f"the gate on the evaluation rows: passed, {how_fast}", verdict, speed)


def groups_of(model: onnx.ModelProto) -> dict[str, list[str]]:
    """The sites of a canonical graph by layer and part ("layer 3 down"); down projections first, as the likeliest to harm."""
    from bertopt.graph.half import layer_group
    from bertopt.graph.linears import sites

    found: dict[str, list[str]] = {}
    for site in sorted(sites(model), key=lambda site: site.kind != "down"):
        part = found.setdefault(f"{layer_group(site.name)} {site.kind}", [])
        if site.name not in part:
            part.append(site.name)
    return found


def proxy_logits(
    workspace: Workspace, calibration: Calibration, requests: Requests, *, rows: int = PROXY_ROWS, attention: bool = False
) -> tuple[Logits, Callable[[Collection[str]], Logits]]:
    """`float_logits` and `logits` of `tune` on the CPU: OpenVINO runs the same Q/DQ graph that TensorRT reads.

    `requests` are calibration rows, of which up to `rows` are taken, spread evenly.
    """
    from bertopt.backends import openvino
    from bertopt.backends.base import Artifact, Options
    from bertopt.batching import Dynamic, batches
    from bertopt.graph.emit import Int8, emit
    from bertopt.run import logits_of

    checkpoint = workspace.checkpoint
    chosen = requests.take(np.unique(np.linspace(0, len(requests) - 1, min(rows, len(requests))).astype(np.int64)))
    tokenizer = checkpoint.tokenizer(calibration.max_length)
    tokens = tokenizer.encode(chosen.texts, chosen.pairs)
    order = np.argsort(tokens.lengths, kind="stable")
    grouped = list(batches([tokens.take(order)], Dynamic(32)))

    def run(artifact: Artifact) -> Logits:
        with openvino.open(artifact, Options(pad_id=checkpoint.pad_id)) as session:
            return logits_of(session, grouped, len(chosen))

    def logits(leave: Collection[str]) -> Logits:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "int8.onnx")
            int8 = Int8(calibration, leave=leave, attention=attention)
            made: Any = emit(workspace.canonical(), path, "openvino", precision="int8", int8=int8).placement
            return run(Artifact(path, "int8", checkpoint.uses_type_ids, {"int8_linears": made.quantized_linears}))

    precision = openvino.half_precision() or "fp32"  # what runs around INT8
    return run(Artifact(workspace.canonical(), precision, checkpoint.uses_type_ids)), logits


def _trial(what: str, right: Logits, found: Logits, classes: bool) -> Trial:
    if not np.isfinite(found).all():
        return Trial(what, float("inf"), 1.0 if classes else None)
    moved = found.astype(np.float64) - right
    error = float(np.sqrt((moved**2).mean()) / (right.std() or 1.0))
    return Trial(what, error, float((found.argmax(axis=-1) != right.argmax(axis=-1)).mean()) if classes else None)


def _describe(trial: Trial) -> str:
    labels = "" if trial.changed is None else f", {trial.changed:.2%} of labels change"
    return f"logits move by {trial.error:.3f} of their spread{labels} on the calibration rows"
