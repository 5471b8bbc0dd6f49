"""Exported graphs of every family, for the tests of INT8."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bertopt.calibration import Calibration, SiteRange
from bertopt.graph import parity, ranges, storage
from bertopt.graph.calibrate import observe
from bertopt.model import Checkpoint

FAMILIES = {  # Linears of a 2-layer encoder, kinds of its sites, smoothings that fold into values
    "bert": (12, {"qkv", "attention-output", "up", "down"}, 2),
    "distilbert": (12, {"qkv", "attention-output", "up", "down"}, 2),
    "roberta": (12, {"qkv", "attention-output", "up", "down"}, 2),
    "xlm-roberta": (12, {"qkv", "attention-output", "up", "down"}, 2),
    "albert": (13, {"embedding_hidden_mapping_in", "qkv", "attention-output", "up", "down"}, 2),
    "electra": (13, {"embeddings_project", "qkv", "attention-output", "up", "down"}, 2),
    "deberta-v2": (12, {"qkv", "attention-output", "up", "down"}, 0),
    "mobilebert": (31, {"embedding_transformation", "dense", "qkv", "attention-output", "up", "down"}, 2),
}


@dataclasses.dataclass(frozen=True)
class Exported:
    checkpoint: Checkpoint
    path: Path

    @property
    def model(self) -> onnx.ModelProto:
        return onnx.load(self.path)

    def feeds(self, rows: int = 4, length: int = 20, seed: int = 0) -> parity.Feeds:
        return parity.synthetic_feeds(self.checkpoint, rows, length, seed=seed)

    def calibrated(self, **options: Any) -> Calibration:
        return calibration(observe(self.model, [self.feeds()], **options), storage.digest(self.path))


def calibration(found: dict[str, SiteRange], graph: str = "") -> Calibration:
    return Calibration("minmax", 0.95, 64, False, "", graph, "", "", "made up", 4, 0, sites=found)


def logits(model: onnx.ModelProto, feeds: parity.Feeds) -> np.ndarray:
    return ranges.runner(model, ["logits"])(feeds)[0]


def without_pairs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with every Q/DQ pair taken out: what is left of quantization is smoothing."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    source = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    source |= {n.output[0]: source[n.input[0]] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    kept = [n for n in model.graph.node if n.op_type not in ("QuantizeLinear", "DequantizeLinear")]
    del result.graph.node[:]
    result.graph.node.extend(kept)
    for node in result.graph.node:
        for position, name in enumerate(node.input):
            node.input[position] = source.get(name, name)
    return result


def readers_of_int8(model: onnx.ModelProto) -> set[str]:
    floats = {n.output[0] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    return {n.name for n in model.graph.node if not floats.isdisjoint(n.input)}
