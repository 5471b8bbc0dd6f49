"""Ranges and smoothing factors of every site, from real texts.

Padding is left out of every statistic, and statistics are updated as batches stream by, all layers in one pass, so memory
does not grow with the number of texts. Outliers are moved from activations into weights (SmoothQuant; Xiao et al., 2023):
s_j = max|x_j|^a / max|w_j|^(1-a), x' = x / s, w' = s w.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from bertopt.calibration import SMOOTH, SiteRange
from bertopt.errors import GraphError, UsageError
from bertopt.graph import ranges
from bertopt.graph.attention import Product, products, values_behind
from bertopt.graph.clipping import BINS, entropy, mse, percentile
from bertopt.graph.linears import Site, sites, weight_of
from bertopt.graph.ranges import Feeds

LEVELS = 127  # of int8, on either side of zero
METHODS = {"minmax": None, "percentile": percentile, "entropy": entropy, "mse": mse}

Array = NDArray[np.float64]


def observe(
    model: onnx.ModelProto,
    feeds: Iterable[Feeds],
    *,
    method: str = "minmax",
    smooth: float = SMOOTH,
    attention: bool = False,
) -> dict[str, SiteRange]:
    """The range of every site over `feeds` (input name -> int64 [rows, length], with `attention_mask`).

    `method` is a row of METHODS: how far the range of a smoothed activation reaches. `smooth` 0 leaves activations as they
    are. `attention` adds the products of attention, by their largest values whatever the method. "minmax" reads the feeds
    once; the others twice, since a histogram wants its range first, so that feeds must be a list or start again.

    Raises UsageError for an unknown method or a strength outside 0 to 1, GraphError without feeds or for values not finite.
    """
    check_choice(method, smooth)
    found = sites(model)
    pairs = products(model) if attention else []
    extremes = _extremes(model, found, pairs, feeds)
    factors = {site.name: _factors(model, site, extremes[site.name], smooth) for site in found}
    tops = {name: float((extremes[name] / factor).max()) or 1.0 for name, factor in factors.items()}
    clip = METHODS[method]
    if clip is not None:
        histograms = _histograms(model, found, feeds, factors, tops)
        tops = {name: clip(counts) * tops[name] / BINS for name, counts in histograms.items()}
    result = {
        name: SiteRange(_digits(top / LEVELS, 6), factors[name].tolist() if smooth else None) for name, top in tops.items()
    }
    for product in pairs:
        divided = _divides_values(model, found, factors, product)
        for role in product.tensors:
            highest = extremes[product.range_name(role)]
            top = float((highest.ravel() / divided).max() if role == "value" else highest.max()) or 1.0
            result[product.range_name(role)] = SiteRange(_digits(top / LEVELS, 6))
    return result


def check_choice(method: str, smooth: float) -> None:
    """Raises UsageError for an unknown method or a strength outside 0 to 1."""
    if method not in METHODS:
        raise UsageError(f"there is no calibration method {method!r}; there are {', '.join(METHODS)}")
    if not 0 <= smooth < 1:
        raise UsageError(f"a smoothing strength of {smooth:g} is out of range: 0 (off) up to, but not, 1")


def _extremes(model: onnx.ModelProto, found: list[Site], pairs: list[Product], feeds: Iterable[Feeds]) -> dict[str, Array]:
    """max|x_j| over real tokens by name: [inputs] of a site, [heads, d] of values, one number of other attention tensors.

    Sites of one name (shared layers) share theirs.
    """
    probes = [(site.name, site.tensor, "token", [0, 1]) for site in found]
    for product in pairs:
        for role, tensor in product.tensors.items():
            axes = [0, 2] if role == "value" else [0, 1, 2, 3]
            probes.append((product.range_name(role), tensor, "column" if role == "key" else "row", axes))
    run = _probed(model, probes)
    highest: dict[str, Array] = {}
    for feed in feeds:
        for (name, *_), seen in zip(probes, run(feed), strict=True):
            value = np.asarray(seen, dtype=np.float64)
            highest[name] = np.maximum(highest[name], value) if name in highest else value
    if not highest:
        raise GraphError("calibration needs at least one batch of texts, and none was given")
    broken = next((name for name, value in highest.items() if not np.isfinite(value).all()), None)
    if broken is not None:
        raise GraphError(f"the input of {broken} is not finite already in FP32")
    return highest


def _probed(model: onnx.ModelProto, probes: list[tuple[str, str, str, list[int]]]) -> Callable[[Feeds], list[NDArray]]:
    """A function from feeds to the probes' results: reduced inside the graph, so that no activation leaves it."""
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    graph = probed.graph
    opset = next(o.version for o in probed.opset_import if o.domain in ("", "ai.onnx"))

    def constant(name: str, value: NDArray) -> str:
        graph.initializer.append(numpy_helper.from_array(value, name))
        return name

    def add(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        graph.node.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    real = add("Cast", ["attention_mask"], "calibrate_real", to=TensorProto.BOOL)
    zero = constant("calibrate_zero", np.float32(0))
    masks = {}  # True on real tokens, in the shape that each kind of tensor broadcasts with
    for kind, places in {"token": [2], "row": [1, 3], "column": [1, 2]}.items():
        axes = constant(f"calibrate_axes_{kind}", np.array(places, np.int64))
        masks[kind] = add("Unsqueeze", [real, axes], f"calibrate_mask_{kind}")
    outputs = []
    for index, (_, tensor, kind, axes_of) in enumerate(probes):
        magnitude = add("Abs", [tensor], f"calibrate_abs_{index}")
        kept = add("Where", [masks[kind], magnitude, zero], f"calibrate_kept_{index}")
        if opset < 18:
            outputs.append(add("ReduceMax", [kept], f"calibrate_max_{index}", axes=axes_of, keepdims=0))
        else:
            where = constant(f"calibrate_over_{index}", np.array(axes_of, np.int64))
            outputs.append(add("ReduceMax", [kept, where], f"calibrate_max_{index}", keepdims=0))
        graph.output.append(helper.make_tensor_value_info(outputs[-1], TensorProto.FLOAT, None))
    return ranges.runner(probed, outputs)


def _factors(model: onnx.ModelProto, site: Site, highest: Array, smooth: float) -> Array:
    """The smoothing factors of one site, in few digits, so that a diff of the cache can be read."""
    if not smooth:
        return np.ones_like(highest)
    weights = np.max([np.abs(weight_of(model, linear)).max(axis=1) for linear in site.linears], axis=0)
    # Channels that never fire, or that no weight reads, keep a factor that is finite and harmless
    activity, reach = np.maximum(highest, 1e-5), np.maximum(weights.astype(np.float64), 1e-5)
    factors = np.clip(activity**smooth / reach ** (1 - smooth), 1e-4, 1e4)
    return np.array([_digits(value, 3) for value in factors])


def _digits(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _divides_values(model: onnx.ModelProto, found: list[Site], factors: dict[str, Array], product: Product) -> Array:
    """What smoothing divides a product's values by, [inputs] or [1]: the attention output's factors are folded into them."""
    for site in found:
        behind = values_behind(model, site)
        if behind is not None and behind.context == product.context:
            return factors[site.name]
    return np.ones(1)


def _histograms(
    model: onnx.ModelProto, found: list[Site], feeds: Iterable[Feeds], factors: dict[str, Array], tops: dict[str, float]
) -> dict[str, Array]:
    """Counts [BINS] of |x'| over real tokens, from 0 to the site's largest."""
    probed = onnx.ModelProto()
    probed.CopyFrom(model)
    probed.graph.output.extend(helper.make_tensor_value_info(site.tensor, TensorProto.FLOAT, None) for site in found)
    run = ranges.runner(probed, [site.tensor for site in found])
    counts = {name: np.zeros(BINS) for name in tops}
    for feed in feeds:
        real = feed["attention_mask"].astype(bool)
        for site, values in zip(found, run(feed), strict=True):
            smoothed = np.abs(values[real]) / factors[site.name].astype(np.float32)
            bins = np.minimum((smoothed * (BINS / tops[site.name])).astype(np.int64), BINS - 1)
            counts[site.name] += np.bincount(bins.ravel(), minlength=BINS)
    if not any(histogram.any() for histogram in counts.values()):
        raise GraphError("the calibration batches can be read only once, and this method reads them twice: give a list")
    return counts
