"""Runs as they lie on disk: whichever command made a folder, its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertopt.errors import UsageError
from bertopt.records import SCHEMA_VERSION, LadderRecord, RungRecord, from_json
from bertopt.records_diagnosis import Diagnosis, Observation
from bertopt.records_sweep import Sweep

KINDS: dict[str, type] = {"ladder.json": LadderRecord, "diagnosis.json": Diagnosis, "sweep.json": Sweep}

Run = LadderRecord | Diagnosis | Sweep


def open_run(path: Path) -> Run:
    """The record in a run's folder, or in one of its files. Raises UsageError where there is none that can be read."""
    files = [path / name for name in KINDS] if path.is_dir() else [path]
    file = next((f for f in files if f.is_file()), None)
    if file is None:
        raise UsageError(f"{path} is no run: there is none of {', '.join(KINDS)} in it")
    try:
        text = file.read_text(encoding="utf-8")
        data = json.loads(text)
        version = data["schema_version"]
        if version > SCHEMA_VERSION:
            raise UsageError(f"{file} has schema {version}, and this bertopt reads up to {SCHEMA_VERSION}: install a newer one")
        return from_json(KINDS.get(file.name) or _kind(data), text)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} cannot be read as a run: {type(error).__name__}: {error}") from None


def _kind(data: dict[str, Any]) -> type:
    """A record under another file name tells by its fields what it is."""
    for field, kind in (("rungs", LadderRecord), ("observation", Diagnosis), ("points", Sweep)):
        if field in data:
            return kind
    raise KeyError("rungs, observation or points")


def pipeline_of(path: Path, rung: str | None) -> RungRecord | Observation:
    """The times of one pipeline of a run: a ladder's best rung or the named one, or what was diagnosed."""
    record = open_run(path)
    if isinstance(record, Diagnosis):
        return record.observation
    if isinstance(record, Sweep):
        raise UsageError(f"{path} is a sweep, which has no times of tokenizing: give a ladder's run or a diagnosis")
    name = rung or record.best
    found = record.rung(name) if name else None
    if found is None or found.status != "measured":
        raise UsageError(f"{path} has no measured rung {name!r}; it has {', '.join(r.name for r in record.rungs)}")
    return found
