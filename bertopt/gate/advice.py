"""The one thing to do after a verdict."""

from __future__ import annotations

from bertopt.gate.intervals import half_width, rows_without_flips
from bertopt.gate.verdict import FAILED, INCONCLUSIVE, PASSED, Check, Drop, Side


def next_step(
    verdict: str,
    accuracy_verdict: str,
    drop: Drop,
    listed: list[Check],
    before: Side,
    after: Side,
    evidence: str,
    confidence: float,
) -> str:
    """`listed` are all checks of the verdict; those that share its status are its causes."""
    causes = {check.name for check in listed if check.status == verdict}
    if verdict == PASSED and evidence == "proxy":
        return "gate the plan itself where its device is: this verdict is from a CPU that stood in for it"
    if verdict == PASSED:
        return f"serve {after.name}; keep its predictions as the --baseline of the next change"
    if verdict == FAILED and accuracy_verdict != FAILED:
        return "keep the reference's precision here: the lower one is accurate enough and not faster"
    if any(name.endswith("in effect") for name in causes):
        return "count the layers that really run in low precision: it was built without, or from a graph fused beforehand"
    if "finite logits" in causes:
        return "keep the layers that overflow in FP32: squares in LayerNorm and mask constants beyond 65504 are the usual ones"
    if verdict == FAILED:
        return (
            "build with --max-drop, which gives the layers that do the harm back to FP16, or calibrate anew with --smooth 0.95"
        )
    if drop.decision == INCONCLUSIVE and drop.rows_needed is None:
        return "choose another margin or a better plan: the drop lies at this one, and more rows will not decide soon"
    if drop.decision == INCONCLUSIVE:
        return (
            f"judge on about {drop.rows_needed:,} rows, an estimate from the flips seen{_why_so_many(drop, before, confidence)}"
        )
    if "speed-up" in causes:
        return "measure both on one device with more repeats, or leave --min-speedup out"
    return "judge on more rows"


def _why_so_many(drop: Drop, before: Side, confidence: float) -> str:
    rows, value = before.value.rows, before.value.value
    if drop.worse is None:
        return ""
    known = f"; {rows:,} rows know {100 * value:.1f} % to ±{100 * half_width(value, rows):.1f} points"
    least = rows_without_flips(drop.margin_points / 100, 1 - confidence / 100)
    return f"{known}, and with no flip at all this margin takes {least:,}" if rows < least else known
