"""BERT's encoder over packed sequences: they lie end to end in one row of tokens, and nothing is padded.

Attention is the only operation that knows where a sequence ends; everything else works on [T, H], T tokens in all. The
operations and the attention are arguments: here they are plain torch, the reference for `packed_kernels`.

FP8 is E4M3 with one static scale a tensor. Being a float, it keeps its relative precision over 2^-6 to 448, so that a scale
a channel, which INT8 lives on, changes nothing here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bertopt.errors import ModelError

E4M3_MAX = 448.0

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,  # the erf form
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


@dataclass
class Linear:
    """A product with weight [out, in]; in E4M3 where it has scales, else in the weight's own type."""

    weight: Tensor
    bias: Tensor
    input_scale: Tensor | None = None  # float32 scalars: real value = scale * stored value
    weight_scale: Tensor | None = None
    seen: float | None = None  # largest input so far, while calibrating

    @property
    def input_type(self) -> torch.dtype:
        return self.weight.dtype

    def take(self, x: Tensor) -> Tensor:
        """`x` in the type that the product takes."""
        if self.seen is not None:
            self.seen = max(self.seen, float(x.abs().max()))
        if self.input_scale is None:
            return x
        return (x.float() / self.input_scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)

    def __call__(self, x: Tensor, *, add_bias: bool = True) -> Tensor:
        """[T, in], as `take` gives it -> [T, out] in the bias's type."""
        bias = self.bias if add_bias else None
        if self.input_scale is None or self.weight_scale is None:
            return F.linear(x, self.weight, bias)
        return torch._scaled_mm(
            x, self.weight.t(), self.input_scale, self.weight_scale, bias, out_dtype=self.bias.dtype, use_fast_accum=True
        )

    def quantize(self, input_amax: float) -> None:
        """Go over to E4M3. Both scales put the largest magnitude on E4M3's largest value."""
        weight = self.weight.float()
        self.weight_scale = (weight.abs().max() / E4M3_MAX).clamp(min=1e-12)
        self.input_scale = torch.full_like(self.weight_scale, max(input_amax, 1e-12) / E4M3_MAX)
        self.weight = (weight / self.weight_scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


class Norm(NamedTuple):
    weight: Tensor
    bias: Tensor
    eps: float


class Layer(NamedTuple):
    qkv: Linear
    out: Linear
    norm1: Norm
    up: Linear
    down: Linear
    norm2: Norm


class Tables(NamedTuple):
    """Embedding tables and their LayerNorm. A sequence's positions start at row `first_position` (RoBERTa: past padding's)."""

    word: Tensor
    position: Tensor
    type: Tensor
    norm: Norm
    first_position: int


class Rows(NamedTuple):
    """Where the sequences lie: int32 cumulative lengths [S + 1], and of each token the bounds [T] of its sequence.

    Sequences of length 0 may follow the last one; `max_length` is no shorter than any.
    """

    cu_seqlens: Tensor
    starts: Tensor
    ends: Tensor
    max_length: int


@dataclass
class Head:
    """What is made of the last layer: of each "token", of the first one ("cls"), or of a sequence's "mean"."""

    pooling: str
    dense: Linear | None = None
    activation: Callable[[Tensor], Tensor] = torch.tanh
    classifier: Linear | None = None
    normalize: bool = False  # to length 1

    def __call__(self, x: Tensor, cu_seqlens: Tensor) -> Tensor:
        if self.pooling == "mean":
            x = torch.segment_reduce(x.float(), "mean", offsets=cu_seqlens.long(), unsafe=True)  # the check would wait
        elif self.pooling == "cls":
            x = x[cu_seqlens[:-1].clamp(max=len(x) - 1)]  # an empty sequence's row is never read
        if self.dense is not None:
            x = self.activation(self.dense(x))
        if self.classifier is not None:
            x = self.classifier(x)
        if self.normalize:
            x = x.float()
            x = x / (x * x).sum(dim=-1, keepdim=True).clamp(min=1e-6).sqrt()
        return x


Attention = Callable[[Tensor, Rows, int, Linear], Tensor]  # qkv [T, 3 H], rows, heads, what takes the result -> [T, H]


def sdpa_per_sequence(qkv: Tensor, rows: Rows, heads: int, following: Linear) -> Tensor:
    """The reference: one call a sequence, so that none can see another."""
    q, k, v = qkv.view(len(qkv), 3, heads, -1).permute(1, 2, 0, 3)
    result = torch.empty_like(q)
    bounds = rows.cu_seqlens.tolist()
    for start, end in itertools.pairwise(bounds):
        if start < end:
            part = slice(start, end)
            result[:, part] = F.scaled_dot_product_attention(q[None, :, part], k[None, :, part], v[None, :, part])[0]
    return following.take(result.transpose(0, 1).reshape(len(qkv), -1))


def varlen(qkv: Tensor, rows: Rows, heads: int, following: Linear) -> Tensor:
    """PyTorch's variable-length attention: CUDA, compute capability 8.0 or newer, half precision."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = qkv.view(len(qkv), 3, heads, -1).unbind(1)
    result: Any = varlen_attn(q, k, v, rows.cu_seqlens, rows.cu_seqlens, rows.max_length, rows.max_length)
    return following.take(result.reshape(len(qkv), -1))


class PlainOperations:
    """The operations between the products, in plain torch; sums and statistics in float32."""

    def __init__(self, attention: Attention = sdpa_per_sequence, activation: str = "gelu") -> None:
        self.attention, self.activation = attention, ACTIVATIONS[activation]

    def embed(
        self, tables: Tables, ids: Tensor, types: Tensor, cu_seqlens: Tensor, max_length: int, following: Linear | None
    ) -> tuple[Tensor, Tensor, Rows]:
        """Normalized embeddings [T, H], the same as `following` takes them, and the rows."""
        tokens = torch.arange(len(ids), dtype=torch.int32, device=ids.device)
        sequence = torch.searchsorted(cu_seqlens[1:], tokens, right=True)
        rows = Rows(cu_seqlens, cu_seqlens[sequence], cu_seqlens[sequence + 1], max_length)
        positions = tokens - rows.starts + tables.first_position
        total = tables.word[ids].float() + tables.position[positions].float() + tables.type[types].float()
        x = _normalize(total, tables.norm).to(tables.word.dtype)
        return x, x if following is None else following.take(x), rows

    def add_norm(
        self, product: Tensor, linear: Linear, residual: Tensor, norm: Norm, following: Linear | None
    ) -> tuple[Tensor, Tensor]:
        """LayerNorm(product + bias + residual), and the same as `following` takes it."""
        x = _normalize(product.float() + linear.bias.float() + residual.float(), norm).to(residual.dtype)
        return x, x if following is None else following.take(x)

    def up(self, x: Tensor, up: Linear, down: Linear) -> Tensor:
        """The feed-forward's hidden layer, as `down` takes it."""
        return down.take(self.activation(up(x)))


def _normalize(x: Tensor, norm: Norm) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], norm.weight.float(), norm.bias.float(), norm.eps)


@dataclass
class Encoder:
    """An encoder and its head. `operations` may be replaced at any time; the weights stay."""

    tables: Tables
    projection: Linear | None  # ELECTRA's, from the embeddings' width to the encoder's
    layers: list[Layer]
    head: Head
    heads: int
    activation: str
    operations: Any = field(default=None)

    def __post_init__(self) -> None:
        self.operations = self.operations or PlainOperations(activation=self.activation)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, types: Tensor, cu_seqlens: Tensor, max_length: int) -> Tensor:
        """float32 logits [S, outputs] of int32 tokens [T] and cumulative lengths [S + 1]; [T, outputs] for per-token heads."""
        ops, layers = self.operations, self.layers
        first = layers[0].qkv
        x, taken, rows = ops.embed(self.tables, ids, types, cu_seqlens, max_length, None if self.projection else first)
        if self.projection is not None:
            x = self.projection(x)
            taken = first.take(x)
        for layer, following in zip(layers, [*(other.qkv for other in layers[1:]), None], strict=True):
            context = ops.attention(layer.qkv(taken), rows, self.heads, layer.out)
            x, taken = ops.add_norm(layer.out(context, add_bias=False), layer.out, x, layer.norm1, layer.up)
            hidden = ops.up(taken, layer.up, layer.down)
            x, taken = ops.add_norm(layer.down(hidden, add_bias=False), layer.down, x, layer.norm2, following)
        return self.head(x, cu_seqlens).float()

    def sites(self) -> dict[str, Linear]:
        """The products that FP8 quantizes, by the name that a calibration cache gives them: "layers.0.down"."""
        parts = ("qkv", "out", "up", "down")
        return {f"layers.{i}.{part}": getattr(layer, part) for i, layer in enumerate(self.layers) for part in parts}

    def calibrate(self, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> dict[str, float]:
        """Largest magnitude that each site's input takes over batches of (ids, types, cu_seqlens)."""
        for linear in self.sites().values():
            linear.seen = 0.0
        for ids, types, cu_seqlens in batches:
            self(ids, types, cu_seqlens, int(cu_seqlens.diff().max()))
        amax = {name: linear.seen or 0.0 for name, linear in self.sites().items()}
        for linear in self.sites().values():
            linear.seen = None
        return amax

    def quantize(self, amax: Mapping[str, float]) -> None:
        """The sites that `amax` names go over to E4M3; the others keep their type."""
        sites = self.sites()
        if unknown := sorted(set(amax) - set(sites)):
            raise ModelError(f"the calibration names {unknown[0]}, and this encoder has no such product")
        for name, value in amax.items():
            sites[name].quantize(value)
