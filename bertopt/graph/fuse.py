"""Canonical graph -> ONNX Runtime's fused operators, counted against what the architecture should give.

ONNX Runtime's own tool does the rewriting and says nothing when it recognises nothing, so the operators are counted and
the result is judged against the graph that it came from.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from bertopt.errors import BackendUnavailable, GraphError
from bertopt.graph import parity, storage
from bertopt.graph.export import session
from bertopt.model import Checkpoint
from bertopt.records import Parity

EXACT_GELU = {"gelu", "gelu_python"}
TANH_GELU = {"gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_accurate"}
NOT_FUSABLE = {
    "deberta-v2": "its attention adds positions to the scores",
    "mobilebert": "its queries and values come from different inputs",
}
ATTENTION = {"Attention", "MultiHeadAttention"}
NORMS = {"SkipLayerNormalization"}
GELUS = {"Gelu", "BiasGelu", "FastGelu"}
PADDINGS = ("right", "left", "gapped")


@dataclass(frozen=True)
class Fusion:
    """What became of the graph."""

    path: Path
    counts: dict[str, int]  # fused operators by type
    expected: dict[str, int]  # at least so many: attention, skip_layer_norm, gelu
    found: dict[str, int]  # the same keys
    half: bool
    relative_difference: float  # to the graph that it came from, largest of all checked shapes
    notes: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """Plain JSON for the record."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k != "path"}


def fuse(source: Path, target: Path, checkpoint: Checkpoint, *, half: bool = False, mask: str = "raw") -> Fusion:
    """Write the fused graph of `source` to `target`; with `half` in float16, with float32 logits.

    `mask` is how the fused attention reads the mask: "raw" as it is, right for any padding; "length" as a count of
    tokens, right only where rows are padded on the right, for which CUDA has a faster kernel.
    Raises GraphError where fewer operators were fused than the architecture has, an exact GELU became an approximation,
    or parity with `source` is lost; nothing is left at `target` then.
    """
    try:
        from onnxruntime.transformers import optimizer
        from onnxruntime.transformers.fusion_options import FusionOptions
    except ImportError:
        raise BackendUnavailable("graphs are fused by ONNX Runtime: pip install 'bertopt[cpu]'") from None
    model = storage.load(source)
    order_operands(model.graph)
    options = FusionOptions("bert")
    options.use_raw_attention_mask(mask == "raw")
    fused = optimizer.optimize_model(
        model,
        "bert",
        num_heads=checkpoint.heads,
        hidden_size=checkpoint.hidden,
        optimization_options=options,
        opt_level=0,
    )
    counts, wanted = Counter(n.op_type for n in fused.model.graph.node if n.domain == "com.microsoft"), expected(checkpoint)
    found = {
        "attention": sum(counts[op] for op in ATTENTION),
        "skip_layer_norm": sum(counts[op] for op in NORMS),
        "gelu": sum(counts[op] for op in GELUS),
    }
    short = [f"{found[key]}/{number} {key}" for key, number in wanted.items() if found[key] < number]
    if short:
        raise GraphError(f"fusion incomplete: {', '.join(short)} of {checkpoint.name} ({checkpoint.model_type})")
    if counts["FastGelu"] and activation(checkpoint) in EXACT_GELU:
        raise GraphError(f"fusion replaced {counts['FastGelu']} exact GELUs of {checkpoint.name} by their approximation")
    if half:
        fused.convert_float_to_float16(keep_io_types=True)
    with storage.published(target) as trial:
        storage.save(fused.model, trial)
        checked = _check(source, trial, checkpoint, half=half, paddings=PADDINGS if mask == "raw" else PADDINGS[:1])
    reason = NOT_FUSABLE.get(checkpoint.model_type)
    return Fusion(
        path=target,
        counts=dict(counts),
        expected=wanted,
        found=found,
        half=half,
        relative_difference=max(p.relative_difference for p in checked),
        notes=[f"attention not fused: {reason}, and ONNX Runtime has no operator for that"] if reason else [],
    )


def expected(checkpoint: Checkpoint) -> dict[str, int]:
    """Fused operators that an encoder of this architecture gives at the least, by kind."""
    if checkpoint.model_type in NOT_FUSABLE:
        return {}
    gelus = checkpoint.layers if activation(checkpoint) in EXACT_GELU | TANH_GELU else 0
    return {"attention": checkpoint.layers, "skip_layer_norm": 2 * checkpoint.layers, "gelu": gelus}


def activation(checkpoint: Checkpoint) -> str:
    """Name of the feed-forward network's activation."""
    config = checkpoint.config
    return str(config.activation if checkpoint.model_type == "distilbert" else config.hidden_act)


def order_operands(graph: onnx.GraphProto) -> None:
    """Swap operands of Adds so that they come as the tool expects them; it never tries the other way round.

    It looks for attention behind a residual Add's first operand, and some families write the residual first; and it
    takes the first of two embedding tables for the words'.
    """
    producers = {output: node for node in graph.node for output in node.output}
    normalized = {node.input[0] for node in graph.node if node.op_type == "LayerNormalization"}
    words = {n.output[0] for n in graph.node if n.op_type == "Gather" and n.input[1] == "input_ids"}
    for node in graph.node:
        if node.op_type != "Add" or node.input[0] in words:  # whose shape the position ids may descend from
            continue
        first, second = node.input
        branch_second = node.output[0] in normalized and _descends(second, first, producers)
        if branch_second or second in words:
            node.input[0], node.input[1] = second, first


def _descends(tensor: str, ancestor: str, producers: dict[str, onnx.NodeProto]) -> bool:
    seen, pending = set(), [tensor]
    while pending:
        name = pending.pop()
        if name == ancestor:
            return True
        if name in seen or name not in producers:
            continue
        seen.add(name)
        pending.extend(producers[name].input)
    return False


def _check(source: Path, trial: Path, checkpoint: Checkpoint, *, half: bool, paddings: tuple[str, ...]) -> list[Parity]:
    what = f"the fused {'float16 ' if half else ''}graph of {checkpoint.name}"
    precision = "fp16" if half else "fp32"
    return parity.check(session(source), session(trial), checkpoint, what, precision=precision, paddings=paddings)
