"""The accuracy gate inside a ladder: each rung of lowered precision against the baseline, on the answers that it gave.

A timed pass is too few rows to decide by, so what is judged answers further rows of the file as well, outside the clock. How
many is settled once, by the time that they take, and before any verdict: judging again and again until the answer pleases
would pass more than the confidence says. Rows that INT8 was calibrated with are not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from bertopt import ladder
from bertopt.batching import batches
from bertopt.errors import DataError, ModelError
from bertopt.gate import GateVerdict, Predictions, judge, text_hashes
from bertopt.prepare import Prepared
from bertopt.records import GateSummary
from bertopt.run import Opened, Progress, logits_of
from bertopt.tokenization import Tokens

LOWERED = ("bf16", "fp16", "fp8", "int8")
SECONDS = 120.0  # what further rows may take, over all rungs together
GATED = {rung.name for rung in ladder.RUNGS if rung.gated}

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Judged:
    """What the gate said of a rung: its whole verdict, or why there is none."""

    verdict: GateVerdict | None
    reason: str

    @property
    def status(self) -> str:
        return self.verdict.verdict if self.verdict else "not gated"

    def summary(self) -> GateSummary | None:
        if self.verdict is None:
            return None
        found = self.verdict
        return GateSummary(
            metric=found.metric_title,
            max_drop_points=found.max_drop_points,
            confidence_percent=found.confidence_percent,
            drop_points=found.drop.points,
            drop_low_points=found.drop.low_points,
            drop_high_points=found.drop.high_points,
            rows=found.rows,
            documents=found.documents,
            rows_needed=found.drop.rows_needed,
            label_agreement=found.label_agreement,
            worst_label=found.worst_class,
            reason=self.reason,
            next=found.next,
        )


def reference_answers(opened: Sequence[Opened], ready: Prepared, baseline: Logits, progress: Progress) -> Logits:
    """The baseline's answers to the timed requests, followed by those of the fastest FP32 rung to as many rows as there is
    time for: [rows, labels], in file order. Only the timed ones where no rung needs more or none could give them."""
    known = [o for o in opened if o.broken is None and o.repeats and o.parity is not None and o.parity.passed]
    exact = [o for o in known if o.session.precision == "fp32"]
    lowered = {id(o.session): o for o in known if _lowered(o)}.values()
    timed = len(ready.requests)
    if unjudged(ready) or not exact or not (lowered or any(o.session.precision != "fp32" for o in opened)):
        return baseline
    fastest = max(exact, key=_speed)
    seconds_a_row = 1 / _speed(fastest) + sum(1 / _speed(o) for o in lowered)
    rows = min(len(ready.everything), timed + int(SECONDS / seconds_a_row))
    if rows <= timed:
        return baseline
    progress.stage(f"{fastest.rung.name} answers {rows - timed:,} more rows, to judge lowered precision by")
    return np.concatenate([baseline, _further(fastest, ready, rows)])


def judge_rung(opened: Opened, ready: Prepared, reference: Logits, max_drop: float, progress: Progress) -> Judged | None:
    """The verdict on a rung; None for one whose precision is not lowered, or that only explains another.

    `reference` [rows, labels] are FP32's answers to the first rows of the file.
    """
    if opened.rung.name not in {rung.name for rung in ladder.RUNGS} or not _lowered(opened):
        return None
    if reason := unjudged(ready):
        return Judged(None, reason)
    done = opened.repeats[-1].done
    ours = done.answers.logits
    if ours is None or len(reference) < len(ours) or reference.shape[1:] != ours.shape[1:]:
        return Judged(None, "there are no answers in FP32 to compare with")
    if len(reference) > len(ours):
        progress.stage(f"{opened.rung.name} answers {len(reference) - len(ours):,} more rows, to be judged by")
        ours = np.concatenate([ours, _further(opened, ready, len(reference))])
    rows = ready.everything.take(range(len(reference)))
    fit = np.isfinite(reference).all(axis=1) & ~np.isin(text_hashes(rows.texts, rows.pairs), list(ready.calibrated))
    if done.failures:  # rows that were not answered at all, which the record counts by itself
        fit &= np.isfinite(ours).all(axis=1)
    positions = np.flatnonzero(fit)
    judged, checkpoint = rows.take(positions.tolist()), ready.checkpoint
    if not len(judged):
        return Judged(None, "every row was calibrated with: more rows, or another file for calibration, would leave some")

    def predictions(name: str, backend: str, precision: str, logits: Logits) -> Predictions:
        return Predictions(
            name=name,
            backend=backend,
            precision=precision,
            task=checkpoint.task,
            labels=checkpoint.labels,
            logits=logits[positions],
            text_hashes=text_hashes(judged.texts, judged.pairs),
            fingerprint=checkpoint.fingerprint,
            data=judged.name,
            data_fingerprint=judged.fingerprint,
        )

    try:
        verdict = judge(
            predictions("baseline", "eager", "fp32", reference),
            predictions(opened.rung.name, opened.session.version, opened.session.precision, ours),
            judged.labels,
            metric="accuracy",
            max_drop=max_drop,
            groups=judged.groups,
            texts=judged.texts,
            pairs=judged.pairs,
        )
    except (DataError, ModelError) as error:  # nothing to judge by, which is no fault of the rung's
        return Judged(None, str(error))
    return Judged(verdict, verdict.reasons[0])


def unjudged(ready: Prepared) -> str | None:
    """Why nothing of this run can be gated; None where it can."""
    task, weights = ready.checkpoint.task, ready.checkpoint.weights
    if weights != "trained":
        return "its weights are random, so no answer of it is right or wrong"
    if task != "single_label":
        return f"a ladder gates one label a text, and this is {task}: bertopt gate judges more kinds"
    return None if ready.truth is not None else "the texts have no labels"


def _lowered(opened: Opened) -> bool:
    return opened.session.precision in LOWERED


def _speed(opened: Opened) -> float:
    return median(repeat.done.throughput_seq_s for repeat in opened.repeats)


def _further(opened: Opened, ready: Prepared, stop: int) -> Logits:
    """A rung's answers to the rows of the file from behind the timed requests up to `stop`, outside any clock."""
    tokens = _tokens(ready, stop)
    return logits_of(opened.session, batches([tokens], opened.policy), len(tokens))


def _tokens(ready: Prepared, stop: int) -> Tokens:
    rows = ready.everything.take(range(len(ready.requests), stop))
    return ready.tokenizers["fast"].encode(rows.texts, rows.pairs)
