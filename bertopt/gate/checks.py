"""Everything that can make a candidate fail, one function each: it looks at one thing and says one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.gate.align import Answers, Rows
from bertopt.gate.intervals import chances, tango
from bertopt.gate.metrics import Metric
from bertopt.gate.predictions import Predictions
from bertopt.gate.verdict import FAILED, INCONCLUSIVE, PASSED, Check, ClassChange, Drop, Speed
from bertopt.records import Interval

Array = NDArray[Any]

LEAST_AGREEMENT = 90.0  # percent, with the reference: a net drop of zero can hide flips in both directions
COLLAPSE_POINTS = 10.0  # of one label's recall
_BITS = {"fp32": 32, "tf32": 19, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}


def finite(candidate: Answers, rows: Rows) -> Check:
    bad = np.sort(rows.positions[~np.isfinite(candidate.logits).all(axis=1)])
    if len(bad):
        what = f"{len(bad)} of {len(rows)} rows have NaN or infinite logits (the first is row {bad[0] + 1})"
        return Check("finite logits", FAILED, what)
    return Check("finite logits", PASSED, f"the logits of all {len(rows)} rows are finite")


def really_lowered(reference: Predictions, candidate: Predictions, before: Answers, after: Answers) -> Check | None:
    """Fails logits that are the reference's bit by bit, which a lower precision cannot give. None between equal precisions."""
    high, low = _BITS.get(reference.precision.lower()), _BITS.get(candidate.precision.lower())
    if high is None or low is None or reference.precision.lower() == candidate.precision.lower() or low > high:
        return None
    name = f"{candidate.precision} in effect"
    if np.array_equal(before.logits, after.logits):
        what = (
            f"every logit is the reference's, bit by bit: {candidate.precision} in name only, it runs in {reference.precision}"
        )
        return Check(name, FAILED, what)
    return Check(name, PASSED, f"the logits differ from those in {reference.precision}, as they must")


def moved(metric: Metric, drop: Drop, rows: int) -> str:
    """What was seen: "accuracy fell by 0.07 points (5 of 2,693 rows worse, 3 better)"."""
    seen = f"{metric.title} {'rose' if drop.points < 0 else 'fell'} by {abs(drop.points):.2f} points"
    if drop.worse is None:
        return seen
    return f"{seen} ({drop.worse} of {rows:,} rows worse, {drop.better} better)"


def metric_drop(metric: Metric, drop: Drop, rows: int, confidence_percent: float) -> Check:
    margin, name = f"{drop.margin_points:.2f} points", f"{metric.title} drop"
    seen, sure = moved(metric, drop, rows), f"with {confidence_percent:g} % confidence"
    if metric.proportion and metric.against == "reference":
        seen = f"{drop.worse} of {rows:,} labels differ from the reference's ({drop.points:.2f} points)"
    if drop.decision == PASSED:
        return Check(name, PASSED, f"{seen}: a drop of at most {drop.high_points:.2f} {sure}, under {margin}")
    if drop.decision == FAILED:
        return Check(name, FAILED, f"{seen}: a drop of at least {drop.low_points:.2f} {sure}, over {margin}")
    if drop.low_points <= drop.margin_points <= drop.high_points:
        why = f"the drop may be anything from {drop.low_points:.2f} to {drop.high_points:.2f}, and {margin} lie between"
    elif drop.p_pass is None or drop.p_fail is None:
        why = "a bootstrap of so few rows or documents proves nothing"
    else:
        chance = 100 * min(drop.p_pass, drop.p_fail)
        why = f"a plan that loses exactly {margin} shows this or less in {chance:.1f} % of such samples"
        if drop.points > drop.margin_points:
            why = f"a plan that loses exactly {margin} shows this or more in {chance:.1f} % of such samples"
    return Check(name, INCONCLUSIVE, f"{seen}: {why}")


def agreement(found: Interval, least_percent: float) -> Check:
    """Fails where the labels are shown to agree with the reference's on less than `least_percent` of the rows."""
    seen = f"{100 * found.value:.2f} % of labels are the reference's ({100 * found.low:.2f} to {100 * found.high:.2f})"
    if 100 * found.high < least_percent:
        return Check("label agreement", FAILED, f"{seen}, fewer than {least_percent:g} %: it is another classifier")
    return Check("label agreement", PASSED, seen)


def one_answer(before: Answers, after: Answers) -> Check:
    """Fails a candidate that answers the same to every row where the reference does not."""
    ours, theirs = set(after.names or []), set(before.names or [])
    if len(ours) == 1 and len(theirs) > 1:
        return Check(
            "more than one answer",
            FAILED,
            f"the candidate always answers {ours.pop()!r}; the reference gives {len(theirs)} labels",
        )
    return Check("more than one answer", PASSED, f"the candidate gives {len(ours)} labels, and the reference {len(theirs)}")


def classes(truth: Array, before: Answers, after: Answers, rows: Rows, confidence_percent: float) -> list[ClassChange]:
    """Each label's recall by reference and candidate, and how often each answers it. `truth` [n, K]."""
    alpha = (1 - confidence_percent / 100) / max(1, int(truth.any(axis=0).sum()))  # over all labels at once (Bonferroni)
    return [
        _class(rows.labels[k], truth[:, k], before.output[:, k], after.output[:, k], alpha) for k in range(len(rows.labels))
    ]


def _class(label: str, of_it: Array, before: Array, after: Array, alpha: float) -> ClassChange:
    count = int(of_it.sum())
    answered = int(before.sum()), int(after.sum())
    if not count:
        return ClassChange(label, 0, None, None, *answered, None)
    worse, better = int((of_it & before & ~after).sum()), int((of_it & after & ~before).sum())
    recalls = float(before[of_it].mean()), float(after[of_it].mean())
    return ClassChange(label, count, *recalls, *answered, 100 * _shown_drop(worse, better, count, alpha))


def _shown_drop(worse: int, better: int, count: int, alpha: float) -> float:
    """The lower bound of a drop; no more than COLLAPSE_POINTS unless exact probabilities confirm that it is more."""
    low, limit = tango(worse, better, count, alpha)[0], COLLAPSE_POINTS / 100
    return low if low <= limit or chances(worse, better, count, limit)[1] <= alpha else limit


def collapse(changes: list[ClassChange], max_drop_points: float, labelled: bool) -> Check:
    """Fails where one label's recall is shown to have fallen by more than COLLAPSE_POINTS, or the margin if that is more."""
    limit = max(COLLAPSE_POINTS, max_drop_points)
    of = "recall" if labelled else "agreement"
    lost = [c for c in changes if c.drop_low_points is not None and c.drop_low_points > limit]
    if not lost:
        return Check("no label collapses", PASSED, f"no label's {of} is shown to have fallen by more than {limit:g} points")
    worst = max(lost, key=lambda c: c.drop_low_points or 0.0)
    before, after = 100 * (worst.recall_reference or 0), 100 * (worst.recall_candidate or 0)
    others = f", and {len(lost) - 1} more labels collapse" if len(lost) > 1 else ""
    what = f"the {of} of {worst.label!r} falls from {before:.1f} to {after:.1f} % of its {worst.rows} rows{others}"
    return Check("no label collapses", FAILED, what)


def speed(reference: Predictions, candidate: Predictions, least: float | None) -> tuple[Speed | None, Check | None]:
    """The speed-up with its spread, and a check of it where a least one is asked for."""
    ours, theirs = candidate.throughput_seq_s, reference.throughput_seq_s
    if not ours or not theirs:
        missing = "candidate" if not ours else "reference"
        unknown = Check("speed-up", INCONCLUSIVE, f"the throughput of the {missing} was not measured")
        return None, None if least is None else unknown
    low = (candidate.throughput_low_seq_s or ours) / (reference.throughput_high_seq_s or theirs)
    high = (candidate.throughput_high_seq_s or ours) / (reference.throughput_low_seq_s or theirs)
    found = Speed(ours / theirs, low, high, least)
    if least is None:
        return found, None
    seen = (
        f"{found.speedup:.2f}x the reference ({ours:,.0f} over {theirs:,.0f} seq/s, {low:.2f} to {high:.2f}x over the repeats)"
    )
    if reference.device != candidate.device:
        where = f"{candidate.device or 'an unknown device'} and {reference.device or 'an unknown device'}"
        return found, Check("speed-up", INCONCLUSIVE, f"{seen}, but they ran on {where}: measure both on one")
    if low >= least:
        return found, Check("speed-up", PASSED, f"{seen}, and {least:g}x is asked for")
    if high < least:
        return found, Check(
            "speed-up", FAILED, f"{seen}, and {least:g}x is asked for: accurate or not, it is not worth its risk"
        )
    return found, Check("speed-up", INCONCLUSIVE, f"{seen}: {least:g}x lies inside the spread")


def regression(metric: Metric, drop: Drop, rows: int, name: str) -> Check:
    """Against the last accepted plan on the same rows: fails a fall that is shown to be one, however small."""
    seen = f"{moved(metric, drop, rows)} since the last accepted {name}"
    if drop.decision == FAILED:
        return Check("last accepted plan", FAILED, f"{seen}: by at least {drop.low_points:.2f}, a regression")
    return Check("last accepted plan", PASSED, f"{seen}: not shown to be a regression")


def regression_of_value(title: str, now: float, accepted: float, max_drop_points: float, name: str) -> Check:
    """Against the metric of an earlier verdict: fails a fall by more than the margin, on the same rows."""
    fall = 100 * (accepted - now)
    seen = f"{title} is {100 * now:.2f}, and the last accepted {name} had {100 * accepted:.2f} on the same rows"
    if fall > max_drop_points + 1e-9:
        return Check("last accepted plan", FAILED, f"{seen}: {fall:.2f} points less, over {max_drop_points:.2f}")
    return Check("last accepted plan", PASSED, seen)
