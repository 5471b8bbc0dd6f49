"""What to do about a finding, as a command to paste."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from bertopt.diagnose.rules import all_cores_tokenize
from bertopt.records_diagnosis import Finding, Observation

# Finding -> the rung of the ladder that mends it, in the order in which they are tried
RUNGS = {
    "COLLATE-BOUND": ("prefetch",),
    "PAGEABLE-COPY": ("prefetch",),
    "TRANSFER-BOUND": ("prefetch",),
    "PADDING-WASTE": ("bucketed", "packed"),
    "LAUNCH-BOUND": ("fp16", "packed"),
    "COMPUTE-BOUND": ("fp16", "int8"),
    "MEMORY-BOUND": ("fp16", "int8"),
}


@dataclass(frozen=True)
class Context:
    """What a command needs to name the same work again."""

    options: tuple[str, ...]  # of `bertopt diagnose` but for --rung, --bs and --workers
    run: Path
    rung: str
    batch_size: int

    def again(self, rung: str | None = None, batch_size: int | None = None, workers: int | None = None) -> str:
        words = ["bertopt", "diagnose", *self.options, "--bs", str(batch_size or self.batch_size)]
        words += ["--rung", rung or self.rung]
        words += ["--workers", str(workers)] if workers else []
        return shlex.join([*words, "--after", str(self.run)])


def advise(finding: Finding, o: Observation, context: Context | None) -> Finding:
    """The finding with its next command; `context` is None for a training loop, which no command runs."""
    return replace(finding, next=_training(finding, o) if context is None else _service(finding, o, context))


def _service(finding: Finding, o: Observation, context: Context) -> str:
    name = finding.verdict
    if name == "TOKENIZE-BOUND":
        if o.tokenizer == "reference":
            return context.again("fast-tokenizer")
        if o.workers is None:
            return context.again("prefetch")
        if not all_cores_tokenize(o):
            return context.again(workers=o.workers + 1)
        return f"a host with more cores, a second machine, or token ids kept upstream: all {o.cores} cores tokenize already"
    if name == "UNDERFILLED":
        best = min(o.growth, key=lambda g: g.device_ms / g.rows)
        return context.again(batch_size=best.rows)
    if name in RUNGS:
        untried = [rung for rung in RUNGS[name] if rung != context.rung]
        return context.again(untried[0])
    if name == "INCONCLUSIVE":
        return context.again()
    if name == "POWER-LIMITED":
        return "nvidia-smi -q -d POWER,TEMPERATURE,PERFORMANCE"
    if name == "CORES-CONTENDED":
        return context.again(workers=max(1, (o.workers or 2) - 1))
    if name == "SYNC-STALLED":
        return "torch.cuda.set_sync_debug_mode('error') in the service: it names the line that waits"
    return _plan_host(o)


def _training(finding: Finding, o: Observation) -> str:
    if finding.verdict in ("TOKENIZE-BOUND", "COLLATE-BOUND"):
        return _plan_host(o)
    return {
        "SYNC-STALLED": "read the loss every 50 steps, not at every one: loss.detach() until then",
        "PADDING-WASTE": "pad to the longest of each batch and group by length: DataCollatorWithPadding, group_by_length=True",
        "LAUNCH-BOUND": "model = torch.compile(model), or a larger batch",
        "PAGEABLE-COPY": "DataLoader(..., pin_memory=True), and .to(device, non_blocking=True)",
        "TRANSFER-BOUND": "DataLoader(..., pin_memory=True), and .to(device, non_blocking=True)",
        "POWER-LIMITED": "nvidia-smi -q -d POWER,TEMPERATURE,PERFORMANCE",
        "INCONCLUSIVE": "more steps (--steps), or a quieter machine",
        "COMPUTE-BOUND": "torch.autocast in FP16 or BF16"
        if o.precision == "fp32"
        else "fused attention and optimizer: AdamW(..., fused=True), torch.compile(model)",
        "MEMORY-BOUND": "a larger batch, torch.compile(model), AdamW(..., fused=True)",
    }.get(finding.verdict, _plan_host(o))


def _plan_host(o: Observation) -> str:
    host = (o.tokenize_ms or 0.0) + (o.collate_ms or 0.0) + (o.postprocess_ms or 0.0)
    return f"bertopt plan-host --host-ms {host:.3g} --device-ms {o.device_alone_ms or o.device_ms or 0.0:.3g}"
