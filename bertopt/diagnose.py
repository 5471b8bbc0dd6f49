"""Records -> Verdict / Why / Next: what bounds the best rung now, on what evidence, and what to try.

A rule looks at one record and returns a finding or abstains; the first that speaks is the verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bertopt.records import RungRecord, Verdict


@dataclass(frozen=True)
class Thresholds:
    reached: float = 0.85  # share of the lower ceiling above which that ceiling is what binds
    padding: float = 0.15  # share of computed tokens above which padding is worth removing
    kernels_idle: float = 0.6  # kernel-busy over span below which launching is what takes the time


@dataclass(frozen=True)
class Evidence:
    """The best rung and the ladder that it stands in."""

    best: RungRecord
    rungs: list[RungRecord]
    device: str
    limits: Thresholds

    def not_yet(self) -> str:
        """What of the ladder was not measured here, as the thing to try next."""
        faster = {"fp16": "half precision", "int8": "INT8 behind its gate", "packed": "packing"}
        open_rungs = [r for r in self.rungs if r.name in faster and r.status == "skipped" and r.remedy]
        return "; ".join(f"{faster[r.name]} ({r.remedy})" for r in open_rungs)


Rule = Callable[[Evidence], Verdict | None]


def verdict(best: RungRecord | None, rungs: list[RungRecord], device: str, limits: Thresholds | None = None) -> Verdict | None:
    """The first finding of RULES on the best rung; None where nothing was measured, or too little to tell."""
    if best is None or best.throughput_seq_s is None:
        return None
    evidence = Evidence(best, rungs, device, limits or Thresholds())
    return next((finding for rule in RULES if (finding := rule(evidence)) is not None), None)


def tokenize_bound(e: Evidence) -> Verdict | None:
    best = e.best
    if not _lower_is(best, best.tokenizer_ceiling_seq_s) or not _reached(e):
        return None
    if best.workers is None:
        how, what_next = "serially", "tokenize ahead of compute (--rungs prefetch)"
    else:
        how = f"with {best.workers} worker{'s' if best.workers > 1 else ''}"
        what_next = f"more workers if there are cores for them (--workers {best.workers + 1}), or a host with more"
    return Verdict(
        "the tokenizer",
        f"it delivers {best.tokenizer_ceiling_seq_s:,.0f} seq/s on its own {how}, and the device could take "
        f"{best.device_ceiling_seq_s:,.0f}; {best.name} reaches {best.ceiling_share:.0%} of the lower",
        what_next,
    )


def launch_bound(e: Evidence) -> Verdict | None:
    best = e.best
    if best.utilization_kernel_busy is None or best.utilization_span is None:
        return None
    if best.utilization_kernel_busy > e.limits.kernels_idle * best.utilization_span:
        return None
    return Verdict(
        "launching kernels",
        f"the device spans {best.utilization_span:.0%} of the time and kernels run in {best.utilization_kernel_busy:.0%} of it",
        f"CUDA graphs or fewer kernels: {e.not_yet() or 'a built plan (--rungs fp16), a larger --bs'}",
    )


def padding_waste(e: Evidence) -> Verdict | None:
    best = e.best
    if best.padding_fraction is None or best.padding_fraction < e.limits.padding:
        return None
    attention = "" if best.attention_waste_fraction is None else f", and {best.attention_waste_fraction:.0%} of attention"
    return Verdict(
        "padding",
        f"{best.padding_fraction:.0%} of the tokens that {best.name} computes are padding{attention}",
        _less_padding(best),
    )


def _less_padding(best: RungRecord) -> str:
    if best.stages.get("batching") not in ("bucketed", "packed"):
        return "length buckets (--rungs bucketed)"
    if best.requests and best.window and best.requests < best.window:
        return f"more requests (--limit): {best.requests:,} do not fill a window of {best.window:,}"
    return f"a --window beyond {best.window:,} requests" if best.window else "a wider --window"


def compute_bound(e: Evidence) -> Verdict | None:
    best = e.best
    if not _lower_is(best, best.device_ceiling_seq_s) or not _reached(e):
        return None
    where = "the processor's" if e.device == "cpu" else "the GPU's"
    return Verdict(
        f"{where} arithmetic",
        f"{best.name} reaches {best.ceiling_share:.0%} of what the device does on batches that lie ready "
        f"({best.device_ceiling_seq_s:,.0f} seq/s), the tokenizer could deliver {best.tokenizer_ceiling_seq_s:,.0f}, "
        f"and {best.padding_fraction or 0:.0%} of the tokens are padding",
        e.not_yet() or "a smaller model, or more of these machines",
    )


def slowed_down(e: Evidence) -> Verdict | None:
    """Busy throughout, and yet slower than on its own: something takes what it computes with."""
    best = e.best
    if not _lower_is(best, best.device_ceiling_seq_s) or _reached(e) or best.ceiling_share is None:
        return None
    if best.utilization_span is None or best.utilization_span < e.limits.reached:
        return None
    return Verdict(
        "other work on the processor's cores" if e.device == "cpu" else "other work on the GPU or its host",
        f"{best.name} computes for {best.utilization_span:.0%} of the time, and that gives {best.ceiling_share:.0%} of what it "
        "does on batches that lie ready: tokenizing, or another process, slows it down",
        "the same on a quiet machine, or with fewer --workers",
    )


def host_bound(e: Evidence) -> Verdict | None:
    best = e.best
    phases = {"device time": best.device_ms, "tokenizing": best.tokenize_ms, "collation": best.collate_ms}
    if best.ceiling_share is None or None in phases.values():
        return None
    return Verdict(
        "the host's own loop",
        f"{best.name} reaches {best.ceiling_share:.0%} of its lower ceiling: a batch takes "
        + ", ".join(f"{ms:.1f} ms of {what}" for what, ms in phases.items()),
        "a larger --bs, and a look at the timeline of its batch",
    )


def _reached(e: Evidence) -> bool:
    return e.best.ceiling_share is not None and e.best.ceiling_share >= e.limits.reached


def _lower_is(best: RungRecord, ceiling: float | None) -> bool:
    """Whether this one of the two ceilings is the lower; nobody knows where one was not measured."""
    both = best.tokenizer_ceiling_seq_s, best.device_ceiling_seq_s
    return None not in both and ceiling == min(filter(None, both))


RULES: tuple[Rule, ...] = (tokenize_bound, launch_bound, padding_waste, compute_bound, slowed_down, host_bound)
