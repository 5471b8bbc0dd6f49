"""The operations of the packed encoder as Triton kernels, and as few of them as there are.

Each writes what the next product takes (FP16, or E4M3 in FP8), so nothing is read again only to be converted. What sets
their time is the memory that they move; the feed-forward's first product has its GELU in its own epilogue, which spares
writing and reading its [T, I] result once more.
"""

# mypy: disable-error-code="no-untyped-def"
# (Triton reads a kernel's annotations: constexpr is the only one that it knows)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from bertopt.backends.packed_encoder import Encoder, Linear, Norm, Rows, Tables


@dataclass(frozen=True)
class Tile:
    """How a kernel is cut: rows and columns of a block's tile, depth of a step, warps, and stages of its pipeline."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Choices:
    """What is measured rather than known."""

    up: Tile | None = Tile(128, 128, 64, 4, 3)  # None: cuBLAS and a GELU kernel
    attention: Tile = Tile(64, 64, 0, 4, 2)  # queries, keys
    norm_warps: int = 1
    gelu: str = "polynomial"  # or "erf", or "tanh" (the hardware's, of a polynomial that makes it erf)
    overlap: bool = False  # launch each kernel while the one before it drains (programmatic dependent launch)


def choices_for(encoder: Encoder) -> tuple[Choices, ...]:
    """What is tried for a budget: small tiles fill the card at few tokens, large ones load less at many."""
    depth = 64 if encoder.layers[0].up.input_scale is None else 128  # 128 bytes a row, a swizzled line of shared memory
    tiles = Tile(128, 128, depth, 4, 3), Tile(128, 128, depth, 8, 3), Tile(64, 128, depth, 4, 4), Tile(64, 64, depth, 4, 4)
    return (Choices(up=None), *(Choices(up=tile) for tile in tiles))


@triton.jit
def _gelu(x, FORM: tl.constexpr):
    """x times the normal distribution's Phi(x), the erf form of GELU.

    "polynomial": Phi(x) - 1/2 as x P(x^2), minimax on |x| < 4.25; within 6e-5 of GELU, a quarter of FP16's rounding at 1.
    "tanh": Phi(x) = (1 + tanh(x P(x^2))) / 2, minimax too, within 4e-5, plus the hardware's 2^-11.
    """
    if FORM == "erf":
        return x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    if FORM == "tanh":
        u = tl.minimum(x * x, 25.0)
        t = x * ((-3.55090323e-04 * u + 3.70034383e-02) * u + 7.97569882e-01)
        t = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [t], dtype=tl.float32, is_pure=True, pack=1)
        return 0.5 * x * t + 0.5 * x
    c = tl.minimum(tl.maximum(x, -4.25), 4.25)
    u = c * c
    p = 6.62186139e-11 * u - 6.21866336e-09
    p = p * u + 2.56952632e-07
    p = p * u - 6.2261992e-06
    p = p * u + 1.00124104e-04
    p = p * u - 1.15278340e-03
    p = p * u + 9.98003315e-03
    p = p * u - 6.66460544e-02
    p = p * u + 0.39909926
    return x * (c * p + 0.5)


@triton.jit
def _normalized(x, weight, bias, eps, inside, H: tl.constexpr):
    mean = tl.sum(x) / H
    centred = tl.where(inside, x - mean, 0.0)
    variance = tl.sum(centred * centred) / H
    return centred * tl.rsqrt(variance + eps) * weight + bias


@triton.jit(do_not_specialize=["sequences", "steps"])
def _embed(
    ids, types, cu_seqlens, words, positions, kinds, weight, bias, out, taken, scale, starts, ends,
    sequences, steps, first_position, eps,
    H: tl.constexpr, BLOCK: tl.constexpr, QUANTIZE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One token a program: its sequence by binary search, the three embeddings, LayerNorm."""
    token = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    gamma = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    beta = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    low, high = 0, sequences  # cu_seqlens[low] <= token < cu_seqlens[high]
    for _ in range(steps):
        middle = (low + high) // 2
        before = tl.load(cu_seqlens + middle) <= token
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    start = tl.load(cu_seqlens + low)
    tl.store(starts + token, start)
    tl.store(ends + token, tl.load(cu_seqlens + low + 1))
    x = tl.load(words + tl.load(ids + token).to(tl.int64) * H + columns, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(positions + (token - start + first_position) * H + columns, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(kinds + tl.load(types + token) * H + columns, mask=inside, other=0.0).to(tl.float32)
    x = _normalized(x, gamma, beta, eps, inside, H)
    tl.store(out + token * H + columns, x, mask=inside)
    if QUANTIZE:
        tl.store(taken + token * H + columns, x / tl.load(scale), mask=inside)


@triton.jit
def _add_norm(
    product, product_bias, residual, weight, bias, out, taken, scale, eps,
    H: tl.constexpr, BLOCK: tl.constexpr, QUANTIZE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One token a program: LayerNorm(product + product_bias + residual)."""
    token = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    added = tl.load(product_bias + columns, mask=inside, other=0.0).to(tl.float32)
    gamma = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    beta = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    x = tl.load(product + token * H + columns, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(residual + token * H + columns, mask=inside, other=0.0).to(tl.float32)
    x = _normalized(x + added, gamma, beta, eps, inside, H)
    tl.store(out + token * H + columns, x, mask=inside)
    if QUANTIZE:
        tl.store(taken + token * H + columns, x / tl.load(scale), mask=inside)


@triton.jit
def _bias_gelu(
    product, bias, out, scale,
    WIDTH, BLOCK: tl.constexpr, FORM: tl.constexpr, QUANTIZE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    added = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    x = _gelu(tl.load(product + at, mask=inside, other=0.0).to(tl.float32) + added, FORM)
    if QUANTIZE:
        x = x / tl.load(scale)
    tl.store(out + at, x, mask=inside)


@triton.jit
def _linear_gelu(
    x, weight, out, bias, input_scale, weight_scale, output_scale, M, N, K,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    FORM: tl.constexpr, QUANTIZED: tl.constexpr, QUANTIZE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """gelu(x weight^T + bias), a tile a program. Programs that run together share their columns of x or weight in L2."""
    program, down, across = tl.program_id(0), tl.cdiv(M, ROWS), tl.cdiv(N, COLUMNS)
    group = program // (16 * across)
    height = tl.minimum(down - group * 16, 16)
    row = (group * 16 + program % (16 * across) % height) * ROWS
    column = program % (16 * across) // height * COLUMNS
    columns = column + tl.arange(0, COLUMNS)
    added = tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for k in range(0, K, DEPTH):
        total = tl.dot(x.load([row, k]), weight.load([column, k]).T, total)
    if QUANTIZED:
        total = total * (tl.load(input_scale) * tl.load(weight_scale))
    hidden = _gelu(total + added[None, :], FORM)
    if QUANTIZE:
        hidden = hidden * (1.0 / tl.load(output_scale))
    out.store([row, column], hidden.to(out.dtype))


@triton.jit
def _attention(
    qkv, starts, ends, out, scale, T, softmax_scale,
    H: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    QUANTIZE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One head of QUERIES consecutive tokens a program, whatever sequences they belong to: block-diagonal attention.

    The keys are those of the sequences that the tile touches, and each query sees its own sequence's alone. Short
    sequences share a tile, so that they cost what their tokens cost. Online softmax: Milakov and Gimelshein, 2018.
    """
    first, head = tl.program_id(0) * QUERIES, tl.program_id(1)
    tokens, depth = first + tl.arange(0, QUERIES), tl.arange(0, D)
    exists = tokens < T
    if OVERLAP:
        gdc_launch_dependents()
        gdc_wait()
    start, end = tl.load(starts + tokens, mask=exists, other=0), tl.load(ends + tokens, mask=exists, other=0)
    queries = qkv + tokens.to(tl.int64)[:, None] * (3 * H) + head * D + depth[None, :]
    query = tl.load(queries, mask=exists[:, None], other=0.0)
    low, high = tl.load(starts + first), tl.load(ends + tl.minimum(first + QUERIES, T) - 1)
    best = tl.full((QUERIES,), -1e30, dtype=tl.float32)  # finite, so that a tile without keys for a query leaves no NaN
    weights = tl.zeros((QUERIES,), dtype=tl.float32)
    total = tl.zeros((QUERIES, D), dtype=tl.float32)
    for begin in range(low, high, KEYS):
        keys = begin + tl.arange(0, KEYS)
        within = (keys < high)[:, None]
        at = qkv + keys.to(tl.int64)[:, None] * (3 * H) + head * D + depth[None, :]
        key = tl.load(at + H, mask=within, other=0.0)
        value = tl.load(at + 2 * H, mask=within, other=0.0)
        score = tl.dot(query, key.T) * softmax_scale
        own = (keys[None, :] >= start[:, None]) & (keys[None, :] < end[:, None])
        score = tl.where(own, score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        chance = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(best - higher)
        weights = weights * shrink + tl.sum(chance, 1)
        total = tl.dot(chance.to(value.dtype), value, total * shrink[:, None])
        best = higher
    total = total / tl.maximum(weights, 1e-30)[:, None]
    if QUANTIZE:
        total = total / tl.load(scale)
    tl.store(out + tokens.to(tl.int64)[:, None] * H + head * D + depth[None, :], total, mask=exists[:, None])


class KernelOperations:
    """`PlainOperations` with the same results but for rounding, GELU's erf form only."""

    def __init__(self, choices: Choices = Choices()) -> None:
        self.choices = choices

    def embed(
        self, tables: Tables, ids: Tensor, types: Tensor, cu_seqlens: Tensor, max_length: int, following: Linear | None
    ) -> tuple[Tensor, Tensor, Rows]:
        out, taken = _outputs(len(ids), tables.word.shape[1], tables.word, following)
        rows = Rows(cu_seqlens, torch.empty_like(ids, dtype=torch.int32), torch.empty_like(ids, dtype=torch.int32), max_length)
        sequences = len(cu_seqlens) - 1
        _embed[(len(ids),)](
            ids, types, cu_seqlens, tables.word, tables.position, tables.type, tables.norm.weight, tables.norm.bias,
            out, taken, _scale(following), rows.starts, rows.ends, sequences, sequences.bit_length(),
            tables.first_position, tables.norm.eps, **self._row(tables.word.shape[1]), QUANTIZE=taken is not out,
        )  # fmt: skip
        return out, taken, rows

    def attention(self, qkv: Tensor, rows: Rows, heads: int, following: Linear) -> Tensor:
        tile, (tokens, width) = self.choices.attention, (len(qkv), qkv.shape[1] // 3)
        out = torch.empty(tokens, width, dtype=following.input_type, device=qkv.device)
        _attention[(triton.cdiv(tokens, tile.rows), heads)](
            qkv, rows.starts, rows.ends, out, _scale(following), tokens, (width // heads) ** -0.5 * 1.4426950408889634,
            H=width, D=width // heads, QUERIES=tile.rows, KEYS=tile.columns, QUANTIZE=following.input_scale is not None,
            num_warps=tile.warps, num_stages=tile.stages, **self._launch(),
        )  # fmt: skip
        return out

    def add_norm(
        self, product: Tensor, linear: Linear, residual: Tensor, norm: Norm, following: Linear | None
    ) -> tuple[Tensor, Tensor]:
        out, taken = _outputs(len(product), product.shape[1], residual, following)
        _add_norm[(len(product),)](
            product, linear.bias, residual, norm.weight, norm.bias, out, taken, _scale(following), norm.eps,
            **self._row(product.shape[1]), QUANTIZE=taken is not out,
        )  # fmt: skip
        return out, taken

    def up(self, x: Tensor, up: Linear, down: Linear) -> Tensor:
        tile, (width, depth) = self.choices.up, up.weight.shape
        out = torch.empty(len(x), width, dtype=down.input_type, device=x.device)
        form, quantize = self.choices.gelu, down.input_scale is not None
        if tile is None:
            _bias_gelu[(len(x), triton.cdiv(width, 1024))](
                up(x, add_bias=False), up.bias, out, _scale(down), width,
                BLOCK=1024, FORM=form, QUANTIZE=quantize, num_warps=4, **self._launch(),
            )  # fmt: skip
            return out
        _linear_gelu[(triton.cdiv(len(x), tile.rows) * triton.cdiv(width, tile.columns),)](
            TensorDescriptor.from_tensor(x, [tile.rows, tile.depth]),
            TensorDescriptor.from_tensor(up.weight, [tile.columns, tile.depth]),
            TensorDescriptor.from_tensor(out, [tile.rows, tile.columns]),
            up.bias, _scale(up), up.weight_scale, _scale(down), len(x), width, depth,
            ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, FORM=form,
            QUANTIZED=up.input_scale is not None, QUANTIZE=quantize,
            num_warps=tile.warps, num_stages=tile.stages, **self._launch(),
        )  # fmt: skip
        return out

    def _row(self, width: int) -> dict[str, Any]:
        return {"H": width, "BLOCK": triton.next_power_of_2(width), "num_warps": self.choices.norm_warps, **self._launch()}

    def _launch(self) -> dict[str, Any]:
        return {"OVERLAP": self.choices.overlap, "launch_pdl": self.choices.overlap}


def _scale(following: Linear | None) -> Tensor | None:
    return None if following is None else following.input_scale


def _outputs(tokens: int, width: int, like: Tensor, following: Linear | None) -> tuple[Tensor, Tensor]:
    """The result [tokens, width], and the copy of it that `following` takes: the same tensor where it takes that type."""
    out = torch.empty(tokens, width, dtype=like.dtype, device=like.device)
    return out, out if _scale(following) is None else torch.empty_like(out, dtype=torch.float8_e4m3fn)
