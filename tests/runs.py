"""Runs of tiny models, made up rather than measured, for what is exported from them and served."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from bertopt import ladder, records
from bertopt.bundle import Bundle
from bertopt.exporting import Wanted, export
from bertopt.model import open_checkpoint
from bertopt.records import DataInfo, LadderRecord
from tests import models
from tests.made_up import made_up_rung

LENGTH, EDGES = 32, [8, 16, 32]


def run_of(model: Path, folder: Path, *, best: str = "onnx", **changes: Any) -> Path:
    """A run's folder in which every float rung was measured on `model`, and `best` is the best."""
    rungs = []
    for rung in ladder.rungs_for("cpu"):
        choice = ladder.pipeline(rung, "cpu")
        bucketed = choice.batching == "bucketed"
        rungs.append(
            dataclasses.replace(
                made_up_rung(rung.name, 100.0, rung.parent),
                stages=ladder.as_stages(choice),
                precision="fp32",
                bucket_edges=EDGES if bucketed else None,
                window=64,
                gate="not gated" if rung.gated else None,
            )
        )
    record = LadderRecord(
        created="2026-01-01T00:00:00+00:00",
        command="bertopt ladder",
        bertopt_version="0",
        environment={},
        model=open_checkpoint(str(model)).info(),
        data=DataInfo("made up", 64, False, False, None),
        batch_size=4,
        sequence_length=LENGTH,
        device="cpu",
        repeats=1,
        rungs=rungs,
        best=best,
    )
    folder.mkdir(parents=True, exist_ok=True)
    records.save(dataclasses.replace(record, **changes), folder / "ladder.json")
    return folder


def bundle_of(model: Path, folder: Path, rung: str = "onnx") -> Bundle:
    """A bundle of `model` under `folder`."""
    return export(Wanted(run_of(model, folder / "run", best=rung), folder / "bundle"))


def texts(rows: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(models.WORDS, n)) for n in generator.integers(1, 28, rows)]
