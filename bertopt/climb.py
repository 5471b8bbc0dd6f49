"""`bertopt ladder`: from a model's name and a file of texts to a run's record."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import bertopt
from bertopt import assemble, diagnose, ladder
from bertopt.backends.base import Artifact, Options, backend
from bertopt.batching import Batch, Bucketed, Dynamic, Fixed, Policy, batches, waste
from bertopt.environment import environment
from bertopt.errors import BertoptError
from bertopt.files import slug
from bertopt.graph import parity
from bertopt.judging import judge_rung, reference_answers
from bertopt.ladder import Rung
from bertopt.measure import kernels
from bertopt.measuring import runner_of
from bertopt.model import Checkpoint
from bertopt.outputs import name_of, new_folder, run_folder
from bertopt.prepare import Climb, Prepared, as_before, check, prepare
from bertopt.records import LadderRecord, LengthHistogram, Parity, PolicyPadding, RungRecord, load_ladder, save
from bertopt.run import Missing, Opened, Progress, Runner, Settings, logits_of
from bertopt.tokenization import Tokens
from bertopt.workspace import load_array, save_arrays

WINDOWS = (32, 64, 128, 256, 512, 1024, 2048)  # pending requests, for the report's plot


def climb(wanted: Climb, progress: Progress) -> tuple[LadderRecord, Path]:
    """Run the ladder and write its folder. Returns the record and the folder.

    Raises one of bertopt.errors for what the user can mend, before any work where it can be known before.
    """
    earlier = load_ladder(wanted.resume) if wanted.resume else None
    if earlier:
        wanted = as_before(wanted, earlier)
    check(wanted)
    folder = wanted.out or new_folder(name_of(wanted.model))
    with run_folder(folder) as fresh:
        record = _climb(wanted, earlier, fresh, progress)
        save(record, fresh / "ladder.json")
    return record, folder


def _climb(wanted: Climb, earlier: LadderRecord | None, folder: Path, progress: Progress) -> LadderRecord:
    progress.stage("reading the model and the texts")
    ready = prepare(wanted, earlier)
    with contextlib.closing(runner_of(wanted, ready, progress)) as runner:
        rungs = _measure_all(wanted, ready, runner, earlier, folder, progress)
    return _record(wanted, ready, runner, rungs, earlier, progress)


def _measure_all(
    wanted: Climb, ready: Prepared, runner: Runner, earlier: LadderRecord | None, folder: Path, progress: Progress
) -> list[RungRecord]:
    probe, reference = _reference(ready, wanted, folder)
    done = {r.name: r for r in earlier.rungs if r.status == "measured"} if earlier else {}
    baseline, right = _stored_answers(wanted.resume) if wanted.resume else (None, None)

    def measure(rows: Sequence[Rung], table: Sequence[Rung]) -> list[RungRecord]:
        nonlocal baseline, right
        rows = [r for r in rows if r.name not in done]
        opened, records = _open_all(rows, runner, table, probe, reference, ready, progress)
        baseline = _in_turn(opened, runner, wanted, baseline, progress)
        if right is None and baseline is not None:
            right = reference_answers(opened, ready, baseline, progress)
        return [*records, *(_finished(rung, ready, wanted, baseline, right, folder, progress) for rung in opened)]

    records = measure(ladder.rungs_for(wanted.device, wanted.rungs), ladder.RUNGS)
    rungs = assemble.with_comparisons(_ordered([*done.values(), *records], earlier))
    best = assemble.best(rungs)
    if wanted.ablate and best is not None and best.parent is not None:
        rows = ladder.ablations(next(r for r in ladder.RUNGS if r.name == best.name), wanted.device)
        rungs = assemble.with_comparisons([*rungs, *measure(rows, (*ladder.RUNGS, *rows))])
    if baseline is not None:
        save_arrays(folder / "answers.npz", baseline=baseline, right=baseline if right is None else right)
    return rungs


def _ordered(records: list[RungRecord], earlier: LadderRecord | None) -> list[RungRecord]:
    order = [r.name for r in ladder.RUNGS] + ([r.name for r in earlier.rungs] if earlier else [])
    missing = [r for r in earlier.rungs if r.name not in {x.name for x in records}] if earlier else []
    return sorted([*records, *missing], key=lambda r: order.index(r.name))


def _reference(ready: Prepared, wanted: Climb, folder: Path) -> tuple[list[Batch], NDArray[np.float32]]:
    """Probe batches and the logits of eager FP32 on them: computed on the CPU, or those of the run that is resumed."""
    probe = parity.probe_batches(ready.tokens, ready.checkpoint)
    if wanted.resume:
        logits = load_array(_inside(wanted.resume, "reference.npz"), "probe")
    else:
        module = backend("eager")
        artifact: Artifact = module.prepare(ready.workspace, "fp32")
        with module.open(artifact, Options(pad_id=ready.checkpoint.pad_id)) as session:
            logits = logits_of(session, probe, parity.probe_rows(probe))
    save_arrays(folder / "reference.npz", probe=logits)
    return probe, logits


def _open_all(
    rows: Sequence[Rung],
    runner: Runner,
    table: Sequence[Rung],
    probe: list[Batch],
    reference: NDArray[np.float32],
    ready: Prepared,
    progress: Progress,
) -> tuple[list[Opened], list[RungRecord]]:
    """Open every rung that can be, and judge its parity before it is timed; records of those that cannot."""
    opened: list[Opened] = []
    missing: list[RungRecord] = []
    judged: dict[int, Parity] = {}

    def judge(rung: Opened) -> Parity:
        key = id(rung.session)  # rungs that differ only in what feeds them share one
        if key not in judged:
            judged[key] = _judge(rung, probe, reference, ready.checkpoint)
        return judged[key]

    for rung in rows:
        progress.stage(f"preparing {rung.name}")
        found = runner.open(rung, table, judge)
        if isinstance(found, Missing):
            missing.append(assemble.missing_record(found))
        else:
            opened.append(found)
    return opened, missing


def _judge(rung: Opened, probe: list[Batch], reference: NDArray[np.float32], checkpoint: Checkpoint) -> Parity:
    """Parity of a rung's session on the probe's rows, laid out as the session takes them."""
    tokens = Tokens.concat([b.tokens for b in probe])
    laid_out = probe if "padded" in rung.session.layouts else batches([tokens], rung.policy)
    return parity.compare(
        reference,
        logits_of(rung.session, laid_out, len(tokens)),
        precision=rung.session.precision,
        task=checkpoint.task,
        trained=checkpoint.weights == "trained",
        offsets=tokens.offsets,
    )


def _in_turn(
    opened: list[Opened], runner: Runner, wanted: Climb, baseline: NDArray[np.float32] | None, progress: Progress
) -> NDArray[np.float32] | None:
    """Measure, and give the baseline's answers. Repeats in turn, not a block per rung: a slow minute is shared by all."""
    estimate = {o.rung.name: _seconds(o) for o in opened}
    progress.total(sum(estimate.values()) * wanted.repeats)
    for repeat in range(wanted.repeats):
        ceilings: dict[Any, float] = {}
        for rung in opened:
            progress.stage(f"{rung.rung.name}, repeat {repeat + 1} of {wanted.repeats}")
            runner.measure(rung, ceilings)
            progress.advance(estimate[rung.rung.name])
    answered = [o.repeats[-1].done for o in opened if o.rung.name == "baseline" and o.broken is None]
    return answered[0].answers.stacked() if answered else baseline


def _finished(
    rung: Opened,
    ready: Prepared,
    wanted: Climb,
    baseline: NDArray[np.float32] | None,
    right: NDArray[np.float32] | None,
    folder: Path,
    progress: Progress,
) -> RungRecord:
    """The record of a rung that was measured, judged by the answers in FP32 where its precision is lowered."""
    if rung.broken is not None:
        return assemble.broken_record(rung)
    judged = None if right is None else judge_rung(rung, ready, right, wanted.max_drop, progress)
    if judged is not None and judged.verdict is not None:
        save(judged.verdict, folder / f"gate-{slug(rung.rung.name)}.json")
    busy, notes = _kernels(rung, wanted, folder)
    last = rung.repeats[-1].done
    if wanted.trace:
        kernels.write_trace(last, folder / f"trace-{slug(rung.rung.name)}.json")
    return assemble.measured_record(
        rung,
        truth=ready.truth,
        baseline_answers=baseline,
        labelled_head=ready.checkpoint.task in ("single_label", "token_classification"),
        truncated=ready.tokens.truncated,
        kernel_busy=busy,
        notes=[*rung.notes, *notes, *rung.repeats[-1].gpu.reasons],
        judged=judged,
    )


def _kernels(rung: Opened, wanted: Climb, folder: Path) -> tuple[float | None, list[str]]:
    if wanted.device != "cuda":
        return None, []
    try:
        trace = folder / f"kernels-{slug(rung.rung.name)}.json" if wanted.trace else None
        share, number = kernels.profile(rung.session, rung.batches[:8], rung.in_flight, trace)
    except ImportError:
        return None, ["kernel-busy fraction not read: it wants torch's profiler"]
    if share is None:
        return None, ["kernel-busy fraction not read: the profiler saw no kernels"]
    return share, [f"{number} kernels a batch"]


def _seconds(rung: Opened) -> float:
    """A guess at one repeat's time, from the warm-up: for the progress bar only."""
    shapes = len({b.layout for b in rung.batches})
    return max(0.05, rung.warmup_s / shapes * len(rung.batches))


def _stored_answers(run: Path) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """The baseline's answers of an earlier run, and those in FP32 by which precision is judged; None where it failed."""
    file = _inside(run, "answers.npz")
    return (load_array(file, "baseline"), load_array(file, "right")) if file.exists() else (None, None)


def _inside(run: Path, name: str) -> Path:
    return (run if run.is_dir() else run.parent) / name


def _record(
    wanted: Climb,
    ready: Prepared,
    runner: Runner,
    rungs: list[RungRecord],
    earlier: LadderRecord | None,
    progress: Progress,
) -> LadderRecord:
    best = assemble.best(rungs)
    settings, lengths = runner.settings, ready.tokens.lengths
    facts = environment(wanted.device)
    progress.stage("exporting the graph, for --resume")
    try:
        facts["canonical_graph"] = str(ready.workspace.canonical())
    except (BertoptError, OSError):  # what was measured stands without it
        facts["canonical_graph"] = None
    if earlier:
        facts["resumed_from"] = earlier.environment
    return LadderRecord(
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=wanted.command,
        bertopt_version=bertopt.__version__,
        environment=facts,
        model=ready.checkpoint.info(),
        data=ready.data_info(),
        batch_size=settings.batch_size,
        sequence_length=settings.sequence_length,
        device=settings.device,
        repeats=settings.repeats,
        rungs=rungs,
        best=best.name if best else None,
        verdict=diagnose.verdict(best, rungs, settings.device),
        lengths=_histogram(lengths),
        padding=_paddings(lengths, settings, runner.edges),
        notes=ready.notes + (earlier.notes if earlier else []),
    )


def _histogram(lengths: NDArray[np.int64]) -> LengthHistogram:
    p50, p90, p99 = np.percentile(lengths, [50, 90, 99], method="inverted_cdf")
    counts = np.bincount(lengths)
    return LengthHistogram(counts.tolist(), float(lengths.mean()), int(p50), int(p90), int(p99), int(lengths.max()))


def _paddings(lengths: NDArray[np.int64], settings: Settings, edges: tuple[int, ...]) -> list[PolicyPadding]:
    size = settings.batch_size
    policies: list[Policy] = [Fixed(size, settings.sequence_length), Dynamic(size)]
    bucketed = [Bucketed(size, edges, window) for window in WINDOWS if window >= size]
    return [PolicyPadding(p.name, p.window, *waste(lengths, p)) for p in (*policies, *bucketed)]
