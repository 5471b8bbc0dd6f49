"""The report of a diagnosis, or of a training loop, as one HTML file."""

from __future__ import annotations

import os
from typing import Any

from bertopt.diagnose.card import gain_in_words, verdict
from bertopt.files import write_bytes
from bertopt.records_diagnosis import Diagnosis, Observation
from bertopt.report import plots, wording
from bertopt.report.html import render

# What a phase is drawn as: the colours of the ladder's timelines
KINDS = {
    "input": "host",
    "collate": "host-2",
    "copy": "copy",
    "launch": "copy-2",
    "device": "device",
    "forward": "device",
    "backward": "device-2",
    "optimizer": "post",
    "answers": "post",
}
ALONE = (
    ("Tokenizing, with its workers", "tokenize_alone_ms"),
    ("Tokenizing, the Rust tokenizer on one core", "tokenize_fast_ms"),
    ("Collation", "collate_alone_ms"),
    ("A copy of its size, pageable", "copy_pageable_ms"),
    ("A copy of its size, pinned", "copy_pinned_ms"),
    ("The device, on batches that lie ready", "device_alone_ms"),
    ("The device, the same rows in length buckets", "bucketed_device_ms"),
)


def write_report(record: Diagnosis, path: os.PathLike[str] | str) -> None:
    """Writes the report of `record` to `path`, whole or not at all. Raises UsageError where it cannot be written."""
    seen = record.observation
    page = render(
        "diagnosis.html.j2",
        record=record,
        seen=seen,
        first=record.first,
        verdict_of=verdict(record),
        headline_of=_headline(record),
        gains=[gain_in_words(f, seen) for f in record.findings],
        strip=_loop(seen),
        alone=[(name, getattr(seen, field), seen.missing.get(field, "")) for name, field in ALONE],
        growth=_growth(seen),
        device=_device(seen),
    )
    write_bytes(path, page.encode("utf-8", errors="replace"))


def _headline(record: Diagnosis) -> str:
    seen, first = record.observation, record.first
    gain = first.gain(seen.batch_ms) if seen.batch_ms else None
    if gain is not None:
        return f"{verdict(record)}: mending it is predicted to bring {gain:.2f}x"
    if first.verdict == "COMPUTE-BOUND" and seen.ceiling_share is not None:
        return f"COMPUTE-BOUND, at {seen.ceiling_share:.0%} of what the device multiplies at best"
    if first.verdict == "INCONCLUSIVE":
        return "INCONCLUSIVE: no verdict can be given on this evidence"
    return f"{verdict(record)}: nothing that is measured here is wasted"


def _loop(seen: Observation) -> list[dict[str, Any]]:
    """The loop's phases as segments of one strip, in percent of a batch's time."""
    if not seen.batch_ms:
        return []
    at, parts = 0.0, []
    for name, ms in seen.loop_ms.items():
        width = 100 * ms / seen.batch_ms
        label = f"{name} {wording.figure(ms)} ms"
        parts.append({"name": name, "kind": KINDS.get(name, "plain"), "at": at, "width": width, "label": label, "ms": ms})
        at += width
    return parts


def _growth(seen: Observation) -> Any:
    if len(seen.growth) < 2:
        return None
    from markupsafe import Markup

    rows, costs = [g.rows for g in seen.growth], [1e3 * g.device_ms / g.rows for g in seen.growth]
    words = ", ".join(f"{wording.figure(c)} us a row at batch {r}" for r, c in zip(rows, costs, strict=True))
    return Markup(
        plots.lines(
            [plots.Series("a row", rows, costs)],
            x_label="batch size",
            y_label="device time of a row, µs",
            label=f"Device time of a row against batch size: {words}.",
            doubling_x=True,
        )
    )


def _device(seen: Observation) -> list[tuple[str, str, str]]:
    """Figures of the device: name, value, and why there is none."""
    card, missing = seen.card, seen.missing
    reasons = "; ".join(card.reasons) if card else missing.get("card", "")

    def row(name: str, field: str, value: float | None, unit: str, why: str = "") -> tuple[str, str, str]:
        shown = wording.NOT_MEASURED if value is None else f"{wording.figure(value)} {unit}"
        return name, shown, why or missing.get(field, "")

    percent = lambda v: None if v is None else 100 * v  # noqa: E731
    tera = lambda v: None if v is None else v / 1e12  # noqa: E731
    rows = [
        row("Span", "span", percent(seen.span), "%"),
        row("Kernel-busy", "kernel_busy", percent(seen.kernel_busy), "%"),
        row("Kernels a batch", "kernels", seen.kernels, "", missing.get("kernel_busy", "")),
        row("Waits of the host while launching, a batch", "synchronizations", seen.synchronizations, ""),
        row("Arithmetic, achieved", "flops", tera(seen.flop_s), "TFLOP/s"),
        row("Arithmetic, ceiling", "ceiling_flop_s", tera(seen.ceiling_flop_s), "TFLOP/s"),
        row("Arithmetic, share", "ceiling_flop_s", percent(seen.ceiling_share), "%"),
        row("Memory, a plain copy", "bandwidth_b_s", None if seen.bandwidth_b_s is None else seen.bandwidth_b_s / 1e9, "GB/s"),
    ]
    for name, field, unit, factor in (
        ("SM active", "sm_active", "%", 100),
        ("Tensor active", "tensor_active", "%", 100),
        ("Memory active", "dram_active", "%", 100),
        ("nvidia-smi", "nvidia_smi", "%", 100),
        ("Power", "power_w", "W", 1),
        ("Power limit", "power_limit_w", "W", 1),
        ("SM clock", "sm_clock_mhz", "MHz", 1),
        ("SM clock, highest", "max_sm_clock_mhz", "MHz", 1),
    ):
        value = None if card is None else getattr(card, field)
        rows.append(row(name, "card", None if value is None else factor * value, unit, reasons if value is None else ""))
    energy = 1000 * card.power_w / seen.throughput_seq_s if card and card.power_w and seen.throughput_seq_s else None
    rows.append(row("Energy of 1,000 sequences", "card", energy, "J", reasons if energy is None else ""))
    held = ", ".join(f"{n} {s:.0%}" for n, s in card.throttled.items()) if card and card.throttled else ""
    throttled = wording.NOT_MEASURED if card is None or not card.samples else held or "in no sample"
    rows.append(("Clocks held back", throttled, reasons if card is None or not card.samples else f"{card.samples} samples"))
    return rows
