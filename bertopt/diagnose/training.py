"""A recorded training loop -> its card, in the same words and the same folder as a service's."""

from __future__ import annotations

import datetime
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import bertopt
from bertopt.diagnose import card
from bertopt.diagnose.advice import advise
from bertopt.diagnose.rules import findings
from bertopt.environment import environment
from bertopt.measure import ceilings
from bertopt.outputs import new_folder, run_folder
from bertopt.records import save
from bertopt.records_diagnosis import Diagnosis, Observation
from bertopt.report import diagnosis

if TYPE_CHECKING:
    from bertopt.steps import Steps

LONG_S = 0.05  # between the last step and the end of the block, above which it is said


def conclude(steps: Steps) -> Diagnosis:
    """The record of the loop, written to its folder with a report, and the card printed unless the loop is to be quiet."""
    seen = steps.observation()
    peak = _peak_mib(steps.device)
    if seen.flops is not None and seen.batch_ms is not None:
        seen = _with_ceiling(seen)
    record = Diagnosis(
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=steps.command or shlex.join(["python", *sys.argv]),
        bertopt_version=bertopt.__version__,
        environment=environment(steps.device),
        device=steps.device,
        batch_size=round(seen.rows or 0),
        sequence_length=steps.length,
        observation=seen,
        findings=[advise(f, seen, None) for f in findings(seen)],
        pipeline={"rung": "training", **steps.about, "precision": steps.precision},
        seconds=None if seen.batch_ms is None else seen.batch_ms * seen.batches / 1e3,
        peak_device_mib=peak,
        notes=[
            f"{steps.warmup} warm-up steps left out",
            *([f"{steps.outside_s:.2f} s after the last step belong to none"] if steps.outside_s >= LONG_S else []),
        ],
    )
    folder = Path(steps.out) if steps.out else new_folder("steps")
    with run_folder(folder) as fresh:
        save(record, fresh / "diagnosis.json")
        try:
            diagnosis.write_report(record, fresh / "report.html")
        except ModuleNotFoundError as missing:  # what was measured stands without it
            print(f"no report.html: {missing.name} is not installed")
    if not steps.quiet:
        print("\n".join(card.lines(record)))
        print(f"\nreport  {folder / 'report.html'}\nrecord  {folder / 'diagnosis.json'}")
    return record


def _with_ceiling(seen: Observation) -> Observation:
    try:
        return replace(seen, ceiling_flop_s=ceilings.arithmetic_flop_s(seen.device, seen.precision or "fp32"))
    except (LookupError, RuntimeError) as error:
        return replace(seen, missing=seen.missing | {"ceiling_flop_s": str(error).splitlines()[0]})


def _peak_mib(device: str) -> float | None:
    if device != "cuda":
        return None
    import torch

    return float(torch.cuda.max_memory_allocated() / 2**20)
