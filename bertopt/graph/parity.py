"""Whether a graph or a back end still computes what eager FP32 computes, judged before anything is timed.

Probe data hold what hides mistakes when it is absent: batches of 1, 2, 3 and 7 rows, mixed lengths, real padding, and
two segments where the model has them, so that the mask and the segment ids are never the same array.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.batching import Batch, Padded
from bertopt.errors import GraphError
from bertopt.model import Checkpoint
from bertopt.records import Parity
from bertopt.tokens import Tokens

Feeds = dict[str, NDArray[np.int64]]  # by input name, each [rows, length]
Run = Callable[[Feeds], NDArray[np.float32]]

SIZES = (1, 2, 3, 7)
LENGTHS = (3, 15, 16, 17, 48)  # around and away from any length that an exporter could have recorded
FIRST_WORD = 5  # special tokens lie below it in every vocabulary that is served
NOT_FINITE = sys.float_info.max  # stands in the record for a difference that NaN or infinity left undefined


@dataclass(frozen=True)
class Limit:
    """What a precision may change: relative to the logits' spread, and the smallest share of equal labels."""

    relative_difference: float
    label_agreement: float


# Rounding errors through a dozen layers, some times larger than seen on BERT-base, on MiniLM and on random weights
LIMITS = {
    "fp32": Limit(1e-3, 1.0),
    "tf32": Limit(2e-2, 0.99),
    "fp16": Limit(5e-2, 0.99),
    "bf16": Limit(2e-1, 0.98),
    "int8": Limit(1.5, 0.95),
    "fp8": Limit(1.5, 0.95),
}


def compare(
    reference: NDArray[np.floating],
    candidate: NDArray[np.floating],
    *,
    precision: str,
    task: str,
    trained: bool,
    offsets: NDArray[np.int64] | None = None,
    spread: float | None = None,
) -> Parity:
    """Judge logits against eager FP32's, both [rows, outputs]; for per-token heads [real tokens, outputs].

    `spread` is the yardstick of the difference; by default the reference logits' standard deviation.
    `offsets` [rows + 1] cuts the tokens into rows, which question answering needs to find each row's start and end.
    Labels are compared where they mean something: not with random weights, for embeddings or for regression. So few
    rows may disagree as the limit's share comes to, rounded up to a whole row.
    A NaN or an infinity on either side fails, and stands in the record as `NOT_FINITE`.
    Raises GraphError where the shapes differ or nothing is compared.
    """
    limit = LIMITS[precision]
    if reference.shape != candidate.shape or not reference.size:
        raise GraphError(f"logits of shape {list(candidate.shape)} cannot be judged against {list(reference.shape)}")
    right, found = reference.astype(np.float64), candidate.astype(np.float64)
    finite = bool(np.isfinite(right).all() and np.isfinite(found).all())
    difference = float(np.abs(found - right).max()) if finite else NOT_FINITE
    spread = spread or (float(right.std()) if finite else 0.0)
    scale = spread or float(np.abs(right).mean()) or 1.0  # a single logit has no spread
    relative = difference / scale if finite else NOT_FINITE

    agreement = least = None
    decisions = _decisions(right, task, offsets) if trained and finite else None
    if decisions is not None:
        equal = decisions == _decisions(found, task, offsets)
        agreement = float(equal.mean())
        least = 1.0 - math.ceil(round(equal.size * (1.0 - limit.label_agreement), 9)) / equal.size
    passed = relative <= limit.relative_difference and (agreement is None or least is None or agreement >= least - 1e-9)
    return Parity(
        max_difference=difference,
        logit_spread=spread,
        relative_difference=relative,
        label_agreement=agreement,
        rows=len(reference) if offsets is None else len(offsets) - 1,
        limit_relative_difference=limit.relative_difference,
        limit_label_agreement=least,
        passed=finite and passed,
    )


def _decisions(logits: NDArray[np.float64], task: str, offsets: NDArray[np.int64] | None) -> NDArray[Any] | None:
    """What the task's user would be told, one entry a decision; None where there is no label."""
    if task in {"single_label", "token_classification"}:
        return logits.argmax(axis=-1)
    if task == "multi_label":
        return logits > 0.0  # sigmoid above one half
    if task == "question_answering" and offsets is not None:
        return np.array([logits[start:stop].argmax(axis=0) for start, stop in itertools.pairwise(offsets)])
    return None


def probe_batches(tokens: Tokens, checkpoint: Checkpoint, *, repeats: int = 4) -> list[Batch]:
    """Batches of 1, 2, 3 and 7 of these rows, `repeats` times over, short and long ones side by side, each with padding.

    Rows are spread over the lengths there are, and taken again where there are too few. Positions count from 0
    through all batches. Where the model has segments and the texts are no pairs, every second batch gets segments.
    """
    order = np.argsort(tokens.lengths, kind="stable")
    wanted = sum(SIZES) * repeats
    picked = order[np.linspace(0, len(order) - 1, wanted).round().astype(np.int64)]
    picked = picked.reshape(repeats, -1).T.ravel()  # neighbours now differ in length
    found: list[Batch] = []
    start = 0
    for size in SIZES * repeats:
        rows = tokens.take(picked[start : start + size])
        if checkpoint.uses_type_ids and tokens.type_ids is None and len(found) % 2:
            rows = replace(rows, type_ids=_second_halves(rows))
        length = max(int(rows.lengths.max()), int(rows.lengths.min()) + 1)
        layout = Padded(size, min(length, checkpoint.max_positions))
        found.append(Batch(np.arange(start, start + size), rows, layout))
        start += size
    return found


def probe_rows(batches: Sequence[Batch]) -> int:
    """Rows of all probe batches together."""
    return sum(batch.rows for batch in batches)


def _second_halves(rows: Tokens) -> NDArray[np.uint8]:
    types = [np.arange(length) >= length // 2 for length in rows.lengths]
    return np.concatenate(types).astype(np.uint8)


def synthetic_feeds(checkpoint: Checkpoint, rows: int, length: int, *, seed: int = 0, padding: str = "right") -> Feeds:
    """Random tokens [rows, length] as the inputs of a graph: the first row full, the others padded; segments 0 and 1.

    `padding` is "right", "left", or "gapped": a hole inside of each padded row.
    """
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, length + 1, rows)
    lengths[0] = length
    if rows > 1:
        lengths[-1] = max(1, length // 2)  # no draw may leave the batch without padding
    places = np.arange(length)
    if padding == "left":
        places = places[::-1]
    elif padding == "gapped":
        places = np.roll(places, -(length // 3))
    real = places < lengths[:, None]
    ids = generator.integers(min(FIRST_WORD, checkpoint.vocab_size - 1), checkpoint.vocab_size, (rows, length))
    feeds = {"input_ids": np.where(real, ids, checkpoint.pad_id), "attention_mask": real.astype(np.int64)}
    if checkpoint.uses_type_ids:
        feeds["token_type_ids"] = (real & (np.arange(length) >= length // 3)).astype(np.int64)
    return feeds


def check(
    reference: Run,
    candidate: Run,
    checkpoint: Checkpoint,
    what: str,
    *,
    precision: str = "fp32",
    paddings: tuple[str, ...] = ("right",),
) -> list[Parity]:
    """Judge `candidate` on synthetic batches of several sizes and lengths, up to the longest that the model takes.

    All are padded in the first of `paddings`; one shape more is judged for each of the others.

    Raises GraphError that names `what` and the first shape where it fails: a length or a branch that an exporter
    recorded shows only away from the shape it was traced with.
    """
    lengths = sorted({min(n, checkpoint.max_positions) for n in (*LENGTHS, checkpoint.max_positions)})
    shapes = [(rows, length, paddings[0]) for rows, length in zip(itertools.cycle(SIZES), lengths[:-1], strict=False)]
    shapes += [(1, lengths[-1], paddings[0]), *((3, min(16, lengths[-1]), other) for other in paddings[1:])]
    logits = []
    for seed, (rows, length, padding) in enumerate(shapes):
        feeds = synthetic_feeds(checkpoint, rows, length, seed=seed, padding=padding)
        shape = f"{rows} x {length}, {padding} padding"
        try:
            right, found = reference(feeds), candidate(feeds)
        except GraphError as error:
            raise GraphError(f"{what} fails at {shape}: {error}") from None
        if right.ndim == 3 and found.shape == right.shape:
            real = feeds["attention_mask"].astype(bool)
            right, found = right[real], found[real]  # what stands on padding is nobody's answer
        logits.append((shape, right, found))
    spread = float(np.concatenate([right for _, right, _ in logits]).std())  # one row alone may hold two equal logits
    judged = []
    for shape, right, found in logits:
        parity = compare(right, found, precision=precision, task=checkpoint.task, trained=False, spread=spread)
        if not parity.passed:
            raise GraphError(f"{what} loses parity at {shape}: {describe(parity)}")
        judged.append(parity)
    return judged


def describe(parity: Parity) -> str:
    """A verdict in words: how far the logits are apart and what would have been allowed."""
    if parity.relative_difference == NOT_FINITE:
        return "some logits are NaN or infinite"
    words = f"logits differ by {parity.relative_difference:.2g} of their spread (limit {parity.limit_relative_difference:g})"
    if parity.label_agreement is not None and parity.limit_label_agreement is not None:
        words += f", labels agree on {parity.label_agreement:.2%} (limit {parity.limit_label_agreement:.2%})"
    return words
