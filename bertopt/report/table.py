"""The table of everything: each number of a rung with its unit, and what the kinds of utilization mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bertopt.records import Percentiles, RungRecord
from bertopt.report import wording
from bertopt.report.view import PHASES, plain
from bertopt.report.wording import count, figure, interval, percent, times


@dataclass(frozen=True)
class Metric:
    """One row of the table of everything: a name, a unit, and the text of each rung's cell."""

    name: str
    unit: str
    cell: Callable[[RungRecord], str]


UTILIZATIONS = (
    (
        "Span",
        "utilization_span",
        "The share of the run in which some batch was between the start and the end of its work on the device. An upper bound: "
        "a stream of tiny kernels with gaps between them spans the whole time and computes little.",
    ),
    (
        "Kernel-busy",
        "utilization_kernel_busy",
        "The share of time in which at least one kernel ran. It says nothing about how much of the chip that kernel used.",
    ),
    (
        "SM active",
        "utilization_sm_active",
        "The share of the streaming multiprocessors that had work, averaged over time. The first number that tells a full chip "
        "from an occupied one.",
    ),
    (
        "Tensor active",
        "utilization_tensor_active",
        "The share of time in which the tensor cores multiplied. What lower precision pays for.",
    ),
    (
        "nvidia-smi",
        "utilization_nvidia_smi",
        "What the tool shows. A sample counts as busy when any kernel was resident in it, however small: on an H200 a "
        "stream of one-element kernels read 25 % while 0.03 % of the multiprocessors were active. Alone it "
        "makes a starved device look well fed.",
    ),
    (
        "Cores busy",
        "utilization_cores_busy",
        "Busy time of the processor's cores, whoever used them: tokenizing and padding count as much as useful arithmetic.",
    ),
)


def _percentile(which: str) -> Callable[[RungRecord], str]:
    def cell(rung: RungRecord) -> str:
        times_ms: Percentiles | None = rung.batch_ms
        return wording.NOT_MEASURED if times_ms is None else figure(getattr(times_ms, which))

    return cell


def _number(field: str) -> Callable[[RungRecord], str]:
    return lambda rung: figure(getattr(rung, field))


def _share(field: str) -> Callable[[RungRecord], str]:
    return lambda rung: percent(getattr(rung, field))


def _whole(field: str) -> Callable[[RungRecord], str]:
    return lambda rung: count(getattr(rung, field))


def _text(field: str) -> Callable[[RungRecord], str]:
    return lambda rung: plain(getattr(rung, field))


def _cost(rung: RungRecord) -> str:
    """In percent, with the digits that something so small needs."""
    return figure(None if rung.probe_cost_fraction is None else 100 * rung.probe_cost_fraction, 2)


def _stage(name: str) -> Callable[[RungRecord], str]:
    return lambda rung: rung.stages.get(name, wording.NOT_MEASURED)


def _joined(values: Iterable[float]) -> str:
    return ", ".join(map(figure, values)) or wording.NOT_MEASURED


TABLE: dict[str, tuple[Metric, ...]] = {
    "What ran": (
        Metric("Status", "", _text("status")),
        *(
            Metric(name.capitalize(), "asked for", _stage(name))
            for name in ("tokenizer", "feed", "batching", "backend", "precision")
        ),
        Metric("Precision", "read back", _text("precision")),
        Metric("Back end", "", _text("backend_version")),
        Metric("Workers", "", _whole("workers")),
        Metric("Batches in flight", "", _whole("in_flight")),
        Metric("Window", "requests", _whole("window")),
        Metric("Bucket edges", "tokens", _text("bucket_edges")),
        Metric("Graph", "", _text("graph")),
    ),
    "Speed, end to end": (
        Metric("Throughput", "seq/s", _number("throughput_seq_s")),
        Metric("Slowest repeat", "seq/s", _number("throughput_low_seq_s")),
        Metric("Fastest repeat", "seq/s", _number("throughput_high_seq_s")),
        Metric("Every repeat", "seq/s", lambda r: _joined(r.repeats_seq_s)),
        Metric("Real tokens", "tokens/s", _number("throughput_tokens_s")),
        Metric("Over the baseline", "times", lambda r: times(r.speedup_over_baseline)),
        Metric("Over its parent", "times", lambda r: times(r.speedup_over_parent)),
        Metric("Against its parent", "", _text("parent_verdict")),
        Metric("Requests", "", _whole("requests")),
        Metric("Batches", "", _whole("batches")),
        Metric("Failed batches", "not counted", _whole("failed_batches")),
        Metric("Truncated requests", "", _whole("truncated_requests")),
    ),
    "Time": (
        Metric("Batch, p50", "ms", _percentile("p50")),
        Metric("Batch, p90", "ms", _percentile("p90")),
        Metric("Batch, p99", "ms", _percentile("p99")),
        Metric("First batch", "ms", _number("first_batch_ms")),
        Metric("Warm-up", "s", _number("warmup_s")),
        Metric("Export, build, load", "s", _number("prepare_s")),
        *(Metric(name.capitalize(), "ms a batch", _number(key)) for name, key, _ in PHASES),
    ),
    "Padding": (
        Metric("Wasted tokens", "% of computed", _share("padding_fraction")),
        Metric("Wasted attention", "% of FLOPs", _share("attention_waste_fraction")),
    ),
    "Ceilings and utilization": (
        Metric("Device's ceiling", "seq/s", _number("device_ceiling_seq_s")),
        Metric("Tokenizer's ceiling", "seq/s", _number("tokenizer_ceiling_seq_s")),
        Metric("Share of the lower one", "%", _share("ceiling_share")),
        Metric("Utilization, predicted", "%", _share("utilization_predicted")),
        *(Metric(name, "%", _share(field)) for name, field, _ in UTILIZATIONS),
        Metric("Cost of the probes", "% of time", _cost),
    ),
    "Memory": (
        Metric("Process, peak", "MiB", _number("peak_process_mib")),
        Metric("Device, peak", "MiB", _number("peak_device_mib")),
    ),
    "Answers": (
        Metric("Logits against eager FP32", "of their spread", wording.parity),
        Metric("Accuracy", "%, 95 % interval", lambda r: interval(r.accuracy)),
        Metric("Labels equal to the baseline's", "%", _share("label_agreement")),
        Metric("Accuracy gate", "", wording.gate),
    ),
}
