"""What a run needs before any of it is measured: options checked, model and tokenizers opened, texts read and tokenized."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt import labels, ladder
from bertopt.backends.base import Options, backend
from bertopt.batching import Fixed, batches
from bertopt.calibration import SAMPLES
from bertopt.errors import UsageError
from bertopt.gate import text_hashes
from bertopt.model import Checkpoint, open_checkpoint
from bertopt.records import DataInfo, LadderRecord
from bertopt.run import logits_of
from bertopt.text import Requests, split
from bertopt.text import read as read_requests
from bertopt.tokenization import (
    BertReference,
    FastTokenizer,
    RowAtATime,
    Tokens,
    check_vocabulary,
    load_reference_tokenizer,
    probe_mismatches,
)
from bertopt.tokenizer_files import effective_length
from bertopt.tokens import DEFAULT_LENGTH
from bertopt.workspace import Workspace

PASS_SECONDS = 8.0  # what one pass of the baseline may take when the number of requests is left to us
FEWEST, MOST = 128, 8192  # requests
MOST_JUDGED = 10_000  # rows of a file that are read to judge precision by, where --limit wants fewer
MOST_CALIBRATING = 0.25  # of a file's rows, however few they are
PROBED = 512  # requests on which the two tokenizers are compared

Reference = BertReference | RowAtATime


@dataclass(frozen=True)
class Climb:
    """Everything that `bertopt ladder` can be told, and what a diagnosis and a sweep take over from it."""

    model: str = "demo"
    data: Path | None = None
    columns: dict[str, str | None] = field(default_factory=dict)  # text, text_pair, label: names or numbers
    encoding: str = "utf-8"
    batch_size: int = 32
    sequence_length: int | None = None
    limit: int | None = None
    repeats: int = 3
    window: int = 1024
    rungs: tuple[str, ...] | None = None
    ablate: bool = False
    resume: Path | None = None
    workers: int | None = None
    device: str = "cpu"
    random_weights: bool = False
    max_drop: float = 0.5  # points of accuracy that a lowered precision may cost
    trace: bool = False
    out: Path | None = None
    command: str = "bertopt ladder"


@dataclass
class Prepared:
    """What all rungs of a run share."""

    checkpoint: Checkpoint
    workspace: Workspace
    requests: Requests
    tokens: Tokens
    tokenizers: dict[str, Any]
    truth: NDArray[np.int64] | None
    notes: list[str]
    everything: Requests  # `requests`, which are timed, and the rows of the file behind them, by which precision is judged
    calibrated: frozenset[str]  # hashes of the texts that INT8 may be calibrated with

    def data_info(self) -> DataInfo:
        """What a record says of the texts."""
        return DataInfo(
            name=self.requests.name,
            requests=len(self.requests),
            labelled=self.requests.labels is not None,
            pairs=self.requests.pairs is not None,
            fingerprint=self.requests.fingerprint,
            truncated_requests=self.tokens.truncated,
            notes=self.requests.notes,
        )


def check(wanted: Climb) -> None:
    """UsageError for what is wrong whatever the model and the texts are."""
    for option, value in {"--bs": wanted.batch_size, "--repeats": wanted.repeats, "--window": wanted.window}.items():
        if value < 1:
            raise UsageError(f"{option} {value} is too small: at least 1")
    if wanted.limit is not None and wanted.limit < 1:
        raise UsageError(f"--limit {wanted.limit} is too small: at least 1")
    if not 0 <= wanted.max_drop < 100:
        raise UsageError(f"--max-drop is {wanted.max_drop:g} points, and from 0 to below 100 can be asked")
    if wanted.workers is not None and wanted.workers < 1:
        raise UsageError(f"--workers {wanted.workers} is too small: at least 1, or auto")
    ladder.rungs_for(wanted.device, wanted.rungs)
    reason = None if wanted.resume else backend("eager").available(wanted.device)
    if reason:
        raise UsageError(f"there is no baseline on {wanted.device}: {reason}")


def as_before(wanted: Climb, earlier: LadderRecord) -> Climb:
    """A resumed run measures the same work as the run that it adds to."""
    windows = [r.window for r in earlier.rungs if r.window and r.bucket_edges]
    return replace(
        wanted,
        window=windows[0] if windows else wanted.window,
        batch_size=earlier.batch_size,
        sequence_length=earlier.sequence_length,
        limit=earlier.data.requests,
        device=earlier.device,
        random_weights=wanted.random_weights or earlier.model.weights == "random",
    )


def prepare(wanted: Climb, earlier: LadderRecord | None) -> Prepared:
    """Model, tokenizers and texts, ready to be measured. `earlier` is the run that is added to, None where there is none.

    Raises UsageError where model or texts are not those of `earlier`, and DataError or ModelError where they cannot be used.
    """
    everything = _requests(wanted)
    requests = everything if wanted.limit is None else everything.take(range(min(wanted.limit, len(everything))))
    checkpoint = open_checkpoint(wanted.model, random_weights=wanted.random_weights)
    if earlier and earlier.model.fingerprint != checkpoint.fingerprint:
        raise UsageError(
            f"the run was made with {earlier.model.name} {earlier.model.fingerprint}, and --model {wanted.model} "
            f"is {checkpoint.fingerprint}: give the same --model"
        )
    length = sequence_length(checkpoint, wanted)
    fast = checkpoint.tokenizer(length)
    check_vocabulary(fast, checkpoint.vocab_size)
    reference = load_reference_tokenizer(
        checkpoint.folder, max_length=length, model_type=checkpoint.model_type, name=checkpoint.name
    )
    if earlier and earlier.data.fingerprint != requests.fingerprint:
        raise UsageError(
            f"the run was made on {earlier.data.name} {earlier.data.fingerprint}, and these texts are {requests.name} "
            f"{requests.fingerprint}: give the same --data"
        )
    truth, notes = _truth(everything, checkpoint)
    workspace = Workspace(checkpoint, canonical=_exported(earlier), device=wanted.device)
    if wanted.limit is None:
        requests, note = _sensible_number(requests, workspace, reference, length, wanted)
        notes.append(note)
    truth = None if truth is None else truth[: len(requests)]
    workspace.calibration_texts = _calibration(wanted, everything)
    calibrated = frozenset(text_hashes(workspace.calibration_texts.texts, workspace.calibration_texts.pairs))
    notes += [*fast.notes, *_tokenizer_notes(fast, reference, requests)]
    tokens = fast.encode(requests.texts, requests.pairs)
    tokenizers = {"fast": fast, "reference": reference}
    return Prepared(checkpoint, workspace, requests, tokens, tokenizers, truth, notes, everything, calibrated)


def _truth(requests: Requests, checkpoint: Checkpoint) -> tuple[NDArray[np.int64] | None, list[str]]:
    """The class of each request, and notes; None where the file has no labels or the model's mean nothing."""
    if requests.labels and checkpoint.task == "single_label" and checkpoint.labels and checkpoint.weights == "trained":
        return labels.match(requests.labels, checkpoint.labels, requests.name)
    return None, []


def _exported(earlier: LadderRecord | None) -> Path | None:
    """The graph that the earlier run exported, where it still lies there."""
    path = earlier and earlier.environment.get("canonical_graph")
    return Path(path) if path and Path(path).exists() else None


def _tokenizer_notes(fast: FastTokenizer, reference: Reference, requests: Requests) -> list[str]:
    """What a reader should know: how the naive one works, and rows that hold nothing or that the two see differently."""
    few = requests.take(range(min(PROBED, len(requests))))
    rows: dict[str, list[int]] = {}
    for position, reason in probe_mismatches(fast, reference, few.texts, few.pairs):
        rows.setdefault(reason, []).append(position + 1)
    found = [f"{len(n)} of the first {len(few)} requests: {reason} (row {n[0]} first)" for reason, n in rows.items()]
    if isinstance(reference, RowAtATime):
        found.append(f"no pure-Python tokenizer serves {fast.name}: the baseline calls the {reference.description}")
    return found


def sequence_length(checkpoint: Checkpoint, wanted: Climb) -> int:
    """--seq, or DEFAULT_LENGTH where the user left it open and the model has as many positions."""
    asked = wanted.sequence_length
    length = effective_length(checkpoint.folder, asked, checkpoint.max_positions, name=checkpoint.name)
    return length if asked is not None else min(length, DEFAULT_LENGTH)


def _requests(wanted: Climb) -> Requests:
    """The file, or as much of it as can be used: what --limit lets be timed, and rows behind it to judge precision by."""
    if wanted.data is not None:
        limit = None if wanted.limit is None else max(wanted.limit, MOST_JUDGED)
        return read_requests(wanted.data, limit=limit, encoding=wanted.encoding, **wanted.columns)
    from bertopt import demo

    return demo.texts()


def _calibration(wanted: Climb, everything: Requests) -> Requests:
    """The texts that INT8 is calibrated with: a part of the file, by a hash of each, or the demo's training texts."""
    if wanted.data is None:
        from bertopt import demo

        return demo.texts("train")
    return split(everything, min(MOST_CALIBRATING, SAMPLES / len(everything)))[0]


def _sensible_number(
    requests: Requests, workspace: Workspace, tokenizer: Reference, length: int, wanted: Climb
) -> tuple[Requests, str]:
    """As many requests as the naive service answers in PASS_SECONDS, from the time of its second batch."""
    if len(requests) <= FEWEST:
        return requests, f"all {len(requests)} requests of {requests.name}"
    few = requests.take(np.arange(min(wanted.batch_size, len(requests))))
    module, options = backend("eager"), Options(device=wanted.device, pad_id=workspace.checkpoint.pad_id)
    with module.open(module.prepare(workspace, "fp32"), options) as session:
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            tokens = tokenizer.encode(few.texts, few.pairs)
            logits_of(session, batches([tokens], Fixed(len(tokens), length)), len(few))
            seconds.append(time.perf_counter() - start)
    wish = int(len(few) * PASS_SECONDS / seconds[-1])
    number = min(len(requests), max(FEWEST, min(MOST, wish // wanted.batch_size * wanted.batch_size)))
    note = f"{number} of {len(requests)} requests, what the naive service answers in about {PASS_SECONDS:.0f} s (--limit)"
    return requests.take(np.arange(number)), note
