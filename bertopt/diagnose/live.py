"""`bertopt diagnose`: time a pipeline and its parts, say what bounds it, and write the run's folder."""

from __future__ import annotations

import dataclasses
import datetime
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import bertopt
from bertopt import ladder
from bertopt.backends.built import PlanWorkspace
from bertopt.diagnose.advice import Context, advise
from bertopt.diagnose.eliminate import observe
from bertopt.diagnose.policy import Policy
from bertopt.diagnose.rules import findings
from bertopt.environment import environment
from bertopt.errors import UsageError
from bertopt.ladder import Rung
from bertopt.measuring import runner_of
from bertopt.outputs import name_of, new_folder, run_folder
from bertopt.plan import Plan, open_plan
from bertopt.prepare import Climb, Prepared, check, prepare, sequence_length
from bertopt.records import save
from bertopt.records_diagnosis import Diagnosis, Finding, Observation, Prediction
from bertopt.run import Missing, Opened, Progress
from bertopt.runs import open_run

RECORD = "diagnosis.json"
SHARE = 0.5  # of the requests that a ladder would take: a diagnosis is to be quick


@dataclass(frozen=True)
class Wanted:
    """What `bertopt diagnose` can be told beside what the ladder can."""

    climb: Climb
    rung: str | None = None  # whose pipeline; None: baseline, or with a plan length buckets on it
    plan: Path | None = None
    after: Path | None = None
    policy: Policy = dataclasses.field(default_factory=Policy)


def diagnose(wanted: Wanted, progress: Progress) -> tuple[Diagnosis, Path]:
    """Diagnose one pipeline and write its folder. Returns the record and the folder.

    Raises one of bertopt.errors for what the user can mend, before any work where it can be known before.
    """
    check(wanted.climb)
    earlier = load(wanted.after) if wanted.after else None
    plan = open_plan(wanted.plan) if wanted.plan else None
    rung, table = _rung(wanted, plan)
    folder = wanted.climb.out or new_folder("diagnose", name_of(wanted.climb.model))
    with run_folder(folder) as fresh:
        record = _diagnose(wanted, plan, rung, table, earlier, folder, progress)
        save(record, fresh / RECORD)
    return record, folder


def load(run: Path) -> Diagnosis:
    """The record of an earlier diagnosis, from its folder or its file. Raises UsageError where there is none."""
    record = open_run(run)
    if not isinstance(record, Diagnosis):
        raise UsageError(f"{run} is a run, and no diagnosis")
    return record


def _rung(wanted: Wanted, plan: Plan | None) -> tuple[Rung, tuple[Rung, ...]]:
    """The pipeline as a row of the ladder, and the table that holds its parents."""
    if plan is not None:
        if wanted.rung is not None:
            raise UsageError("--plan and --rung exclude each other: a plan is served with length buckets and workers ahead")
        rung = Rung(
            "plan", f"the plan {plan.path.name}", "bucketed", {"backend": "built", "precision": plan.manifest.precision}
        )
        return rung, (*ladder.RUNGS, rung)
    name = wanted.rung or "baseline"
    ladder.rungs_for(wanted.climb.device, [name])  # says what there is
    return next(r for r in ladder.RUNGS if r.name == name), ladder.RUNGS


def _diagnose(
    wanted: Wanted,
    plan: Plan | None,
    rung: Rung,
    table: tuple[Rung, ...],
    earlier: Diagnosis | None,
    folder: Path,
    progress: Progress,
) -> Diagnosis:
    began = time.perf_counter()
    progress.stage("reading the model and the texts")
    climb = wanted.climb
    ready = prepare(climb, None)
    if climb.limit is None:
        fewer = max(min(len(ready.requests), 2 * climb.batch_size), int(len(ready.requests) * SHARE))
        ready = take(ready, fewer)
    edges: tuple[int, ...] = ()
    if plan is not None:
        ready.workspace, edges = PlanWorkspace(ready.checkpoint, plan, climb.device), tuple(plan.manifest.bucket_edges)
    runner = runner_of(climb, ready, progress, edges)
    try:
        progress.stage(f"preparing {rung.name}")
        # Whether the answers are right is for the ladder and the gate; here nothing but time is looked at
        opened = runner.open(rung, table, cast(Any, lambda of: None))
        if isinstance(opened, Missing):
            remedy = f": {opened.remedy}" if opened.remedy else ""
            raise UsageError(f"the {rung.name} pipeline cannot run here: {opened.reason}{remedy}")
        seen = observe(runner, opened, ready.checkpoint, climb.repeats)
    finally:
        runner.close()
    context = Context(_options(climb), folder, rung.name, climb.batch_size)
    found = [advise(f, seen, context) for f in findings(seen, wanted.policy)]
    return _record(wanted, ready, opened, seen, found, earlier, time.perf_counter() - began)


def take(ready: Prepared, number: int) -> Prepared:
    """The same with its first `number` requests."""
    if number >= len(ready.requests):
        return ready
    return dataclasses.replace(
        ready,
        requests=ready.requests.take(range(number)),
        tokens=ready.tokens.take(range(number)),
        truth=None if ready.truth is None else ready.truth[:number],
    )


def _options(climb: Climb) -> tuple[str, ...]:
    """The options that name the same model, texts and machine again."""
    words = ["--model", climb.model]
    words += ["--data", str(climb.data)] if climb.data else []
    words += ["--seq", str(climb.sequence_length)] if climb.sequence_length else []
    words += ["--limit", str(climb.limit)] if climb.limit else []
    words += ["--random-weights"] if climb.random_weights else []
    for option, column in (("text", "--text-column"), ("text_pair", "--text-pair-column"), ("label", "--label-column")):
        words += [column, value] if (value := climb.columns.get(option)) else []
    return (*words, "--device", climb.device)


def _record(
    wanted: Wanted,
    ready: Prepared,
    opened: Opened,
    seen: Observation,
    found: list[Finding],
    earlier: Diagnosis | None,
    seconds: float,
) -> Diagnosis:
    climb = wanted.climb
    record = Diagnosis(
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=climb.command,
        bertopt_version=bertopt.__version__,
        environment=environment(climb.device),
        device=climb.device,
        batch_size=climb.batch_size,
        sequence_length=sequence_length(ready.checkpoint, climb),
        observation=seen,
        findings=found,
        model=ready.checkpoint.info(),
        data=ready.data_info(),
        pipeline={"rung": opened.rung.name, **ladder.as_stages(opened.pipeline)},
        seconds=seconds,
        peak_device_mib=opened.session.peak_device_mib(),
        notes=[*ready.notes, *opened.notes],
    )
    return dataclasses.replace(record, after=prediction(earlier, record, wanted)) if earlier else record


def prediction(earlier: Diagnosis, now: Diagnosis, wanted: Wanted) -> Prediction | None:
    """Whether what the earlier diagnosis promised has come true; its texts and model must be the same.

    Raises UsageError where they are not; None where the earlier one promised nothing.
    """
    assert wanted.after is not None
    for what, a, b in (
        ("model", earlier.model and earlier.model.fingerprint, now.model and now.model.fingerprint),
        ("texts", earlier.data and earlier.data.fingerprint, now.data and now.data.fingerprint),
        ("sequence length", earlier.sequence_length, now.sequence_length),
        ("device", earlier.device, now.device),
    ):
        if a != b:
            raise UsageError(f"{wanted.after} was made with another {what}: {a}, and this run has {b}")
    first, was, has = earlier.first, earlier.observation.throughput_seq_s, now.observation.throughput_seq_s
    gain = first.gain(earlier.observation.batch_ms) if earlier.observation.batch_ms else None
    if gain is None or was is None or has is None:
        return None
    promised = was * gain
    outcome = _outcome(earlier.observation, now.observation, promised, has, wanted.policy)
    sentence = f"{first.verdict} was to give {promised:,.0f} seq/s from {was:,.0f}; measured {has:,.0f}: {outcome}"
    return Prediction(str(wanted.after), first.verdict, was, promised, has, outcome, sentence)


def _outcome(before: Observation, after: Observation, promised: float, has: float, policy: Policy) -> str:
    if before.rows and after.rows and before.repeats_ms and after.repeats_ms:
        old = [before.rows / ms for ms in before.repeats_ms]
        new = [after.rows / ms for ms in after.repeats_ms]
        if min(new) <= max(old) and min(old) <= max(new):
            return "no difference"
    if has > (1 + policy.held) * promised:
        return "more than predicted"
    return "held" if has >= (1 - policy.held) * promised else "fell short"
