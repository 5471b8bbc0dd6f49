"""The table of bertopt's peers, and the process that answers `peers.py` from inside one environment.

    python benchmarks/peers_worker.py       reads JSON lines, writes JSON lines; `peers.py` starts it

A new peer is a row of PEERS, and a class in peers_systems.py where none fits. The first line in is the job; then
{"open": name} loads a peer and warms it up, and {"run": name} makes one timed pass.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
import traceback
import warnings
from dataclasses import dataclass
from typing import Any

from peers_systems import (
    Job,
    OnnxRuntime,
    OpenVino,
    Pipeline,
    Rung,
    SentenceTransformer,
    Skipped,
    SortedOpenVino,
    System,
    Torch,
)

HERE = "here"  # the environment that runs peers.py
LIBRARIES = ("torch", "transformers", "tokenizers", "sentence-transformers", "optimum", "optimum-onnx", "optimum-intel")
LIBRARIES += ("onnxruntime", "openvino", "nncf", "numpy")


@dataclass(frozen=True)
class Peer:
    """A row: its name, the environment it lives in, one sentence on what it computes, and the class that does."""

    name: str
    environment: str
    computes: str
    system: type[System]
    choices: dict[str, Any]


def _peer(name: str, environment: str, computes: str, system: type[System], **choices: Any) -> Peer:
    return Peer(name, environment, computes, system, choices)


def _st(name: str, environment: str, how: str, **choices: str) -> Peer:
    return _peer(name, environment, f"SentenceTransformer.encode, sorted by characters, {how}", SentenceTransformer, **choices)


LONGEST, MAXIMUM = {"padding": "longest"}, {"padding": "max_length"}
OPENVINO = {"source": "torch"}  # converted as its documentation does

PEERS = (
    _peer("pipeline", HERE, "transformers' pipeline, padded to the longest of a batch", Pipeline),
    _peer("torch-max", HERE, "transformers' model, padded to the maximum", Torch, **MAXIMUM),
    _peer("torch-longest", HERE, "transformers' model, padded to the longest of a batch", Torch, **LONGEST),
    _peer(
        "torch-bf16", HERE, "transformers' model in BF16, padded to the longest of a batch", Torch, **LONGEST, dtype="bfloat16"
    ),
    _st("st-torch", "st-torch", "torch back end", backend="torch"),
    _st("st-onnx", "st-onnx", "ONNX back end", backend="onnx"),
    _st("st-openvino-f32", "st-openvino", "OpenVINO back end told FP32", backend="openvino", hint="f32"),
    _st("st-openvino", "st-openvino", "OpenVINO back end in the precision that it chooses", backend="openvino"),
    _peer("ort-max", HERE, "ONNX Runtime, padded to the maximum", OnnxRuntime, **MAXIMUM),
    _peer("ort-longest", HERE, "ONNX Runtime, padded to the longest of a batch", OnnxRuntime, **LONGEST),
    _peer("openvino-f32-max", HERE, "OpenVINO told FP32, padded to the maximum", OpenVino, **OPENVINO, **MAXIMUM, hint="f32"),
    _peer("openvino-f32-longest", HERE, "OpenVINO told FP32, longest of a batch", OpenVino, **OPENVINO, **LONGEST, hint="f32"),
    _peer("openvino-max", HERE, "OpenVINO in the precision that it chooses, maximum", OpenVino, **OPENVINO, **MAXIMUM),
    _peer("openvino-longest", HERE, "OpenVINO in the precision that it chooses, longest", OpenVino, **OPENVINO, **LONGEST),
    _peer(
        "openvino-sorted", HERE, "OpenVINO's choice, all texts sorted by tokens, longest", SortedOpenVino, **OPENVINO, **LONGEST
    ),
    _peer(
        "openvino-onnx-sorted",
        HERE,
        "OpenVINO's choice from an ONNX file, sorted like it",
        SortedOpenVino,
        source="onnx",
        **LONGEST,
    ),
)


def rungs() -> tuple[Peer, ...]:
    """bertopt's own rows: every rung of the CPU's ladder that tokenizes ahead. Only where bertopt is installed."""
    from bertopt import ladder

    rows = [rung for rung in ladder.rungs_for("cpu") if ladder.pipeline(rung, "cpu").feed == "workers"]
    return tuple(_peer(f"bertopt-{rung.name}", HERE, f"bertopt: {rung.summary}", Rung, rung=rung.name) for rung in rows)


class Server:
    """Answers requests of one job. A peer that fails takes no other with it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._systems: dict[str, System] = {}

    def answer(self, request: dict[str, str]) -> dict[str, Any]:
        """{"open": name} -> its precision; {"run": name} -> seconds and labels; or why not."""
        try:
            if name := request.get("open"):
                self._systems[name] = system = self._load(name)
                system.warm_up()
                return {"precision": system.ran()}
            seconds, labels = self._systems[request["run"]].timed()
            return {"seconds": seconds, "labels": labels}
        except Skipped as reason:
            return {"skipped": str(reason)}
        except Exception as error:  # whatever a library raises: a row of the table
            traceback.print_exc()
            first = next((text.strip() for text in str(error).splitlines() if text.strip()), "")
            return {"failed": f"{type(error).__name__}: {first}"}

    def _load(self, name: str) -> System:
        known = {peer.name: peer for peer in PEERS}
        peer = known.get(name) or next(peer for peer in rungs() if peer.name == name)
        return peer.system(self._job, **peer.choices)


def versions() -> dict[str, str]:
    """Of this environment's libraries, by name."""
    found = {"python": sys.version.split()[0]}
    for name in LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def main() -> None:
    warnings.filterwarnings("ignore")
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not get between the answers

    def say(message: dict[str, Any]) -> None:
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()

    server = Server(Job(**json.loads(sys.stdin.readline())))
    say({"versions": versions()})
    for line in sys.stdin:
        say(server.answer(json.loads(line)))


if __name__ == "__main__":
    main()
