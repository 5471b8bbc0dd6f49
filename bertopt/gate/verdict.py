"""What the gate writes down: plain JSON with `records.to_json`, read again with `load_verdict`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertopt.errors import DataError
from bertopt.gate.predictions import Predictions, load_predictions
from bertopt.records import Interval, from_json

GATE_SCHEMA = 1
PASSED, FAILED, INCONCLUSIVE = "passed", "failed", "inconclusive"
EXIT_CODES = {PASSED: 0, FAILED: 1, INCONCLUSIVE: 3}


@dataclass(frozen=True)
class Side:
    """The reference or the candidate."""

    name: str
    backend: str
    precision: str
    fingerprint: str | None
    device: str | None
    value: Interval  # the metric, two-sided at the verdict's confidence
    throughput_seq_s: float | None


@dataclass(frozen=True)
class Drop:
    """How far the candidate's metric lies below the reference's, in points (hundredths of the metric)."""

    points: float
    low_points: float  # each end alone holds at the verdict's confidence
    high_points: float
    interval_percent: float  # of both ends together: 90 for a confidence of 95
    margin_points: float
    method: str
    decision: str  # "passed", "failed" or "inconclusive", by this drop alone
    worse: int | None = None  # rows that only the reference has right; None for metrics that do not count rows
    better: int | None = None
    effective_rows: float | None = None  # the rows that are worth as much, were they independent
    p_pass: float | None = None  # exact chance of flips as favourable as these, if the true drop were the margin
    p_fail: float | None = None  # and of flips as unfavourable
    rows_needed: int | None = (
        None  # an estimate: rows that decide, if flips go on at this rate; None when decided or when none would
    )


@dataclass(frozen=True)
class Check:
    """One thing that the gate looked at, and one sentence."""

    name: str
    status: str  # "passed", "failed" or "inconclusive"
    reason: str


@dataclass(frozen=True)
class ClassChange:
    """One label's rows, by the data's labels, or by the reference's answers where there are none."""

    label: str
    rows: int
    recall_reference: float | None  # None where no row has the label
    recall_candidate: float | None
    answered_reference: int  # rows to which the reference gives this label
    answered_candidate: int
    drop_low_points: float | None  # what the recall is shown to have lost, over all labels at once


@dataclass(frozen=True)
class Flip:
    """How many rows go from one label to another, and whether that was for the worse; None where the data has no labels."""

    reference: str
    candidate: str
    rows: int
    worse: int | None
    better: int | None


@dataclass(frozen=True)
class ChangedRow:
    row: int  # in the data file, from 1
    text: str | None
    reference: str
    candidate: str
    label: str | None
    effect: str | None  # "worse", "better" or "still wrong"
    logit_difference: float | None


@dataclass(frozen=True)
class LogitDifference:
    largest: float
    mean: float  # of absolute differences
    spread: float  # standard deviation of the reference's logits over rows and labels
    relative: float | None  # largest / spread


@dataclass(frozen=True)
class Speed:
    """Throughput of the candidate over that of the reference, end to end."""

    speedup: float
    low: float  # of the spreads of the repeats
    high: float
    least: float | None  # --min-speedup


@dataclass(frozen=True)
class GateVerdict:
    """The gate's whole answer. `verdict` is joint; `accuracy_verdict` leaves speed aside."""

    verdict: str
    exit_code: int
    accuracy_verdict: str
    reasons: list[str]
    next: str
    metric: str
    metric_title: str
    max_drop_points: float
    confidence_percent: float
    evidence: str  # "plan": this very plan ran; "proxy": the CPU stood in for it
    rows: int  # distinct ones, which are those that were judged
    rows_given: int
    documents: int | None  # that rows share; None where rows are independent
    data: str | None
    data_fingerprint: str | None
    reference: Side
    candidate: Side
    drop: Drop
    checks: list[Check]
    label_agreement: Interval | None
    logit_difference: LogitDifference | None
    classes: list[ClassChange] = field(default_factory=list)
    worst_class: str | None = None
    flips: list[Flip] = field(default_factory=list)
    changed_rows: int = 0
    changed: list[ChangedRow] = field(default_factory=list)  # the first of them, those for the worse ahead
    speed: Speed | None = None
    regression: Drop | None = None  # against the last accepted predictions, where --baseline gave some
    notes: list[str] = field(default_factory=list)
    gate_schema: int = GATE_SCHEMA


def joint(statuses: list[str]) -> str:
    """One failure fails; else one open question leaves all open."""
    return FAILED if FAILED in statuses else INCONCLUSIVE if INCONCLUSIVE in statuses else PASSED


def stamp(verdict: GateVerdict) -> dict[str, Any]:
    """What a plan's manifest keeps of the verdict on it: enough to know what was asked, on what, and where it ran."""
    return {
        "verdict": verdict.verdict,
        "reason": verdict.reasons[0],
        "evidence": verdict.evidence,
        "metric": verdict.metric,
        "max_drop_points": verdict.max_drop_points,
        "confidence_percent": verdict.confidence_percent,
        "drop_points": verdict.drop.points,
        "rows": verdict.rows,
        "data": verdict.data,
        "data_fingerprint": verdict.data_fingerprint,
        "reference": verdict.reference.name,
        "reference_fingerprint": verdict.reference.fingerprint,
        "device": verdict.candidate.device,
    }


def load_verdict(path: os.PathLike[str] | str) -> GateVerdict:
    """An earlier verdict. Raises DataError where the file is none that this version reads."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("gate_schema") != GATE_SCHEMA:
            raise DataError(f'{path} is no verdict of the gate that this version reads: it has no "gate_schema": {GATE_SCHEMA}')
        return from_json(GateVerdict, text)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, TypeError, AttributeError) as error:
        raise DataError(f"{path} cannot be read as a verdict of the gate: {error}") from None


def load_baseline(path: os.PathLike[str] | str) -> Predictions | GateVerdict:
    """What was last accepted: its predictions, or its verdict. Raises DataError where the file is neither."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            first = file.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a baseline: {error}") from None
    return load_predictions(path) if "bertopt_predictions" in first else load_verdict(path)
