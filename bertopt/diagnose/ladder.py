"""The verdict of a ladder: the rules on its best rung, and what of the ladder was not tried yet."""

from __future__ import annotations

from bertopt.diagnose.policy import Policy
from bertopt.diagnose.rules import findings
from bertopt.records import RungRecord, Verdict
from bertopt.records_diagnosis import Finding, Observation

# Verdict -> the same as a reader of a ladder would say it, "bound by ..."
WORDS = {
    "TOKENIZE-BOUND": "the tokenizer",
    "COLLATE-BOUND": "collation on the host",
    "PAGEABLE-COPY": "copies from pageable memory",
    "TRANSFER-BOUND": "copies to and from the device",
    "SYNC-STALLED": "the host waiting for the device",
    "LAUNCH-BOUND": "launching kernels",
    "UNDERFILLED": "batches that do not fill the device",
    "PADDING-WASTE": "padding",
    "POSTPROCESS-BOUND": "what is done with the answers",
    "BALANCED": "tokenizer and device alike",
    "MEMORY-BOUND": "memory's bandwidth",
    "POWER-LIMITED": "the card's power or temperature",
    "INCONCLUSIVE": "nothing that this run can tell",
}
FASTER = {"fp16": "half precision", "int8": "INT8 behind its gate", "packed": "packing"}


def observe(rung: RungRecord, device: str) -> Observation:
    """What a rung's record says, as the rules read it: means per batch, and its two ceilings as times of a batch."""
    batches = (rung.batches or 0) - (rung.failed_batches or 0)
    rows = rung.requests / batches if rung.requests and batches > 0 else None

    def interval(throughput: float | None) -> float | None:
        return 1e3 * rows / throughput if throughput and rows else None

    return Observation(
        device=device,
        rows=rows,
        batches=batches * max(1, len(rung.repeats_seq_s)),
        batch_ms=interval(rung.throughput_seq_s),
        repeats_ms=[ms for s in rung.repeats_seq_s if (ms := interval(s)) is not None],
        workers=rung.workers,
        in_flight=rung.in_flight or 1,
        pinned=None if device == "cpu" else rung.workers is not None,
        tokenizer=rung.stages.get("tokenizer"),
        batching=rung.stages.get("batching"),
        backend=rung.stages.get("backend"),
        precision=rung.precision,
        window=rung.window,
        requests=rung.requests,
        tokenize_ms=rung.tokenize_ms,
        collate_ms=rung.collate_ms,
        copy_in_ms=rung.copy_in_ms,
        launch_ms=rung.launch_ms,
        device_ms=rung.device_ms,
        copy_out_ms=rung.copy_out_ms,
        postprocess_ms=rung.postprocess_ms,
        device_alone_ms=interval(rung.device_ceiling_seq_s),
        tokenize_alone_ms=interval(rung.tokenizer_ceiling_seq_s),
        kernel_busy=rung.utilization_kernel_busy,
        span=rung.utilization_span,
        card=rung.card,
        padding_fraction=rung.padding_fraction,
        attention_waste_fraction=rung.attention_waste_fraction,
        probe_cost_fraction=rung.probe_cost_fraction,
    )


def verdict(best: RungRecord | None, rungs: list[RungRecord], device: str, policy: Policy | None = None) -> Verdict | None:
    """The first finding on the best rung; None where nothing was measured, or too little to tell."""
    if best is None or best.throughput_seq_s is None:
        return None
    seen = observe(best, device)
    found = findings(seen, policy)[0]
    if found.verdict == "INCONCLUSIVE" and seen.device_ms is None:
        return None
    return Verdict(_words(found, device), found.why, _next(found, seen, rungs))


def _words(found: Finding, device: str) -> str:
    if found.verdict == "COMPUTE-BOUND":
        return "the processor's arithmetic" if device == "cpu" else "the GPU's arithmetic"
    if found.verdict == "CORES-CONTENDED":
        return "other work on the processor's cores" if device == "cpu" else "other work on the GPU or its host"
    return WORDS[found.verdict]


def _next(found: Finding, o: Observation, rungs: list[RungRecord]) -> str:
    """What to try in terms of the ladder."""
    untried = "; ".join(
        f"{FASTER[r.name]} ({r.remedy})" for r in rungs if r.name in FASTER and r.status == "skipped" and r.remedy
    )
    if found.verdict == "TOKENIZE-BOUND":
        if o.workers is None:
            return "tokenize ahead of compute (--rungs prefetch)"
        more = f"more workers if there are cores for them (--workers {o.workers + 1})"
        return f"{more}, or a host with more, or token ids kept upstream"
    if found.verdict == "PADDING-WASTE":
        return _less_padding(o)
    if found.verdict in ("COLLATE-BOUND", "PAGEABLE-COPY", "TRANSFER-BOUND"):
        return "workers, pinned buffers and copies beside compute (--rungs prefetch)"
    if found.verdict == "LAUNCH-BOUND":
        return f"CUDA graphs or fewer kernels: {untried or 'a built plan (--rungs fp16), a larger --bs'}"
    if found.verdict == "CORES-CONTENDED":
        return "the same on a quiet machine, or with fewer --workers"
    if found.verdict in ("COMPUTE-BOUND", "MEMORY-BOUND", "POWER-LIMITED"):
        return untried or "a smaller model, or more of these machines"
    if found.verdict == "INCONCLUSIVE":
        return "more requests (--limit) on a quiet machine, or bertopt diagnose on the same model and texts"
    return "bertopt diagnose on the same model and texts, for what a ladder does not measure"


def _less_padding(o: Observation) -> str:
    if o.batching not in ("bucketed", "packed"):
        return "length buckets (--rungs bucketed)"
    if o.requests and o.window and o.requests < o.window:
        return f"more requests (--limit): {o.requests:,} do not fill a window of {o.window:,}"
    return f"a --window beyond {o.window:,} requests" if o.window else "a wider --window"
