"""`bertopt gate` and `bertopt predict`: what was named on the command line -> predictions -> a verdict, and where it is kept.

A side is a checkpoint, a plan, or predictions that were made elsewhere: a torch reference and a plan without torch may live
in different environments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bertopt import plan as plans
from bertopt.errors import DataError, PlanError, UsageError
from bertopt.gate import (
    GateVerdict,
    Predictions,
    judge,
    load_baseline,
    load_predictions,
    refuse_untrained,
    stamp,
    text_hashes,
)
from bertopt.gate.checks import LEAST_AGREEMENT
from bertopt.plan import Manifest
from bertopt.predict import Served, predict_checkpoint, predict_plan, served_by
from bertopt.run import Progress
from bertopt.text import Requests
from bertopt.text import read as read_requests

if TYPE_CHECKING:
    from bertopt.calibration import Calibration

METRICS = {"single_label": "accuracy", "multi_label": "f1", "regression": "pearson"}  # by task, where the data has labels


@dataclass(frozen=True)
class Request:
    """Everything that `bertopt gate` can be told."""

    reference: str
    candidate: str
    data: Path | None = None  # None: the demo's texts
    columns: dict[str, str | None] = field(default_factory=dict)
    encoding: str = "utf-8"
    metric: str | None = None  # None: from the task and whether there are labels
    max_drop: float = 0.5
    confidence: float = 95.0
    min_agreement: float = LEAST_AGREEMENT
    min_speedup: float | None = None
    baseline: Path | None = None
    calibration: Path | None = None  # None: the plan's own, where it lies beside it
    held_out: bool = False  # leave calibration rows out, rather than refuse them
    proxy: bool = False
    device: str = "cpu"  # of a checkpoint


def run_gate(request: Request, progress: Progress | None = None) -> GateVerdict:
    """Answer the data by both sides, judge, and write the verdict into the candidate plan's manifest if the plan itself ran.

    Raises one of bertopt.errors where there is nothing to judge by.
    """
    kinds = kind_of(request.reference), kind_of(request.candidate)
    if kinds[1] == "model":
        raise UsageError(f"--candidate {request.candidate} is no file: it is a plan, or predictions (bertopt predict)")
    manifest = plans.read_manifest(Path(request.candidate)) if kinds[1] == "plan" else None
    baseline = load_baseline(request.baseline) if request.baseline else None
    requests = read_data(request.data, request.columns, request.encoding)
    used = _calibrated_with(request, manifest)
    keep = list(range(len(requests)))
    if request.held_out:
        hashes = text_hashes(requests.texts, requests.pairs)
        keep = [row for row in keep if hashes[row] not in used]
        if not keep:
            raise DataError(f"every row of {requests.name} was calibrated with: there is none to judge by")
    judged = requests if len(keep) == len(requests) else requests.take(keep)

    def stored(path: str) -> Predictions:
        found = load_predictions(path)
        if len(found) != len(requests):
            raise DataError(f"{path} answers {len(found)} rows, and {requests.name} has {len(requests)}: not the same data")
        return found if judged is requests else found.take(keep, judged.fingerprint)

    served: Served | None = served_by(manifest) if manifest else None
    candidate = None if manifest else stored(request.candidate)
    checkpoint = None
    if kinds[0] == "model":
        from bertopt.model import open_checkpoint

        checkpoint = open_checkpoint(request.reference)
        refuse_untrained("reference", checkpoint.name, checkpoint.weights)
        if manifest is not None and manifest.model_fingerprint not in (None, checkpoint.fingerprint):
            raise PlanError(
                f"{request.candidate} was built of {manifest.model_name} {manifest.model_fingerprint}, and the reference is "
                f"{checkpoint.name} {checkpoint.fingerprint}"
            )
    if candidate is None:
        model = checkpoint if manifest is not None and manifest.task is None else None
        candidate = predict_plan(request.candidate, judged, model=model, proxy=request.proxy, progress=progress)
    if checkpoint is not None:
        about = {"device": request.device, "progress": progress, "max_length": candidate.max_length}
        reference = predict_checkpoint(checkpoint, judged, served, **about)  # type: ignore[arg-type]
    elif kinds[0] == "plan":
        reference = predict_plan(request.reference, judged, proxy=request.proxy, progress=progress)
    else:
        reference = stored(request.reference)
    verdict = judge(
        reference,
        candidate,
        judged.labels,
        metric=request.metric or default_metric(reference.task, judged.labels is not None),
        max_drop=request.max_drop,
        confidence=request.confidence,
        min_speedup=request.min_speedup,
        min_agreement=request.min_agreement,
        groups=judged.groups,
        texts=judged.texts,
        pairs=judged.pairs,
        calibration=used,
        baseline=baseline,
    )
    notes = _notes(request, manifest, used, len(requests) - len(keep))
    verdict = dataclasses.replace(verdict, notes=[*verdict.notes, *notes])
    if manifest is not None and verdict.evidence == "plan":
        plans.save(Path(request.candidate), dataclasses.replace(manifest, gate=stamp(verdict)))
    return verdict


def kind_of(name: str) -> str:
    """ "model", "plan" or "predictions". Raises DataError for a file that is none of them."""
    path = Path(name)
    if not path.is_file():
        if path.suffix in (".plan", ".jsonl", ".json"):
            raise DataError(f"there is no file {name}")
        return "model"
    if plans.manifest_path(path).is_file() or path.suffix == ".plan":
        return "plan"
    with path.open("rb") as file:
        if b"bertopt_predictions" in file.readline(1 << 16):
            return "predictions"
    raise DataError(f"{name} is neither a plan that bertopt built nor predictions (bertopt predict writes them)")


def read_data(path: Path | None, columns: dict[str, str | None], encoding: str, limit: int | None = None) -> Requests:
    """A file of requests, or the demo's held-out texts."""
    if path is not None:
        return read_requests(path, limit=limit, encoding=encoding, **columns)
    from bertopt import demo

    found = demo.texts()
    return found if limit is None else found.take(range(min(limit, len(found))))


def default_metric(task: str, labelled: bool) -> str:
    if task == "embedding":
        return "cosine"
    return METRICS[task] if labelled or task == "regression" else "agreement"


def _calibrated_with(request: Request, manifest: Manifest | None) -> Collection[str]:
    """Hashes of the rows that the candidate was calibrated with, as far as that is known.

    Raises PlanError where the cache that is named is not the one that the plan was built with.
    """
    own = plans.calibration_path(request.candidate)
    path = request.calibration or (own if own.is_file() else None)
    if path is None:
        if request.held_out:
            raise UsageError("--held-out leaves out the rows of a calibration cache, and there is none: give --calibration")
        return ()
    from bertopt import calibration as caches

    found: Calibration = caches.load(path)
    wanted = manifest.calibration_sha256 if manifest else None
    if wanted not in (None, found.sha256):
        raise PlanError(
            f"{request.candidate} was calibrated with the cache {str(wanted)[:12]}, and {path} is {found.sha256[:12]}: "
            "name the cache that it was built with"
        )
    return set(found.text_hashes)


def _notes(request: Request, manifest: Manifest | None, used: Collection[str], left_out: int) -> list[str]:
    notes = []
    if left_out:
        notes.append(f"{left_out:,} rows that the plan was calibrated with were left out")
    if manifest is not None and manifest.calibration_sha256 and not used:
        notes.append("whether rows were used for calibration could not be checked: name the cache with --calibration")
    if manifest is not None and request.proxy:
        notes.append(f"{request.candidate} did not run itself, so its manifest says nothing of this verdict")
    return notes
