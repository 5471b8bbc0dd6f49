"""`bertopt compare`: runs of several machines, dates or settings side by side, where they did the same work."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bertopt
from bertopt.diagnose.ladder import observe
from bertopt.errors import UsageError
from bertopt.measure.statistics import compare as compare_repeats
from bertopt.outputs import run_folder
from bertopt.records import DataInfo, LadderRecord, ModelInfo, RungRecord, save
from bertopt.records_card import CardReading
from bertopt.records_compare import Comparison, Difference, Side
from bertopt.records_diagnosis import Diagnosis
from bertopt.records_sweep import Point, Sweep
from bertopt.report.view import flat
from bertopt.runs import Run, open_run

PHASES = ("tokenize", "collate", "copy_in", "launch", "device", "copy_out", "postprocess")


def compare(
    runs: Sequence[Path],
    *,
    rung: str | None = None,
    prices: Sequence[float] = (),
    unlike: bool = False,
    command: str = "bertopt compare",
    out: Path | None = None,
) -> Comparison:
    """Put `runs` side by side, the first being what the others are compared with; written to `out` where one is given.

    Raises UsageError where they did other work (texts, lengths, model, shapes) unless `unlike` allows it.
    """
    if len(runs) < 2:
        raise UsageError("one run cannot be compared: give at least two")
    if len(prices) not in (0, 1, len(runs)):
        raise UsageError(f"--price-per-hour has {len(prices)} prices for {len(runs)} runs: give one, or one for each")
    if any(price <= 0 for price in prices):
        raise UsageError("--price-per-hour is above 0")
    records = [open_run(path) for path in runs]
    each = list(prices) if len(prices) == len(runs) else [prices[0] if prices else None] * len(runs)
    sides = [_priced(side_of(path, record, rung), price) for path, record, price in zip(runs, records, each, strict=True)]
    others = differences([side.work for side in sides])
    if others and not unlike:
        listed = "; ".join(f"{d.name}: {' and '.join(dict.fromkeys(d.values))}" for d in others)
        raise UsageError(f"the runs did other work ({listed}): --unlike compares them all the same")
    first = sides[0]
    record = Comparison(
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=command,
        bertopt_version=bertopt.__version__,
        sides=[first, *(_against(side, first) for side in sides[1:])],
        unlike=others,
        environment=differences([dict(flat(r.environment)) for r in records]),
    )
    if out is not None:
        with run_folder(out) as fresh:
            save(record, fresh / "compare.json")
    return record


def differences(tables: list[dict[str, str]]) -> list[Difference]:
    """Where the tables do not agree, in the order of their keys."""
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = [Difference(key, [table.get(key, "–") for table in tables]) for key in keys]
    return [row for row in rows if len(set(row.values)) > 1]


def side_of(path: Path, record: Run, rung: str | None) -> Side:
    """One column of the comparison. Raises UsageError where the run has no figure to compare."""
    if isinstance(record, LadderRecord):
        return _of_ladder(path, record, rung)
    if isinstance(record, Sweep):
        return _of_sweep(path, record)
    return _of_diagnosis(path, record)


def _work(kind: str, model: ModelInfo | None, data: DataInfo | None, batch_size: int, length: int) -> dict[str, str]:
    work = {"work": kind, "batch size": str(batch_size), "sequence length": str(length)}
    if model is not None:
        work |= {"model": f"{model.name} {model.fingerprint or ''}".strip()}
    if data is not None:
        work |= {"texts": f"{data.name} {data.fingerprint or ''}".strip(), "requests": str(data.requests)}
    return work


def _of_ladder(path: Path, record: LadderRecord, rung: str | None) -> Side:
    name = rung or record.best
    found = record.rung(name) if name else None
    if found is None or found.throughput_seq_s is None:
        raise UsageError(f"{path} has no measured rung {name!r}; it has {', '.join(r.name for r in record.rungs)}")
    seen = observe(found, record.device)
    return Side(
        run=str(path),
        what=f"ladder, rung {found.name}",
        created=record.created,
        device=_device(record.device, record.environment),
        work=_work("service", record.model, record.data, record.batch_size, record.sequence_length),
        choices=_choices(found),
        throughput_seq_s=found.throughput_seq_s,
        repeats_seq_s=found.repeats_seq_s,
        throughput_tokens_s=found.throughput_tokens_s,
        batch_ms=seen.batch_ms,
        phases_ms=_phases(found),
        utilization={
            "span": found.utilization_span,
            "kernel-busy": found.utilization_kernel_busy,
            "SM active": found.utilization_sm_active,
            "tensor active": found.utilization_tensor_active,
            "nvidia-smi": found.utilization_nvidia_smi,
            "cores busy": found.utilization_cores_busy,
        },
        padding_fraction=found.padding_fraction,
        peak_mib=found.peak_device_mib or found.peak_process_mib,
        power_w=found.card.power_w if found.card else None,
        energy_j_per_1000=_energy(found.card, found.throughput_seq_s),
        verdict=f"bound by {record.verdict.bound_by}" if record.verdict and found.name == record.best else None,
    )


def _of_diagnosis(path: Path, record: Diagnosis) -> Side:
    seen = record.observation
    card, speed = seen.card, seen.throughput_seq_s
    if speed is None:
        raise UsageError(f"{path} timed nothing")
    work = _work(
        "training" if seen.training else "service", record.model, record.data, record.batch_size, record.sequence_length
    )
    pipeline = dict(record.pipeline)
    if seen.training:  # it has no checkpoint of ours; what it says about itself is its work
        work |= {key: pipeline.pop(key) for key in ("model", "weights", "pad") if key in pipeline}
    training = {name: ms for name, ms in seen.loop_ms.items() if ms > 0}
    return Side(
        run=str(path),
        what="training loop" if seen.training else f"diagnosis, rung {pipeline.get('rung', '')}",
        created=record.created,
        device=_device(record.device, record.environment),
        work=work,
        choices=pipeline | ({"workers": str(seen.workers)} if seen.workers is not None else {}),
        throughput_seq_s=speed,
        repeats_seq_s=[1e3 * (seen.rows or 0) / ms for ms in seen.repeats_ms],
        throughput_tokens_s=seen.throughput_tokens_s,
        batch_ms=seen.batch_ms,
        phases_ms=training if seen.training else _phases(seen),
        utilization={
            "span": seen.span,
            "kernel-busy": seen.kernel_busy,
            "of the arithmetic's ceiling": seen.ceiling_share,
            "SM active": card.sm_active if card else None,
            "tensor active": card.tensor_active if card else None,
            "memory active": card.dram_active if card else None,
            "nvidia-smi": card.nvidia_smi if card else None,
        },
        padding_fraction=seen.padding_fraction,
        peak_mib=record.peak_device_mib,
        power_w=card.power_w if card else None,
        energy_j_per_1000=_energy(card, speed),
        verdict=record.first.verdict,
    )


def _of_sweep(path: Path, record: Sweep) -> Side:
    series = record.series[0] if record.series else None
    point: Point | None = next((p for p in record.of(series) if p.batch_size == series.knee), None) if series else None
    if point is None:
        raise UsageError(f"{path} is a sweep of which nothing was measured")
    return Side(
        run=str(path),
        what=f"sweep, {point.rung}, its knee",
        created=record.created,
        device=_device(record.device, record.environment),
        work=_work("service", record.model, record.data, point.batch_size, point.sequence_length),
        choices={"rung": point.rung},
        throughput_seq_s=point.throughput_seq_s,
        repeats_seq_s=point.repeats_seq_s,
        throughput_tokens_s=point.throughput_tokens_s,
        batch_ms=point.batch_ms_p50,
        utilization={"span": point.utilization_span, "SM active": point.card.sm_active if point.card else None},
        padding_fraction=point.padding_fraction,
        peak_mib=point.peak_device_mib or point.peak_process_mib,
        power_w=point.card.power_w if point.card else None,
        energy_j_per_1000=point.energy_j_per_1000,
    )


def _energy(card: CardReading | None, speed: float) -> float | None:
    """Joules for 1,000 sequences at `speed` sequences a second."""
    return 1000 * card.power_w / speed if card and card.power_w else None


def _phases(of: Any) -> dict[str, float]:
    return {name: ms for name in PHASES if (ms := getattr(of, f"{name}_ms")) is not None}


def _choices(rung: RungRecord) -> dict[str, str]:
    ran = {"rung": rung.name, **rung.stages, "ran in": rung.precision or "–", "version": rung.backend_version or "–"}
    return ran | ({"workers": str(rung.workers)} if rung.workers is not None else {})


def _device(device: str, environment: dict[str, Any]) -> str:
    """The card's or the processor's name."""
    return str(environment.get("gpu") or device) if device == "cuda" else str(environment.get("cpu") or device)


def _priced(side: Side, price: float | None) -> Side:
    if price is None or not side.throughput_seq_s:
        return side
    return replace(side, price_per_hour=price, cost_per_million=price / 3600 / side.throughput_seq_s * 1e6)


def _against(side: Side, first: Side) -> Side:
    """The side with its throughput against the first's; a difference inside the spread of the repeats is none."""
    if not side.throughput_seq_s or not first.throughput_seq_s:
        return side
    ratio = side.throughput_seq_s / first.throughput_seq_s
    if min(len(side.repeats_seq_s), len(first.repeats_seq_s)) < 2:
        return replace(side, ratio_to_first=ratio, against_first="one repeat has no spread to judge by")
    return replace(side, ratio_to_first=ratio, against_first=compare_repeats(side.repeats_seq_s, first.repeats_seq_s))


def headline(record: Comparison) -> str:
    """What the comparison found, in one sentence."""
    first, last = record.sides[0], record.sides[-1]
    if len(record.sides) > 2:
        fastest = max(record.sides, key=lambda s: s.throughput_seq_s or 0.0)
        return (
            f"{fastest.run} is the fastest of {len(record.sides)} runs: {fastest.throughput_seq_s or 0:,.0f} sequences a second"
        )
    if last.against_first == "no difference":
        return "No difference: the repeats of the two runs overlap"
    if last.ratio_to_first is None:
        return "The two runs cannot be compared"
    figures = f"{first.throughput_seq_s or 0:,.0f} → {last.throughput_seq_s or 0:,.0f} sequences a second"
    if last.against_first not in ("faster", "slower"):
        return f"{last.run} measured {last.ratio_to_first:.2f}x the first, without a spread to judge by: {figures}"
    return f"{last.run} is {last.against_first}, {last.ratio_to_first:.2f}x: {figures}"


def rows(record: Comparison) -> list[tuple[str, list[str]]]:
    """The comparison as a table: a name and a cell for every run. What no run has is left out."""
    sides = record.sides

    def row(name: str, cells: list[str]) -> tuple[str, list[str]]:
        return name, cells

    def number(value: float | None, how: str) -> str:
        return "–" if value is None else format(value, how)

    table = [
        row("what", [s.what for s in sides]),
        row("device", [s.device for s in sides]),
        row("when", [s.created for s in sides]),
        row("throughput, seq/s", [number(s.throughput_seq_s, ",.1f") for s in sides]),
        row("slowest to fastest repeat", [_ends(s) for s in sides]),
        row("against the first", ["", *(_verdict(s) for s in sides[1:])]),
        row("real tokens/s", [number(s.throughput_tokens_s, ",.0f") for s in sides]),
        row("a batch, ms", [number(s.batch_ms, ".2f") for s in sides]),
    ]
    for name in dict.fromkeys(n for s in sides for n in s.phases_ms):
        table.append(row(f"  {name}, ms", [number(s.phases_ms.get(name), ".2f") for s in sides]))
    table.append(row("padding", [number(s.padding_fraction, ".1%") for s in sides]))
    for name in dict.fromkeys(n for s in sides for n in s.utilization):
        table.append(row(f"utilization: {name}", [number(s.utilization.get(name), ".1%") for s in sides]))
    table += [
        row("peak memory, MiB", [number(s.peak_mib, ",.0f") for s in sides]),
        row("power, W", [number(s.power_w, ".0f") for s in sides]),
        row("energy, J per 1,000", [number(s.energy_j_per_1000, ",.1f") for s in sides]),
        row("price, an hour", [number(s.price_per_hour, ".2f") for s in sides]),
        row("cost of a million sequences", [number(s.cost_per_million, ",.3f") for s in sides]),
        row("verdict", [s.verdict or "–" for s in sides]),
    ]
    for difference in differences([s.choices for s in sides]):
        table.append(row(difference.name, difference.values))
    return [(name, cells) for name, cells in table if set(cells) - {"–", ""}]


def _ends(side: Side) -> str:
    return "–" if side.ends_seq_s is None else "{:,.1f} to {:,.1f}".format(*side.ends_seq_s)


def _verdict(side: Side) -> str:
    return "–" if side.ratio_to_first is None else f"{side.ratio_to_first:.2f}x, {side.against_first}"
