"""Whether a plan answers as the graph that it was built from: judged before it is put anywhere."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertopt.batching import Batch, Padded
from bertopt.builders import BUILDERS
from bertopt.errors import BackendUnavailable, GraphError
from bertopt.plan import Plan

if TYPE_CHECKING:
    from bertopt.records import Parity
    from bertopt.tokens import Tokens

OBSERVED_ROWS, ROWS_A_BATCH = 128, 16  # texts by which FP16 is judged


def judge(plan: Plan, target: str, graph: Path, emitted: Path, batches: list[Batch], pad_id: int) -> tuple[Parity | None, str]:
    """A plan's logits against its graph's in FP32 on these batches, and one sentence on it.

    A plan that cannot be loaded where it is built stands in by the graph that it was built from, run on the CPU.
    Raises GraphError where they differ by more than the precision may cost, or are NaN: such a plan is worth nothing.
    """
    from bertopt.graph import parity
    from bertopt.graph.export import session

    if not batches:
        return None, "its answers were not judged: there were no texts"
    try:
        reference = session(graph)
    except BackendUnavailable as error:
        return None, f"its answers were not judged: {error}"
    feeds = feeds_of(graph, batches, pad_id)
    right = np.concatenate([_flat(reference(feed)) for feed in feeds])
    if target == "tensorrt-rtx":
        stand_in = session(emitted)
        found, what = np.concatenate([_flat(stand_in(feed)) for feed in feeds]), "its graph, on the CPU,"
    else:
        builder = importlib.import_module(f"bertopt.builders.{BUILDERS[target]}")
        with builder.open_session(plan, pad_id) as opened:
            found = np.concatenate([_flat(opened.launch(opened.stage(batch)).result()) for batch in batches])
        what = "it"
    precision = plan.manifest.precision
    verdict = parity.compare(right, found, precision=precision, task="embedding", trained=False)
    if not verdict.passed:
        raise GraphError(f"the {precision} plan does not answer as its graph in FP32: {parity.describe(verdict)}")
    return verdict, f"{what} was judged on {sum(b.rows for b in batches)} rows: {parity.describe(verdict)}"


def text_batches(tokens: Tokens) -> Iterator[Batch]:
    """Up to 128 of these rows, spread evenly over their lengths, in batches of like length."""
    order = np.argsort(tokens.lengths, kind="stable")
    order = order[np.unique(np.linspace(0, len(order) - 1, OBSERVED_ROWS).astype(np.int64))]
    for start in range(0, len(order), ROWS_A_BATCH):
        rows = tokens.take(order[start : start + ROWS_A_BATCH])
        yield Batch(np.arange(len(rows)), rows, Padded(len(rows), int(rows.lengths.max())))


def feeds_of(graph: Path, batches: list[Batch], pad_id: int) -> list[dict[str, Any]]:
    """What the graph is fed for each batch, by input name."""
    from bertopt.backends.host import padded_arrays
    from bertopt.graph.emit import inputs

    uses_type_ids = "token_type_ids" in inputs(graph)
    return [padded_arrays(batch, uses_type_ids, pad_id) for batch in batches]


def _flat(logits: Any) -> Any:
    return logits.reshape(-1, logits.shape[-1])
