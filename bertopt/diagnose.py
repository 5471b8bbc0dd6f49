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
    """The first finding of RULES on the best rung; None where nothing was measured."""
    if best is None or best.throughput_seq_s is None:
        return None
    evidence = Evidence(best, rungs, device, limits or Thresholds())
    return next(finding for rule in RULES if (finding := rule(evidence)) is not None)


def tokenize_bound(e: Evidence) -> Verdict | None:
    best = e.best
    if not _lower_is_tokenizer(best) or (best.ceiling_share or 0) < e.limits.reached:
        return None
    workers = best.workers or 1
    return Verdict(
        "the tokenizer",
        f"it delivers {best.tokenizer_ceiling_seq_s:,.0f} seq/s on its own with {workers} worker(s), and the device could take "
        f"{best.device_ceiling_seq_s:,.0f}; {best.name} reaches {best.ceiling_share:.0%} of the lower",
        f"more tokenizing workers if there are cores for them (--workers {workers + 1}), or another host for them",
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
    return Verdict(
        "padding",
        f"{best.padding_fraction:.0%} of the tokens that {best.name} computes are padding, and "
        f"{best.attention_waste_fraction or 0:.0%} of attention",
        "length buckets (--rungs bucketed) or a wider --window",
    )


def compute_bound(e: Evidence) -> Verdict | None:
    best = e.best
    if _lower_is_tokenizer(best) or (best.ceiling_share or 0) < e.limits.reached:
        return None
    where = "the processor's" if e.device == "cpu" else "the GPU's"
    return Verdict(
        f"{where} arithmetic",
        f"{best.name} reaches {best.ceiling_share:.0%} of what the device does on batches that lie ready "
        f"({best.device_ceiling_seq_s:,.0f} seq/s), the tokenizer could deliver {best.tokenizer_ceiling_seq_s:,.0f}, "
        f"and {best.padding_fraction or 0:.0%} of the tokens are padding",
        e.not_yet() or "a smaller model, or more of these machines",
    )


def host_bound(e: Evidence) -> Verdict | None:
    best = e.best
    return Verdict(
        "the host's own loop",
        f"{best.name} reaches {best.ceiling_share or 0:.0%} of its lower ceiling: a batch takes {best.device_ms or 0:.1f} ms "
        f"of device time, {best.tokenize_ms or 0:.1f} of tokenizing and {best.collate_ms or 0:.1f} of collation",
        "a larger --bs, and a look at the timeline of its batch",
    )


def _lower_is_tokenizer(best: RungRecord) -> bool:
    return (best.tokenizer_ceiling_seq_s or 0.0) < (best.device_ceiling_seq_s or 0.0)


RULES: tuple[Rule, ...] = (tokenize_bound, launch_bound, padding_waste, compute_bound, host_bound)
