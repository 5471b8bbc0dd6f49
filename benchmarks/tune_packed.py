"""Every choice of the packed kernels on one GPU: what `Choices` and `choices_for` are set from. BERT-base, 4,096 tokens.

python benchmarks/tune_packed.py [--out DIR] [--sections kernels,whole]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from on_gpu import MEAN_26, SHAPES, batch_of, captured, graph_of, replay_ms
from peers_gpu import Model, Run

from bertopt.backends import packed, packed_encoder
from bertopt.backends.packed_encoder import Encoder, Linear, PlainOperations, Rows
from bertopt.backends.packed_kernels import Choices, KernelOperations, Tile
from bertopt.measure.cores import usable_cores

TOKENS = 4096
TILES = [(128, 128, 4, 3), (128, 128, 8, 3), (128, 128, 8, 4), (128, 256, 8, 3), (128, 256, 8, 4), (256, 128, 8, 3)]
TILES += [(64, 128, 4, 4), (64, 256, 4, 3), (64, 64, 4, 4)]
ATTENTIONS = [
    (64, 64, 4, 2),
    (128, 64, 4, 2),
    (128, 64, 8, 2),
    (128, 128, 8, 2),
    (64, 128, 4, 2),
    (32, 64, 4, 2),
    (32, 32, 2, 2),
]
LENGTHS = {"128": [128] * 32, "mean 26": MEAN_26, "512": [512] * 8}


def call(run: Callable[[], Any], calls: int = 24) -> dict[str, float]:
    """One call among many in a graph, launch gap included: what it costs inside the encoder."""
    return {"ms": replay_ms(graph_of(run, calls), 15) / calls}


def compile_all(precisions: Iterable[str]) -> None:
    """Every kernel of the sections, on all cores; Triton keeps the code where the sections find it."""
    jobs = []
    for precision in precisions:
        depth = 64 if precision == "fp16" else 128
        for form in ("polynomial", "tanh", "erf"):
            for rows, columns, warps, stages in TILES[:2] if form == "erf" else TILES:
                jobs.append((precision, Choices(up=Tile(rows, columns, depth, warps, stages), gelu=form)))
        jobs += [(precision, Choices(up=None, attention=Tile(q, k, 0, warps, stages))) for q, k, warps, stages in ATTENTIONS]
    with multiprocessing.get_context("spawn").Pool(min(12, usable_cores())) as pool:
        pool.map(compile_one, jobs, chunksize=1)


def compile_one(job: tuple[str, Choices]) -> None:
    """Call what these choices change, once, on 128 tokens: sizes are no part of a kernel, their divisors are."""
    precision, choices = job
    ops, half = KernelOperations(choices), {"device": "cuda", "dtype": torch.float16}
    up, down = (Linear(torch.zeros(n, k, **half), torch.zeros(n, **half)) for n, k in ((3072, 768), (768, 3072)))  # type: ignore[arg-type]
    if precision == "fp8":
        up.quantize(1.0)
        down.quantize(1.0)
    with contextlib.suppress(Exception):  # the section says which tile does not fit
        if choices.up is not None:
            ops.up(up.take(torch.zeros(128, 768, **half)), up, down)  # type: ignore[arg-type]
        else:
            ends = torch.full((128,), 128, dtype=torch.int32, device="cuda")
            ops.attention(torch.zeros(128, 2304, **half), Rows(ends, ends - 128, ends, 128), 12, down)  # type: ignore[arg-type]
        torch.cuda.synchronize()


class Tuning:
    def __init__(self, run: Run) -> None:
        self.run, self.model = run, Model()

    def kernels(self) -> None:
        for precision, encoder in self.model.encoders.items():
            self.norms(precision, encoder)
            self.products(precision, encoder)
            self.attentions(precision, encoder)

    def norms(self, precision: str, encoder: Encoder) -> None:
        layer = encoder.layers[0]
        product, x = torch.randn(2, TOKENS, 768, device="cuda").half().unbind()
        for warps in (1, 2, 4, 8):
            ops = KernelOperations(Choices(norm_warps=warps))
            run = partial(ops.add_norm, product, layer.out, x, layer.norm1, layer.up)
            self.run.attempt(f"{precision} add_norm, {warps} warps", "4096", partial(call, run))

    def products(self, precision: str, encoder: Encoder) -> None:
        """The feed-forward's first product with its GELU; then each product alone, for what fusing it would have to beat."""
        layer, depth = encoder.layers[0], 64 if precision == "fp16" else 128
        x = layer.up.take(torch.randn(TOKENS, 768, device="cuda").half())
        for form in ("polynomial", "tanh", "erf"):
            run = partial(KernelOperations(Choices(up=None, gelu=form)).up, x, layer.up, layer.down)
            self.run.attempt(f"{precision} up: cuBLAS + GELU, {form}", "4096", partial(call, run))
            for rows, columns, warps, stages in TILES[:2] if form == "erf" else TILES:
                ops = KernelOperations(Choices(up=Tile(rows, columns, depth, warps, stages), gelu=form))
                name = f"{precision} up: {rows}x{columns}x{depth}, {warps} warps, {stages} stages, {form}"
                self.run.attempt(name, "4096", partial(call, partial(ops.up, x, layer.up, layer.down)))
        for part in ("qkv", "out", "up", "down"):
            site = getattr(layer, part)
            taken = site.take(torch.randn(TOKENS, site.weight.shape[1], device="cuda").half())
            self.run.attempt(f"{precision} {part}: cuBLAS", "4096", partial(call, partial(site, taken, add_bias=False)))
            self.run.attempt(f"{precision} {part}: cuBLAS with bias", "4096", partial(call, partial(site, taken)))
            for rows, columns, warps, stages in TILES[:4]:
                ops = KernelOperations(Choices(up=Tile(rows, columns, depth, warps, stages)))
                run = partial(ops.up, taken, site, layer.down)
                self.run.attempt(
                    f"{precision} {part}: as up, {rows}x{columns}, {warps} warps, {stages}", "4096", partial(call, run)
                )

    def attentions(self, precision: str, encoder: Encoder) -> None:
        out = encoder.layers[0].out
        for name, lengths in LENGTHS.items():
            ids, types, cu = next(iter(packed.calibration_batches(batch_of(lengths).tokens, "cuda")))
            where = PlainOperations().embed(encoder.tables, ids, types, cu, max(lengths), None)[2]
            qkv, shape = torch.randn(len(ids), 2304, device="cuda").half(), f"{name}: {len(ids)}"
            run = partial(packed_encoder.varlen, qkv, where, 12, out)
            self.run.attempt(f"{precision} attention: varlen_attn", shape, partial(call, run))
            for queries, keys, warps, stages in ATTENTIONS:
                ops = KernelOperations(Choices(attention=Tile(queries, keys, 0, warps, stages)))
                run = partial(ops.attention, qkv, where, 12, out)
                self.run.attempt(f"{precision} attention: {queries}x{keys}, {warps} warps", shape, partial(call, run))

    def whole(self) -> None:
        """The encoder with one change at a time."""
        for precision, encoder in self.model.encoders.items():
            depth = 64 if precision == "fp16" else 128
            tile = Tile(128, 128, depth, 4, 3)
            varlen = KernelOperations(Choices(up=tile))
            varlen.attention = packed_encoder.varlen  # type: ignore[method-assign]
            variants: dict[str, Any] = {
                "plain torch, varlen": PlainOperations(packed_encoder.varlen),
                "cuBLAS + GELU kernel": KernelOperations(Choices(up=None)),
                "GELU in the product's epilogue": KernelOperations(Choices(up=tile)),
                " and 8 warps": KernelOperations(Choices(up=Tile(128, 128, depth, 8, 3))),
                " and tile 64 x 128": KernelOperations(Choices(up=Tile(64, 128, depth, 4, 4))),
                " and tile 64 x 64": KernelOperations(Choices(up=Tile(64, 64, depth, 4, 4))),
                " and the hardware's tanh": KernelOperations(Choices(up=tile, gelu="tanh")),
                " and norm with 4 warps": KernelOperations(Choices(up=tile, norm_warps=4)),
                " and attention 128 x 128": KernelOperations(Choices(up=tile, attention=Tile(128, 128, 0, 8, 2))),
                " and varlen_attn": varlen,
                " and overlapping launches": KernelOperations(Choices(up=tile, overlap=True)),
                "cuBLAS + GELU, overlapping launches": KernelOperations(Choices(up=None, overlap=True)),
            }
            for shape in ("1 x 128", "32 x 128", "256, mean 26"):
                for name, operations in variants.items():
                    run = partial(self.replayed, encoder, operations, SHAPES[shape])
                    self.run.attempt(f"{precision}: {name}", shape, run)

    def replayed(self, encoder: Encoder, operations: Any, lengths: list[int]) -> dict[str, float]:
        ms = replay_ms(captured(encoder, operations, batch_of(lengths)).graph)
        return {"ms": ms, "seq_s": len(lengths) / ms * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--sections", default="kernels,whole")
    arguments = parser.parse_args()
    run = Run(arguments.out / "tune_packed.json")
    tuning = Tuning(run)
    compile_all(tuning.model.encoders)
    run.add("kernels compiled")
    run.sections(tuning, arguments.sections.split(","))


if __name__ == "__main__":
    main()
