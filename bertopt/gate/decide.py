"""The decision: reference and candidate predictions of the same rows -> passed, failed or inconclusive.

Two one-sided tests at the verdict's confidence (TOST): a candidate passes when its drop is shown to be under the margin,
fails when it is shown to be over it, and otherwise the rows do not decide. Beside the metric, anything that `checks` finds
fails it as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from numpy.typing import NDArray

from bertopt.errors import DataError, UsageError
from bertopt.gate import changes, checks
from bertopt.gate.advice import next_step
from bertopt.gate.align import Answers, Rows, align, answers, same_rows
from bertopt.gate.drop import Measured, measure, proportion
from bertopt.gate.metrics import Metric, choose, rows_right
from bertopt.gate.predictions import Predictions
from bertopt.gate.reference import unproven
from bertopt.gate.verdict import (
    EXIT_CODES,
    INCONCLUSIVE,
    PASSED,
    Check,
    ClassChange,
    Drop,
    GateVerdict,
    Side,
    joint,
)
from bertopt.records import Interval

Array = NDArray[Any]


def judge(
    reference: Predictions,
    candidate: Predictions,
    labels: Sequence[str] | None,
    *,
    metric: str,
    max_drop: float,
    confidence: float = 95.0,
    min_speedup: float | None = None,
    min_agreement: float = checks.LEAST_AGREEMENT,
    groups: Sequence[int] | None = None,
    texts: Sequence[str] | None = None,
    pairs: Sequence[str | None] | None = None,
    calibration: Collection[str] = (),
    baseline: Predictions | GateVerdict | None = None,
) -> GateVerdict:
    """Whether `candidate` may take the place of `reference`. `labels`, `groups`, `texts` and `pairs` are the data's, in file
    order.

    `max_drop` is in points, hundredths of the metric; for agreement and cosine it is what they may lack of 100. `confidence`
    in percent, of each one-sided test. `min_agreement` in percent: labels shown to agree on fewer rows fail, whatever the
    metric. `groups` are the documents that rows share. `calibration` holds the `text_hash` of every calibration row.

    `baseline` is what was last accepted: its predictions of the same rows, from which the candidate must not be shown to have
    fallen at all (margin 0, so noise alone fails it as rarely as the confidence says); or its verdict, whose metric on the
    same data the candidate must not fall short of by more than `max_drop`. It comes beside the comparison with the reference,
    never in its place.

    Raises DataError, ModelError or UsageError (exit code 2) where there is nothing to judge by: see `align` and `reference`.
    """
    if not 0 <= max_drop < 100:
        raise UsageError(f"--max-drop is {max_drop:g} points, and from 0 to below 100 can be asked")
    if not 50 < confidence <= 99.9:
        raise UsageError(f"--confidence is {confidence:g} %, and from above 50 to 99.9 can be asked")
    if min_speedup is not None and not (math.isfinite(min_speedup) and min_speedup > 0):
        raise UsageError(f"--min-speedup is {min_speedup:g}, and a ratio above 0 can be asked")
    rows = align(reference, candidate, labels, groups, texts, pairs, calibration)
    chosen = choose(metric, rows.task, rows.labels, rows.truth is not None)
    before, after = answers(reference, rows), answers(candidate, rows)
    doubt = unproven(chosen, before, rows, reference.name, confidence)
    by_reference = chosen.against == "reference"
    truth = rows.truth if rows.truth is not None and not by_reference else before.output
    measured = measure(chosen, truth, before, after, rows, margin=max_drop / 100, confidence_percent=confidence)

    found: list[Check | None] = [checks.finite(after, rows), checks.metric_drop(chosen, measured.drop, len(rows), confidence)]
    if doubt:
        found.append(Check("fit reference", INCONCLUSIVE, doubt))
    found.append(checks.really_lowered(reference, candidate, before, after))
    agreed, by_class, flips = None, [], []
    if before.names is not None:
        agreed = proportion(rows_right(before.output, after.output), rows.groups, confidence)
        actual = before.output if rows.truth is None else rows.truth
        by_class = checks.classes(actual, before, after, rows, confidence)
        flips = changes.flips(before, after, rows)
        found += [
            checks.agreement(agreed, min_agreement),
            checks.one_answer(before, after),
            checks.collapse(by_class, max_drop, rows.truth is not None),
        ]
    fall = None
    if baseline is not None:
        check, fall = _against_accepted(baseline, chosen, reference, measured, truth, after, rows, max_drop, confidence)
        found.append(check)
    accuracy_verdict = joint([check.status for check in found if check])
    speed, fast = checks.speed(reference, candidate, min_speedup)
    listed = [check for check in [*found, fast] if check]
    verdict = joint([check.status for check in listed])
    worst = max(by_class, key=_recall_lost, default=None)
    changed = [] if before.names is None else changes.changed(before, after, rows, texts, pairs)
    one, other = _side(reference, measured.before), _side(candidate, measured.after)
    return GateVerdict(
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        accuracy_verdict=accuracy_verdict,
        reasons=[c.reason for c in listed if c.status == verdict] if verdict != PASSED else [listed[1].reason],
        next=next_step(verdict, accuracy_verdict, measured.drop, listed, one, other, candidate.evidence, confidence),
        metric=metric,
        metric_title=chosen.title,
        max_drop_points=float(max_drop),
        confidence_percent=float(confidence),
        evidence=candidate.evidence,
        rows=len(rows),
        rows_given=rows.given,
        documents=None if rows.groups is None else int(rows.groups.max()) + 1,
        data=reference.data,
        data_fingerprint=reference.data_fingerprint,
        reference=one,
        candidate=other,
        drop=measured.drop,
        checks=listed,
        label_agreement=agreed,
        logit_difference=changes.logit_difference(before, after),
        classes=by_class,
        worst_class=worst.label if worst and _recall_lost(worst) > 0 else None,
        flips=flips,
        changed_rows=sum(f.rows for f in flips),
        changed=changed,
        speed=speed,
        regression=fall,
        notes=rows.notes,
    )


def _against_accepted(
    baseline: Predictions | GateVerdict,
    metric: Metric,
    reference: Predictions,
    measured: Measured,
    truth: Array,
    after: Answers,
    rows: Rows,
    max_drop: float,
    confidence: float,
) -> tuple[Check, Drop | None]:
    if isinstance(baseline, Predictions):
        same_rows(reference, baseline)
        accepted = measure(metric, truth, answers(baseline, rows), after, rows, margin=0.0, confidence_percent=confidence)
        return checks.regression(metric, accepted.drop, len(rows), baseline.name), accepted.drop
    same = (baseline.metric, baseline.data_fingerprint) == (metric.name, reference.data_fingerprint)
    if not same or reference.data_fingerprint is None:
        raise DataError(
            f"the baseline was judged by {baseline.metric} on data {baseline.data_fingerprint}, and this is {metric.name} on "
            f"{reference.data_fingerprint}: they cannot be compared"
        )
    was, name = baseline.candidate.value.value, baseline.candidate.name
    return checks.regression_of_value(metric.title, measured.after.value, was, max_drop, name), None


def _recall_lost(change: ClassChange) -> float:
    return (change.recall_reference or 0.0) - (change.recall_candidate or 0.0)


def _side(predictions: Predictions, value: Interval) -> Side:
    return Side(
        name=predictions.name,
        backend=predictions.backend,
        precision=predictions.precision,
        fingerprint=predictions.fingerprint,
        device=predictions.device,
        value=value,
        throughput_seq_s=predictions.throughput_seq_s,
    )
