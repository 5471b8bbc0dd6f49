"""What changed from the reference to the candidate, row by row: flips, their texts, and how far the logits moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bertopt.gate.align import Answers, Rows
from bertopt.gate.metrics import rows_right
from bertopt.gate.verdict import ChangedRow, Flip, LogitDifference

CHANGED_ROWS = 50  # that a verdict lists; it counts them all


def logit_difference(before: Answers, after: Answers) -> LogitDifference | None:
    """None where the candidate's logits are not finite."""
    differences = np.abs(before.logits.astype(np.float64) - after.logits)
    if not np.isfinite(differences).all():
        return None
    largest, spread = float(differences.max()), float(before.logits.std(dtype=np.float64))
    return LogitDifference(largest, float(differences.mean()), spread, largest / spread if spread else None)


def _effects(before: Answers, after: Answers, rows: Rows) -> list[str | None]:
    """ "worse", "better" or "still wrong" for each row, were it to have changed; None without labels."""
    if rows.truth is None:
        return [None] * len(rows)
    right, now = rows_right(rows.truth, before.output), rows_right(rows.truth, after.output)
    return ["worse" if r else "better" if n else "still wrong" for r, n in zip(right.tolist(), now.tolist(), strict=True)]


def flips(before: Answers, after: Answers, rows: Rows) -> list[Flip]:
    """The matrix of flips without its diagonal, most frequent first."""
    assert before.names is not None
    assert after.names is not None
    changed = [x for x in zip(before.names, after.names, _effects(before, after, rows), strict=True) if x[0] != x[1]]
    counts, effects = Counter((a, b) for a, b, _ in changed), Counter(changed)
    known = rows.truth is not None
    return [
        Flip(a, b, n, effects[a, b, "worse"] if known else None, effects[a, b, "better"] if known else None)
        for (a, b), n in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]


def changed(
    before: Answers, after: Answers, rows: Rows, texts: Sequence[str] | None, pairs: Sequence[str | None] | None
) -> list[ChangedRow]:
    """The rows whose label changed, worse ones first and then in file order."""
    assert before.names is not None
    assert after.names is not None
    effects = _effects(before, after, rows)
    moved = np.abs(before.logits.astype(np.float64) - after.logits).max(axis=1)
    flipped = [i for i in range(len(rows)) if before.names[i] != after.names[i]]
    flipped.sort(key=lambda i: (effects[i] != "worse", rows.positions[i]))
    return [
        ChangedRow(
            row=int(rows.positions[i]) + 1,
            text=_text(int(rows.positions[i]), texts, pairs),
            reference=before.names[i],
            candidate=after.names[i],
            label=rows.truth_names[i] if rows.truth_names else None,
            effect=effects[i],
            logit_difference=float(moved[i]) if np.isfinite(moved[i]) else None,
        )
        for i in flipped[:CHANGED_ROWS]
    ]


def _text(position: int, texts: Sequence[str] | None, pairs: Sequence[str | None] | None) -> str | None:
    if texts is None:
        return None
    second = pairs[position] if pairs is not None else None
    return texts[position] if second is None else f"{texts[position]} / {second}"
