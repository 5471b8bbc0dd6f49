"""INT8 plans behind the accuracy gate: built, judged, given layers back to float where that mends them, else not kept.

Where the plan's own library runs here, the plan itself answers the evaluation rows. Where it does not, the graph that it was
built from stands in on the CPU, and the verdict says so: such a plan is never called passed in its manifest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import statistics
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertopt import calibration as caches
from bertopt.build import Made, Result, building
from bertopt.builders import BUILDERS
from bertopt.builders.process import Progress
from bertopt.calibration import Calibration
from bertopt.errors import DataError, UsageError
from bertopt.gate import GateVerdict, judge, load_predictions, refuse_untrained, stamp, verdict_lines
from bertopt.gate.verdict import EXIT_CODES, FAILED, INCONCLUSIVE, PASSED
from bertopt.gating import default_metric
from bertopt.predict import predict_checkpoint, predict_plan, served_by
from bertopt.text import Requests, split
from bertopt.tune import BUDGET_S, Tuned, groups_of, proxy_logits, tune

if TYPE_CHECKING:
    from bertopt import run
    from bertopt.gate import Predictions
    from bertopt.graph.emit import Int8
    from bertopt.workspace import Workspace

RANKING_ROWS = 0.15  # of the evaluation set, which rank layers, and are not judged by, where there are no calibration texts
TIMED_BATCHES, PASSES = 40, 5


@dataclass(frozen=True)
class Demand:
    """What an INT8 plan must reach."""

    requests: Requests  # that it is judged on
    max_drop: float  # points
    metric: str | None = None  # None: from the task and whether there are labels
    reference: Path | None = None  # predictions; None: eager FP32
    budget_s: float = BUDGET_S  # for finding layers to leave in float
    ranking: Requests | None = None  # calibration texts, by which layers are ranked


@dataclass(frozen=True)
class Outcome:
    """A plan that was kept, or none, and the gate's last word."""

    result: Result | None
    verdict: GateVerdict
    tuned: Tuned | None = None  # None: the plan with all groups in INT8 was not failed
    notes: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[FAILED if self.result is None else self.verdict.verdict]

    def lines(self) -> list[str]:
        """For people: the verdict, what was tried, and the manifest of what was kept."""
        tried = self.tuned.lines() if self.tuned is not None else []
        kept = self.result.lines() if self.result is not None else ["no plan was kept"]
        return [*verdict_lines(self.verdict), "", *tried, *self.notes, *kept]


def calibration_for(
    workspace: Workspace, model: str, path: Path | None, *, max_length: int, progress: caches.Progress | None = None
) -> tuple[Calibration, list[str]]:
    """The cache at `path`, checked against what is built, and notes; without one the demo's, from its training texts.

    Raises UsageError where another model has none, DataError and PlanError as `calibration.open_cache` does.
    """
    if path is not None:
        return caches.open_cache(path, workspace, max_length=max_length)
    if model != "demo":
        raise UsageError(
            f"--int8 wants --calibration FILE: bertopt calibrate --model {model} --data TEXTS --seq {max_length} --out FILE "
            "makes one"
        )
    from bertopt import demo

    found, _ = caches.cached(workspace, demo.texts("train"), max_length=max_length, progress=progress)
    return found, [f"calibrated with {found.texts} of the texts that trained the demo"]


def gated(
    workspace: Workspace,
    out: Path,
    int8: Int8,
    demand: Demand,
    *,
    how: dict[str, Any],
    progress: Progress | None = None,
    bar: run.Progress | None = None,
) -> Outcome:
    """Build with all groups in INT8, judge, and on failure leave the fewest in float; `how` are arguments of `building`.

    Raises DataError, ModelError or UsageError where there is nothing to judge by, before anything is built.
    """
    checkpoint = workspace.checkpoint
    refuse_untrained("reference", checkpoint.name, checkpoint.weights)
    _check_rows(int8.calibration, demand)
    graph = workspace.canonical()

    @contextlib.contextmanager
    def built(precision: str, leave: Collection[str] = ()) -> Iterator[Made]:
        placed = dataclasses.replace(int8, leave=leave) if precision == "int8" else None
        with building(graph, out, precision=precision, int8=placed, judged=placed is None, progress=progress, **how) as made:
            yield made

    court = _Court(workspace, demand, int8.calibration, bar)
    with built("int8") as made:
        verdict = court.verdict(made, demand.requests)
        if verdict.verdict != FAILED:
            with built("fp16") as half:
                said = _how_fast(court.speedup(made, half))
            return Outcome(made.keep(gate=_stamped(verdict)), verdict, notes=[said])
    ranking, judged = demand.ranking, demand.requests
    if ranking is None:
        ranking, judged = split(demand.requests, RANKING_ROWS)
    with contextlib.ExitStack() as stack:
        float_logits, logits = proxy_logits(workspace, int8.calibration, ranking, attention=int8.attention)
        kept: list[Made] = []

        def speedup(leave: Collection[str]) -> float | None:
            kept.append(stack.enter_context(built("int8", leave)))
            with built("fp16") as half:
                return court.speedup(kept[-1], half)

        import onnx

        tuned = tune(
            groups_of(onnx.load(graph)),
            float_logits,
            logits,
            lambda leave: court.verdict(kept[-1], judged),
            speedup,
            max_drop=demand.max_drop,
            classes=checkpoint.task == "single_label",
            budget_s=demand.budget_s,
        )
        if tuned.verdict is not None:
            assert isinstance(tuned.verdict, GateVerdict)
            verdict = tuned.verdict
        if tuned.outcome not in ("kept", INCONCLUSIVE):
            return Outcome(None, verdict, tuned)
        manifest = kept[-1].plan.manifest
        result = kept[-1].keep(gate=_stamped(verdict), notes=[*manifest.notes, *tuned.lines()])
        return Outcome(result, verdict, tuned)


class _Court:
    """Answers plans and the reference on the same rows in the same shapes, and times two plans side by side."""

    def __init__(self, workspace: Workspace, demand: Demand, calibration: Calibration, bar: run.Progress | None) -> None:
        self.workspace, self.demand, self.calibration, self.bar = workspace, demand, calibration, bar
        self._reference: Predictions | None = None

    def verdict(self, made: Made, requests: Requests) -> GateVerdict:
        candidate = predict_plan(made.plan.path, requests, proxy=not _runs_here(made), progress=self.bar)
        reference = self._answers(made, requests)
        metric = self.demand.metric or default_metric(reference.task, requests.labels is not None)
        return judge(
            reference,
            dataclasses.replace(candidate, name=str(made.out)),
            requests.labels,
            metric=metric,
            max_drop=self.demand.max_drop,
            groups=requests.groups,
            texts=requests.texts,
            pairs=requests.pairs,
            calibration=self.calibration.text_hashes,
        )

    def _answers(self, made: Made, requests: Requests) -> Predictions:
        """The reference's, to all rows once; then those that are judged."""
        everything = self.demand.requests
        if self._reference is None:
            if self.demand.reference is not None:
                self._reference = load_predictions(self.demand.reference)
            else:
                device = "cuda" if made.target == "tensorrt" else "cpu"
                served = served_by(made.plan)
                self._reference = predict_checkpoint(
                    self.workspace.checkpoint, everything, served, device=device, progress=self.bar
                )
        if requests is everything:
            return self._reference
        rows = {text: row for row, text in enumerate(self._reference.text_hashes)}
        from bertopt.gate import text_hashes

        kept = [rows[text] for text in text_hashes(requests.texts, requests.pairs)]
        return self._reference.take(kept, requests.fingerprint)

    def speedup(self, low: Made, high: Made) -> float | None:
        """Of one plan over another: medians of passes in turn over batches at the served shapes. None: they don't run here."""
        if not _runs_here(low):
            return None
        from bertopt.batching import batches

        checkpoint, served = self.workspace.checkpoint, served_by(low.plan)
        tokenizer = checkpoint.tokenizer(served.max_length)
        texts = self.demand.requests
        all_of_them = list(batches([tokenizer.encode(texts.texts, texts.pairs)], served.policy))
        timed = all_of_them[:: -(-len(all_of_them) // TIMED_BATCHES)]
        builder = importlib.import_module(f"bertopt.builders.{BUILDERS[low.target]}")
        with (
            builder.open_session(low.plan, checkpoint.pad_id) as one,
            builder.open_session(high.plan, checkpoint.pad_id) as other,
        ):
            times: tuple[list[float], list[float]] = ([], [])
            for turn in range(1 + PASSES):
                for session, taken in zip((one, other), times, strict=True):
                    pass_ms = sum(_device_ms(session, batch) for batch in timed)
                    taken += [pass_ms] * bool(turn)  # the first pass compiles
        return statistics.median(times[1]) / statistics.median(times[0])


def _check_rows(calibration: Calibration, demand: Demand) -> None:
    rows = len(demand.requests)
    shared = caches.overlap(calibration, demand.requests)
    if shared:
        raise DataError(
            f"{len(shared)} of {rows} rows of {demand.requests.name} were used for calibration (the first is row "
            f"{shared[0] + 1}): judge on rows that the plan has not seen"
        )


def _runs_here(made: Made) -> bool:
    return made.target != "tensorrt-rtx"


def _device_ms(session: Any, batch: Any) -> float:
    pending = session.launch(session.stage(batch))
    pending.result()
    return float(pending.times.device_ms)


def _how_fast(speedup: float | None) -> str:
    if speedup is None:
        return "its speed was not measured: this machine cannot run it"
    slower = "" if speedup > 1 else ": it is accurate and not faster, so take the FP16 plan here"
    return f"{speedup:.2f}x the speed of the plan in half precision, side by side at the served shapes{slower}"


def _stamped(verdict: GateVerdict) -> dict[str, Any]:
    """For the manifest: a plan that did not run itself is not said to have passed."""
    said = stamp(verdict)
    return said | {"verdict": "passed by proxy"} if (verdict.evidence, verdict.verdict) == ("proxy", PASSED) else said
