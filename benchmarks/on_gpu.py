"""What the GPU benchmarks share: batches of random tokens, captured graphs, and their times."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bertopt.backends.packed_encoder import Encoder
from bertopt.backends.packed_graphs import Captured, fill
from bertopt.batching import Batch, Packed
from bertopt.tokens import Tokens

MEAN_26 = [
    int(n) for n in np.random.default_rng(0).gamma(3.0, 26 / 3.0, 256).round().clip(4, 128)
]  # like a sentence classifier's
SHAPES = {"1 x 128": [128], "32 x 128": [128] * 32, "128 x 128": [128] * 128, "256, mean 26": MEAN_26}


def batch_of(lengths: list[int], budget: int | None = None, max_length: int = 128) -> Batch:
    """A packed batch of random tokens, of a budget or of its own tokens rounded up to a multiple of 16."""
    ids = np.random.default_rng(1).integers(1000, 30522, sum(lengths)).astype(np.int32)
    tokens = Tokens(ids, np.cumsum([0, *lengths]))
    return Batch(np.arange(len(lengths)), tokens, Packed(budget or -(-sum(lengths) // 16) * 16, max_length))


def replay_ms(graph: Any, repeats: int = 30) -> float:
    """Median over replays, each between two events of its own."""
    for _ in range(5):
        graph.replay()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def graph_of(run: Callable[[], Any], calls: int = 1) -> Any:
    """`calls` calls in one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                run()
    torch.cuda.synchronize()
    return graph


def captured(encoder: Encoder, operations: Any, batch: Batch) -> Captured:
    """The encoder with these operations over the batch's budget, and the batch in its inputs."""
    encoder.operations = operations
    made = on_a_stream(Captured, encoder, batch.computed_tokens, 128)
    load_batch(made, batch)
    return made


def on_a_stream(make: Callable[..., Captured], *arguments: Any) -> Captured:
    """Graphs are not captured on the default stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        made = make(*arguments)
    torch.cuda.synchronize()
    return made


def load_batch(made: Captured, batch: Batch) -> None:
    block = np.empty(made.inputs.shape[0], np.int32)
    fill(block, batch, 0)
    made.inputs.copy_(torch.from_numpy(block))
