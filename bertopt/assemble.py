"""What was measured of a rung -> its record."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt import ladder
from bertopt.batching import Bucketed
from bertopt.graph import parity
from bertopt.judging import GATED, Judged
from bertopt.measure import summary
from bertopt.measure.gpu import GpuProbe
from bertopt.measure.loop import Pass
from bertopt.measure.statistics import compare, wilson
from bertopt.records import Interval, RungRecord
from bertopt.records_card import CardReading
from bertopt.run import Missing, Opened


def broken_record(opened: Opened) -> RungRecord:
    """A rung that stopped while it was measured: it has no figures."""
    return missing_record(Missing(opened.rung, opened.pipeline, "failed", opened.broken or ""))


def missing_record(missing: Missing) -> RungRecord:
    return RungRecord(
        name=missing.rung.name,
        summary=missing.rung.summary,
        parent=missing.rung.parent,
        status=missing.status,
        reason=missing.reason,
        remedy=missing.remedy,
        stages=ladder.as_stages(missing.pipeline),
    )


def measured_record(
    opened: Opened,
    *,
    truth: NDArray[np.int64] | None,
    baseline_answers: NDArray[np.float32] | None,
    labelled_head: bool,
    truncated: int,
    kernel_busy: float | None,
    notes: list[str],
    judged: Judged | None = None,
) -> RungRecord:
    """Median figures over the repeats. `truth` is the class of each request, where the file has labels that the model knows."""
    repeats, last = opened.repeats, opened.repeats[-1].done
    worst = max((r.done for r in repeats), key=lambda done: len(done.failures))
    speeds = [r.done.throughput_seq_s for r in repeats]
    times = summary.phases(repeats)
    broken = broken_answers(opened)
    status, reason = ("failed", broken) if broken else ("measured", None)
    share = [r.done.throughput_seq_s / min(r.device_ceiling_seq_s, r.tokenizer_ceiling_seq_s) for r in repeats]
    probe = [r.gpu.cost_s / r.done.seconds for r in repeats]
    return RungRecord(
        name=opened.rung.name,
        summary=opened.rung.summary,
        parent=opened.rung.parent,
        status=status,
        reason=reason,
        stages=ladder.as_stages(opened.pipeline),
        precision=opened.session.precision,
        backend_version=opened.session.version,
        workers=opened.workers,
        in_flight=opened.in_flight,
        window=opened.policy.window,
        bucket_edges=list(opened.policy.edges) if isinstance(opened.policy, Bucketed) else None,
        graph=opened.artifact.info or None,
        throughput_seq_s=median(speeds),
        throughput_low_seq_s=min(speeds),
        throughput_high_seq_s=max(speeds),
        repeats_seq_s=speeds,
        throughput_tokens_s=median(r.done.real_tokens / r.done.seconds for r in repeats),
        requests=last.rows,
        batches=len(last.batches) + len(last.failures),
        failed_batches=len(worst.failures),
        truncated_requests=truncated,
        batch_ms=summary.batch_percentiles(repeats),
        warmup_s=opened.warmup_s,
        first_batch_ms=opened.first_batch_ms,
        prepare_s=opened.prepare_s,
        tokenize_ms=times.tokenize_ms,
        collate_ms=times.collate_ms,
        launch_ms=times.launch_ms,
        copy_in_ms=times.copy_in_ms,
        device_ms=times.device_ms,
        copy_out_ms=times.copy_out_ms,
        postprocess_ms=times.postprocess_ms,
        padding_fraction=1.0 - last.real_tokens / last.computed_tokens,
        attention_waste_fraction=1.0 - last.real_pairs / last.computed_pairs,
        device_ceiling_seq_s=median(r.device_ceiling_seq_s for r in repeats),
        tokenizer_ceiling_seq_s=median(r.tokenizer_ceiling_seq_s for r in repeats),
        ceiling_share=median(share),
        utilization_predicted=summary.predicted_utilization(times, opened.workers),
        utilization_span=median(summary.span_utilization(r.done) for r in repeats),
        utilization_kernel_busy=kernel_busy,
        utilization_sm_active=summary.middle([r.gpu.sm_active for r in repeats]),
        utilization_tensor_active=summary.middle([r.gpu.tensor_active for r in repeats]),
        utilization_nvidia_smi=summary.middle([r.gpu.nvidia_smi for r in repeats]),
        utilization_cores_busy=summary.middle([r.process.cores_busy for r in repeats]),
        probe_cost_fraction=median(probe),
        card=card_reading(repeats[-1].gpu),
        peak_process_mib=summary.middle([r.process.peak_mib for r in repeats]),
        peak_device_mib=opened.session.peak_device_mib(),
        parity=opened.parity,
        accuracy=accuracy(last, truth),
        label_agreement=agreement(last, baseline_answers) if labelled_head else None,
        gate=judged.status if judged else None,
        gate_reason=judged.reason if judged else None,
        gate_summary=judged.summary() if judged else None,
        timeline=summary.timeline(last),
        notes=notes + [f"{len(worst.failures)} batches failed, the first with: {text}" for text in worst.failures[:1]],
    )


def card_reading(probe: GpuProbe) -> CardReading | None:
    """What the card said of the last repeat; None where there is no card to ask."""
    reading = probe.reading()
    return reading if reading.samples or reading.reasons else None


def broken_answers(opened: Opened) -> str | None:
    """Why a rung's answers cannot be served whatever its speed; None where they can."""
    done = opened.repeats[-1].done
    if opened.parity is not None and not opened.parity.passed:
        return f"parity with eager FP32 is broken: {parity.describe(opened.parity)}"
    logits = done.answers.stacked()
    empty = len(logits) - done.rows if done.answers.logits is not None else 0  # of failed batches: NaN, and no answers
    if (~np.isfinite(logits).all(axis=1)).sum() > empty:
        return "some logits are NaN or infinite"
    return None


def classes(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    return np.asarray(logits.argmax(axis=-1))


def accuracy(done: Pass, truth: NDArray[np.int64] | None) -> Interval | None:
    if truth is None or done.answers.logits is None:
        return None
    answered = np.isfinite(done.answers.logits).all(axis=1)
    return wilson(int((classes(done.answers.logits) == truth)[answered].sum()), int(answered.sum()))


def agreement(done: Pass, baseline: NDArray[np.float32] | None) -> float | None:
    """Share of the rows that both answered whose class is the baseline's."""
    ours: Any = done.answers.stacked()
    if baseline is None or ours.shape != baseline.shape:
        return None
    both = np.isfinite(ours).all(axis=1) & np.isfinite(baseline).all(axis=1)
    return float((classes(ours) == classes(baseline))[both].mean()) if both.any() else None


def with_comparisons(rungs: list[RungRecord]) -> list[RungRecord]:
    """The records with their speed-ups over the baseline and the parent; inside the spread of the repeats is no difference."""
    import dataclasses

    known = {r.name: r for r in rungs}
    compared = []
    for rung in rungs:
        changes: dict[str, Any] = {}
        if rung.throughput_seq_s is not None:
            baseline, parent = known.get("baseline"), known.get(rung.parent or "")
            if baseline is not None and baseline.throughput_seq_s:
                changes["speedup_over_baseline"] = rung.throughput_seq_s / baseline.throughput_seq_s
            if parent is not None and parent.throughput_seq_s:
                changes["speedup_over_parent"] = rung.throughput_seq_s / parent.throughput_seq_s
                if len(rung.repeats_seq_s) > 1 < len(parent.repeats_seq_s):  # one repeat has no spread to judge by
                    changes["parent_verdict"] = compare(rung.repeats_seq_s, parent.repeats_seq_s)
        compared.append(dataclasses.replace(rung, **changes))
    return compared


def best(rungs: list[RungRecord]) -> RungRecord | None:
    """The fastest rung whose answers are right. Ablations only explain it.

    Where precision is expected to change answers, only a gate that passed will do. Of BF16 and FP16 parity is the evidence
    as long as the gate does not fail.
    """
    known = {rung.name for rung in ladder.RUNGS}
    fit = [
        r
        for r in rungs
        if r.name in known
        and r.status == "measured"
        and r.throughput_seq_s
        and (r.gate == "passed" or (r.gate != "failed" and not _must_pass(r)))
    ]
    return max(fit, key=lambda r: r.throughput_seq_s or 0.0, default=None)


def _must_pass(rung: RungRecord) -> bool:
    return rung.name in GATED or rung.precision in ("int8", "fp8")
