"""A runner for what was prepared: what the ladder, a diagnosis and a sweep have in common."""

from __future__ import annotations

from bertopt.batching import choose_edges
from bertopt.prepare import Climb, Prepared, sequence_length
from bertopt.run import Progress, Runner, Settings

EDGES_FROM = 2048  # requests whose lengths choose the bucket edges


def runner_of(wanted: Climb, ready: Prepared, progress: Progress, edges: tuple[int, ...] = ()) -> Runner:
    """A runner on the prepared texts, with the bucket edges that are given, or those that waste least on the first texts."""
    length = sequence_length(ready.checkpoint, wanted)
    window = max(wanted.window, wanted.batch_size)
    settings = Settings(wanted.batch_size, length, wanted.repeats, window, wanted.workers, wanted.device)
    lengths = ready.tokens.lengths[: max(window, EDGES_FROM)]
    edges = edges or choose_edges(lengths, length, batch_size=settings.batch_size, window=window)
    ready.workspace.texts, ready.workspace.bucket_edges = ready.requests.texts, edges
    ready.workspace.batch_size = settings.batch_size
    return Runner(settings, ready.workspace, ready.requests, ready.tokens, ready.tokenizers, edges, progress)
