"""Ranges and smoothing factors of every site, from real texts: a small JSON file that is reviewed in a diff.

Padding is left out of every statistic, and statistics are updated as batches stream by, all layers in one pass, so memory
does not grow with the number of texts. Outliers are moved from activations into weights (SmoothQuant; Xiao et al., 2023):
s_j = max|x_j|^a / max|w_j|^(1-a), x' = x / s, w' = s w.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bertopt.errors import GraphError, UsageError
from bertopt.graph import ranges
from bertopt.graph.linears import Site, sites, weight_of
from bertopt.graph.ranges import Feeds

SMOOTH = 0.95  # measured best on classifiers: the input of the feed-forward's down projection does nearly all the harm
BINS = 4096
PERCENTILE = 99.99
LEVELS = 127  # of int8, on either side of zero


@dataclass(frozen=True)
class SiteRange:
    """What one site's activation is divided by: channel by channel (`smoothing`), then as a whole (`scale`)."""

    scale: float  # of the int8 grid of the smoothed activation
    smoothing: list[float] | None  # factors s_j [inputs]; None: not smoothed


@dataclass(frozen=True)
class Calibration:
    """A calibration cache: what it says, and what it belongs to."""

    method: str
    smooth: float
    texts: int
    tokens: int
    model: str  # fingerprint of the checkpoint
    graph: str  # hash of the canonical graph
    tokenizer: str  # hash of the tokenizer
    data: str  # fingerprint of the calibration texts
    max_length: int
    versions: dict[str, str] = field(default_factory=dict)
    text_hashes: list[str] = field(default_factory=list)  # so that evaluation rows among them can be told
    sites: dict[str, SiteRange] = field(default_factory=dict)


def observe(
    model: onnx.ModelProto, feeds: Iterable[Feeds], *, method: str = "minmax", smooth: float = SMOOTH
) -> dict[str, SiteRange]:
    """The range of every site over `feeds` (input name -> int64 [rows, length], with `attention_mask`).

    `method` is a row of METHODS. `smooth` 0 leaves activations as they are. Everything but "minmax" reads the feeds twice:
    a histogram of the smoothed activation wants its range first.
    Raises UsageError for an unknown method or a strength outside 0 to 1, GraphError without feeds or for values not finite.
    """
    if method not in METHODS:
        raise UsageError(f"there is no calibration method {method!r}; there are {', '.join(METHODS)}")
    if not 0 <= smooth < 1:
        raise UsageError(f"a smoothing strength of {smooth:g} is out of range: 0 (off) up to, but not, 1")
    found = sites(model)
    kept = list(feeds)  # token ids only: small
    if not kept:
        raise GraphError("calibration needs at least one batch of texts, and none was given")
    channels = _channel_maxima(model, found, kept)
    factors = {name: _factors(model, found, name, maxima, smooth) for name, maxima in channels.items()}
    tops = {name: float((maxima / factors[name]).max()) or 1.0 for name, maxima in channels.items()}
    if METHODS[method] is not None:
        tops = _from_histograms(model, found, kept, factors, tops, method)
    return {
        name: SiteRange(
            float(f"{tops[name] / LEVELS:.6g}"),  # few digits, so that a diff can be read
            [float(f"{v:.5g}") for v in factors[name]] if smooth else None,
        )
        for name in channels
    }


def _channel_maxima(model: onnx.ModelProto, found: list[Site], feeds: list[Feeds]) -> dict[str, NDArray[np.float64]]:
    """max|x_j| of every site over real tokens; sites that share their weights (ALBERT) share their maxima."""
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    graph = probed.graph
    graph.node.append(helper.make_node("Cast", ["attention_mask"], ["calibrate_float"], to=TensorProto.FLOAT))
    axis = numpy_helper.from_array(np.array([2], np.int64), "calibrate_last")
    graph.initializer.append(axis)
    graph.node.append(helper.make_node("Unsqueeze", ["calibrate_float", "calibrate_last"], ["calibrate_mask"]))
    outputs = []
    for index, site in enumerate(found):
        real, magnitude, highest = (f"calibrate_{what}_{index}" for what in ("real", "abs", "max"))
        graph.node.append(helper.make_node("Mul", [site.tensor, "calibrate_mask"], [real]))
        graph.node.append(helper.make_node("Abs", [real], [magnitude]))
        graph.node.append(helper.make_node("ReduceMax", [magnitude], [highest], axes=[0, 1], keepdims=0))
        graph.output.append(helper.make_tensor_value_info(highest, TensorProto.FLOAT, None))
        outputs.append(highest)
    run = ranges.runner(probed, outputs)
    maxima: dict[str, NDArray[np.float64]] = {}
    for feed in feeds:
        for site, seen in zip(found, run(feed), strict=True):
            value = np.asarray(seen, dtype=np.float64)
            maxima[site.name] = np.maximum(maxima[site.name], value) if site.name in maxima else value
    broken = next((name for name, value in maxima.items() if not np.isfinite(value).all()), None)
    if broken is not None:
        raise GraphError(f"the activation of {broken} is not finite already in FP32")
    return maxima


def _factors(
    model: onnx.ModelProto, found: list[Site], name: str, maxima: NDArray[np.float64], smooth: float
) -> NDArray[np.float64]:
    if not smooth:
        return np.ones_like(maxima)
    site = next(s for s in found if s.name == name)
    weights = np.max([np.abs(weight_of(model, linear)).max(axis=1) for linear in site.linears], axis=0)
    # Channels that never fire, or that no weight reads, keep a factor that is finite and harmless
    activity, reach = np.maximum(maxima, 1e-5), np.maximum(weights.astype(np.float64), 1e-5)
    return np.clip(activity**smooth / reach ** (1 - smooth), 1e-4, 1e4)


def _from_histograms(
    model: onnx.ModelProto,
    found: list[Site],
    feeds: list[Feeds],
    factors: dict[str, NDArray[np.float64]],
    tops: dict[str, float],
    method: str,
) -> dict[str, float]:
    """Where each method clips, from a histogram of |x'| over real tokens."""
    counts = {name: np.zeros(BINS) for name in tops}
    for name, values in _activations(model, found, feeds):
        smoothed = np.abs(values) / factors[name].astype(np.float32)
        bins = np.minimum((smoothed * (BINS / tops[name])).astype(np.int64), BINS - 1)
        counts[name] += np.bincount(bins.ravel(), minlength=BINS)
    clip = METHODS[method]
    assert clip is not None
    return {name: clip(counts[name]) * tops[name] / BINS for name in tops}


def _activations(model: onnx.ModelProto, found: list[Site], feeds: list[Feeds]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """(site, its activation on real tokens [tokens, inputs]) of every feed in turn."""
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    for site in found:
        probed.graph.output.append(helper.make_tensor_value_info(site.tensor, TensorProto.FLOAT, None))
    run = ranges.runner(probed, [site.tensor for site in found])
    for feed in feeds:
        real = feed["attention_mask"].astype(bool)
        for site, values in zip(found, run(feed), strict=True):
            yield site.name, values[real]


def _percentile(counts: NDArray[np.float64]) -> float:
    return float(np.searchsorted(np.cumsum(counts) / counts.sum(), PERCENTILE / 100) + 1)


def _mse(counts: NDArray[np.float64]) -> float:
    """The clip, in bins, of the least squared error of rounding and clipping."""
    centres = np.arange(BINS) + 0.5
    candidates = np.linspace(BINS / 40, BINS, 120)
    steps = candidates / LEVELS
    rounded = np.minimum(np.round(centres / steps[:, None]), LEVELS) * steps[:, None]
    return float(candidates[((rounded - centres) ** 2 * counts).sum(axis=1).argmin()])


def _entropy(counts: NDArray[np.float64]) -> float:
    """The clip, in bins, of the least Kullback-Leibler divergence from clipped to quantized histogram (Migacz, 2017)."""
    levels, best, chosen = LEVELS + 1, np.inf, BINS
    for stop in range(levels, BINS + 1, 32):
        clipped = counts[:stop].copy()
        present = clipped > 0
        clipped[-1] += counts[stop:].sum()
        edges = np.linspace(0, stop, levels + 1).astype(np.int64)
        group = np.searchsorted(edges, np.arange(stop), side="right") - 1
        total = np.bincount(group, counts[:stop], levels)
        members = np.bincount(group, present, levels)
        spread = np.where(present, (total / np.maximum(members, 1))[group], 0.0)
        p, q = clipped / clipped.sum(), spread / max(spread.sum(), 1e-30)
        mass = p > 0
        divergence = float((p[mass] * np.log(p[mass] / np.maximum(q[mass], 1e-10))).sum())
        if divergence < best:
            best, chosen = divergence, stop
    return float(chosen)


METHODS = {"minmax": None, "percentile": _percentile, "entropy": _entropy, "mse": _mse}
