"""Ladders of tiny models in milliseconds: their texts, and one that is run with a single repeat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from bertopt.climb import climb
from bertopt.prepare import Climb
from bertopt.progress import Lines
from bertopt.records import LadderRecord, RungRecord
from tests import models

FLOAT_RUNGS = ["baseline", "fast-tokenizer", "prefetch", "bucketed", "onnx"]
ROWS = 19
BATCH, LENGTH = 4, 16


def texts(rows: int = ROWS) -> list[str]:
    generator = np.random.default_rng(0)
    return [" ".join(generator.choice(models.WORDS, n)) for n in generator.integers(1, 22, rows)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def run(model: Path, data: Path, out: Path, **more: Any) -> tuple[LadderRecord, Path]:
    """The record and the folder; `more` are fields of Climb."""
    fields = {"batch_size": BATCH, "sequence_length": LENGTH, "repeats": 1, "rungs": ("onnx",)}
    return climb(Climb(model=str(model), data=data, out=out, **(fields | more)), Lines(quiet=True))


def by_name(record: LadderRecord) -> dict[str, RungRecord]:
    return {rung.name: rung for rung in record.rungs}
