"""The bundle laid out for engines that spread work over machines: Triton and Ray Serve. A new engine is a new row."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bertopt.errors import UsageError
from bertopt.exporting import Wanted, beside, export

TARGETS = {"triton": "bertopt.targets.triton", "ray": "bertopt.targets.ray"}


def export_target(name: str, wanted: Wanted, say: Callable[[str], None] = lambda text: None) -> list[str]:
    """Write a run's rung for the engine at `wanted.out`, whole or not at all; what it is, a fact a line.

    Raises UsageError where something lies there already, and what `export` raises.
    """
    if wanted.out.exists() and (not wanted.out.is_dir() or any(wanted.out.iterdir())):
        raise UsageError(f"cannot write to {wanted.out}: it is not an empty folder")
    module = importlib.import_module(TARGETS[name])
    with tempfile.TemporaryDirectory() as scratch:
        bundle = export(replace(wanted, out=Path(scratch, "bundle")), say)
        with beside(wanted.out) as fresh:
            return module.write(bundle, fresh)
