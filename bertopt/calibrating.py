"""`bertopt calibrate`: finds the model and the texts, observes, and says what was seen."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertopt import calibration as caches
from bertopt.calibration import Calibration, Progress
from bertopt.errors import UsageError
from bertopt.files import slug
from bertopt.text import Requests
from bertopt.tokens import DEFAULT_LENGTH

LISTED = 10  # rows that are named


@dataclass(frozen=True)
class Seen:
    """A calibration that was written, and what is worth telling about it."""

    calibration: Calibration
    path: Path
    offered: int  # texts that it was chosen from
    seconds: float
    evaluation: str | None = None  # name of the evaluation set
    evaluation_rows: int = 0
    shared: tuple[int, ...] = ()  # its rows, from 1, that were calibrated with

    def lines(self) -> list[str]:
        """For people: how much was seen, what came of it, and whether an evaluation is spoilt."""
        made = self.calibration
        smoothed = sum(site.smoothing is not None for site in made.sites.values())
        size = self.path.stat().st_size
        lines = [
            f"{made.texts:,} of {self.offered:,} texts of {made.data_name}, {made.tokens:,} tokens, in {self.seconds:.1f} s",
            f"{len(made.sites)} ranges by {made.method}, {smoothed} of them smoothed at {made.smooth:g}, "
            f"texts of up to {made.max_length} tokens",
            f"{self.path}: {size / 1e3:.0f} kB, SHA-256 {made.sha256}",
        ]
        if self.evaluation is not None:
            lines.append(self._overlap())
        return lines

    def _overlap(self) -> str:
        said = f"{len(self.shared):,} of {self.evaluation_rows:,} rows of {self.evaluation} were calibrated with"
        if not self.shared:
            return said
        more = f" and {len(self.shared) - LISTED:,} more" if len(self.shared) > LISTED else ""
        return f"{said}: rows {', '.join(map(str, self.shared[:LISTED]))}{more}; the gate refuses an evaluation on them"


def run(
    model: str,
    data: Path | None,
    out: Path | None,
    *,
    evaluation: Path | None = None,
    reading: dict[str, Any] | None = None,
    max_length: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Seen:
    """Calibrate a model and write the cache; `options` are those of `calibration.calibrate`, `reading` those of `text.read`.

    Texts are cut at `max_length` tokens: 128, or as many as the model has, where it is None. `evaluation` is a file whose
    rows must not be among the texts. Raises UsageError, DataError, ModelError or GraphError, with nothing written.
    """
    from bertopt.graph.calibrate import check_choice
    from bertopt.model import open_checkpoint
    from bertopt.text import read
    from bertopt.tokenization import effective_length
    from bertopt.workspace import Workspace

    check_choice(options.get("method", "minmax"), options.get("smooth", caches.SMOOTH))
    requests = texts_for(model, data, **(reading or {}))
    judged = None if evaluation is None else read(evaluation, **(reading or {}))
    checkpoint = open_checkpoint(model)
    length = effective_length(checkpoint.folder, max_length, checkpoint.max_positions, name=checkpoint.name)
    length = length if max_length is not None else min(length, DEFAULT_LENGTH)
    path = out or Path("calibration", f"{slug(checkpoint.name)}.json")
    start = time.monotonic()
    made = caches.calibrate(Workspace(checkpoint), requests, max_length=length, progress=progress, **options)
    caches.save(made, path)
    shared = [] if judged is None else caches.overlap(made, judged)
    return Seen(
        made,
        path,
        len(requests),
        time.monotonic() - start,
        None if judged is None else judged.name,
        0 if judged is None else len(judged),
        tuple(row + 1 for row in shared),
    )


def texts_for(model: str, data: Path | None, **reading: Any) -> Requests:
    """The calibration texts of a file, or those that trained the demo. Raises UsageError for another model without any."""
    from bertopt.text import read

    if data is not None:
        return read(data, **reading)
    if model == "demo":
        from bertopt import demo

        return demo.texts("train")
    raise UsageError(f"--data is missing: give some hundred texts such as {model} is asked, none of those that it is judged on")
