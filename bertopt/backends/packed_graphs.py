"""A packed batch's inputs in one block of int32, and the encoder recorded over a budget of tokens as a CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertopt.batching import Batch, Packed
from bertopt.errors import UsageError

if TYPE_CHECKING:
    from bertopt.backends.packed_encoder import Encoder

Int32 = NDArray[np.int32]


def sequences_of(budget: int) -> int:
    """Most sequences in a budget, fill included: none is shorter than its two special tokens, but for a last one of 1."""
    return budget // 2 + 1


def size_of(budget: int) -> int:
    """int32 elements of a budget's inputs: cumulative lengths, then ids, then types, in one block and one copy."""
    return sequences_of(budget) + 1 + 2 * budget


def views(block: Any, budget: int) -> tuple[Any, Any, Any]:
    """(cu_seqlens, ids, types) of a block, which is an array or a tensor."""
    first = sequences_of(budget) + 1
    return block[:first], block[first : first + budget], block[first + budget : first + 2 * budget]


def fill(block: Int32, batch: Batch, pad_id: int) -> None:
    """Write a packed batch into its block [size_of(budget)], every element of it, with no loop over rows.

    The fill is sequences of the layout's max_length and a rest; behind them come empty ones.
    """
    layout, offsets = batch.layout, batch.tokens.offsets
    assert isinstance(layout, Packed)
    cu_seqlens, ids, types = views(block, layout.budget)
    used, rows = batch.real_tokens, batch.rows
    if used > layout.budget or rows >= len(cu_seqlens):
        raise UsageError(f"{rows} rows of {used} tokens do not fit into a packed batch of {layout.budget} tokens")
    cu_seqlens[: rows + 1] = offsets
    more = np.arange(1, len(cu_seqlens) - rows) * layout.max_length
    np.minimum(used + more, layout.budget, out=cu_seqlens[rows + 1 :], casting="unsafe")
    ids[:used], ids[used:] = batch.tokens.ids, pad_id
    types[:used], types[used:] = 0 if batch.tokens.type_ids is None else batch.tokens.type_ids, 0


def by_row(logits: NDArray[np.float32], batch: Batch) -> NDArray[np.float32]:
    """Logits of a per-token head, [tokens, labels], as [rows, longest, labels]; 0 behind each row's end."""
    lengths = batch.tokens.lengths
    padded = np.zeros((batch.rows, int(lengths.max()), logits.shape[1]), np.float32)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = logits[: batch.real_tokens]
    return padded


class Captured:
    """The encoder over one budget, recorded once; its inputs and logits stay where they are."""

    def __init__(self, encoder: Encoder, budget: int, max_length: int, pool: Any = None) -> None:
        import torch

        torch.cuda.synchronize()  # what the weights were loaded with
        self.choice = str(getattr(encoder.operations, "choices", "plain torch"))
        self.inputs = torch.zeros(size_of(budget), dtype=torch.int32, device="cuda")
        cu_seqlens, ids, types = views(self.inputs, budget)
        ends = torch.arange(1, len(cu_seqlens), device="cuda") * max_length
        cu_seqlens[1:] = ends.clamp(max=budget)
        ids.random_(0, encoder.tables.word.shape[0])  # times of zeros are no times: they draw less power
        encoder(ids, types, cu_seqlens, max_length)  # libraries load and kernels are compiled outside the graph
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            self.logits = encoder(ids, types, cu_seqlens, max_length)

    def replay_ms(self, repeats: int = 20) -> float:
        """Device time of a replay, the mean over `repeats`."""
        import torch

        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.graph.replay()
        start.record()
        for _ in range(repeats):
            self.graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / repeats


def fastest(encoder: Encoder, budget: int, max_length: int, pool: Any = None) -> Captured:
    """The budget captured with each of the kernels' choices, and the fastest kept."""
    from bertopt.backends import packed_encoder, packed_kernels

    depth = encoder.layers[0].out.weight.shape[1] // encoder.heads
    if encoder.activation != "gelu" or depth < 16 or depth & (depth - 1):  # the kernels' GELU, and their power of two
        encoder.operations = packed_encoder.PlainOperations(packed_encoder.varlen, encoder.activation)
        return Captured(encoder, budget, max_length, pool)
    best, best_ms = None, float("inf")
    for choices in packed_kernels.choices_for(encoder):
        encoder.operations = packed_kernels.KernelOperations(choices)
        captured = Captured(encoder, budget, max_length, pool)
        if (ms := captured.replay_ms()) < best_ms:
            best, best_ms = captured, ms
    assert best is not None
    return best
