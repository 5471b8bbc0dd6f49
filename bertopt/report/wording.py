"""Numbers and rungs as words, the same in every report. What was not measured reads `NOT_MEASURED`, never 0."""

from __future__ import annotations

import math

from bertopt.records import Interval, LadderRecord, RungRecord, Verdict

NOT_MEASURED = "–"

BACKENDS = {
    "eager": "PyTorch",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "tensorrt": "TensorRT",
    "packed": "PyTorch and Triton",
}
BATCHING = {
    "fixed": "padded to {seq} tokens",
    "dynamic": "padded to the longest of each batch",
    "bucketed": "with length buckets",
    "packed": "with packed sequences",
}


def figure(value: float | None, digits: int = 3) -> str:
    """`value` to `digits` significant digits, thousands separated; whole numbers above that keep all of theirs."""
    if value is None:
        return NOT_MEASURED
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -3:
        return f"{value:.{digits - 1}g}"
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def count(value: int | None) -> str:
    return NOT_MEASURED if value is None else f"{value:,}"


def percent(fraction: float | None, decimals: int = 1) -> str:
    """A fraction of one as a percentage, without its sign."""
    return NOT_MEASURED if fraction is None else f"{100 * fraction:.{decimals}f}"


def times(ratio: float | None) -> str:
    """How many times: 5.31x, 12.4x, 124x."""
    return NOT_MEASURED if ratio is None else f"{ratio:.{2 if ratio < 9.995 else 1 if ratio < 99.95 else 0}f}x"


def interval(proportion: Interval | None) -> str:
    """A proportion in percent with its confidence interval: 88.1 (86.9–89.2)."""
    if proportion is None:
        return NOT_MEASURED
    return f"{percent(proportion.value)} ({percent(proportion.low)}–{percent(proportion.high)})"


def spread(rung: RungRecord) -> str:
    """How far the furthest repeat lies from the median, in percent of it; nothing where there was one repeat."""
    middle, low, high = rung.throughput_seq_s, rung.throughput_low_seq_s, rung.throughput_high_seq_s
    if not middle or low is None or high is None or len(rung.repeats_seq_s) == 1:
        return ""
    share = max(high - middle, middle - low) / middle
    return f"±{percent(share, 1 if share < 0.0995 else 0)}%"


def over_parent(rung: RungRecord) -> str:
    """The gain over the parent, or "no difference" where it lies inside the spread."""
    return "no difference" if rung.parent_verdict == "no difference" else times(rung.speedup_over_parent)


def parity(rung: RungRecord) -> str:
    """Largest logit difference over the spread of the reference logits, or FAILED."""
    if rung.parity is None:
        return NOT_MEASURED
    return f"{rung.parity.relative_difference:.2g}" if rung.parity.passed else "FAILED"


def gate(rung: RungRecord) -> str:
    """ "passed: accuracy fell 0.04 points (-0.2 to 0.3; at most 0.5), 99.4 % of labels agree, 2,693 rows"."""
    found = rung.gate_summary
    if rung.gate is None:
        return NOT_MEASURED
    if found is None:
        return f"{rung.gate}: {rung.gate_reason}" if rung.gate_reason else rung.gate
    way = "rose" if found.drop_points < 0 else "fell"
    parts = [f"{rung.gate}: {found.metric} {way} by {abs(found.drop_points):.2f} points ({drop(rung)})"]
    if found.label_agreement is not None:
        parts.append(f"{percent(found.label_agreement.value, 2)} % of labels agree")
    parts.append(f"{count(found.rows)} rows" + (f" of {count(found.documents)} documents" if found.documents else ""))
    if rung.gate == "inconclusive" and found.rows_needed:
        parts.append(f"about {count(found.rows_needed)} would decide")
    if rung.gate == "inconclusive" and rung.precision in ("bf16", "fp16"):
        parts.append("parity stands for it")
    return ", ".join(parts) + ("" if rung.gate != "failed" else f"; {found.reason}")


def drop(rung: RungRecord) -> str:
    """The interval of the drop, and what it may be."""
    found = rung.gate_summary
    if found is None:
        return NOT_MEASURED
    return f"{found.drop_low_points:.2f} to {found.drop_high_points:.2f}; at most {found.max_drop_points:g}"


def lower_ceiling(rung: RungRecord) -> tuple[str, float] | None:
    """Which ceiling is the lower one, "device" or "tokenizer", in sequences a second."""
    known = [
        (value, name)
        for name, value in (("device", rung.device_ceiling_seq_s), ("tokenizer", rung.tokenizer_ceiling_seq_s))
        if value is not None
    ]
    if not known:
        return None
    value, name = min(known)
    return name, value


def root(record: LadderRecord) -> RungRecord | None:
    """The rung that all others are compared with: the naive service."""
    return record.rung("baseline") or next((r for r in record.rungs if r.parent is None), None)


def best(record: LadderRecord) -> RungRecord | None:
    return record.rung(record.best) if record.best is not None else None


def describe(rung: RungRecord, sequence_length: int) -> str:
    """What a rung is, in a reader's words: "BF16 on OpenVINO with length buckets"."""
    backend, batching = rung.stages.get("backend"), rung.stages.get("batching")
    if rung.precision is None or backend is None:
        return f"The {rung.name} rung"
    what = f"{rung.precision.upper()} on {BACKENDS.get(backend, backend)}"
    how = BATCHING.get(batching or "", "").format(seq=sequence_length)
    return f"{what} {how}".rstrip()


def headline(record: LadderRecord) -> str:
    """What the run found, in one sentence. It claims no gain that lies inside the spread of the repeats."""
    fastest, naive = best(record), root(record)
    if fastest is None or fastest.throughput_seq_s is None:
        return "No rung was measured to the end and passed its checks"
    after = _rate(fastest.throughput_seq_s)
    if naive is not None and fastest.name == naive.name:
        return f"Nothing that was measured beats the naive service: {after} sequences a second"
    what = describe(fastest, record.sequence_length)
    if naive is None or naive.throughput_seq_s is None or fastest.speedup_over_baseline is None:
        return f"{what} serves {after} sequences a second"
    before = _rate(naive.throughput_seq_s)
    if _overlap(naive, fastest):
        return f"{what} is no different from the naive service: {before} and {after} sequences a second"
    gain = fastest.speedup_over_baseline
    return f"{what} serves {gain:.{1 if gain < 99.95 else 0}f}x the naive service: {before} → {after} sequences a second"


def bound(verdict: Verdict) -> str:
    """The verdict as one paragraph. What to try next stands last and as it is, since it may be a command to copy."""
    why = verdict.why if verdict.why.endswith((".", "!", "?")) else verdict.why + "."
    return f"Bound by {verdict.bound_by}: {why} Next: {verdict.next}"


def facts(record: LadderRecord) -> list[str]:
    """What was run on what, in the fewest words; each is a part of one line."""
    model = record.model.name + (" in random weights: speed only" if record.model.weights == "random" else "")
    return [
        model,
        f"{record.data.name}, {count(record.data.requests)} requests",
        f"batch {record.batch_size}, up to {record.sequence_length} tokens",
        record.device.upper() if record.device in ("cpu", "cuda") else record.device,
        "one repeat" if record.repeats == 1 else f"median of {record.repeats} repeats",
    ]


def _rate(value: float) -> str:
    return figure(value, 2)


def _overlap(a: RungRecord, b: RungRecord) -> bool:
    ends = (a.throughput_low_seq_s, a.throughput_high_seq_s, b.throughput_low_seq_s, b.throughput_high_seq_s)
    if any(e is None for e in ends):
        return False
    a_low, a_high, b_low, b_high = ends
    return a_low <= b_high and b_low <= a_high  # type: ignore[operator]
