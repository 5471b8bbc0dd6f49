"""`bertopt serve` beside what one would start otherwise, each behind its own HTTP server, asked alike.

    python benchmarks/peers_serve.py ENCODER-BUNDLE --model FOLDER [--data F] [--slo-ms 200] [--seconds 8]

The peer is sentence-transformers (its default: PyTorch FP32 eager) behind the small server that its users write on Starlette:
one thread for the model, a call a request (peers_serve_peer.py). FOLDER is the same encoder. Both answer one text a request
with an embedding; how near their vectors are is printed too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

import bertopt
from bertopt import demo
from bertopt.bundle import read_manifest
from bertopt.loadtest.client import Target
from bertopt.loadtest.openloop import find, highest, hold
from bertopt.loadtest.records import Curve, LoadRecord, Point
from bertopt.loadtest.report import lines
from bertopt.loadtest.run import bodies
from bertopt.text import read

PEER = Path(__file__).with_name("peers_serve_peer.py")
PORT = 8799


@contextmanager
def started(command: list[str]) -> Iterator[Target]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    target = Target("127.0.0.1", PORT, "/embed")
    try:
        while ask(target, "GET", "/readyz")[0] != 200:
            if process.poll() is not None:
                raise SystemExit(f"{command[1]} ended with {process.returncode}")
            time.sleep(0.1)
        yield target
    finally:
        process.terminate()
        process.wait(30)


def ask(target: Target, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    with closing(HTTPConnection(target.host, target.port, timeout=60)) as connection:
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except ConnectionError:
            return 0, None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--slo-ms", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rate", type=float, default=40.0)
    wanted = parser.parse_args()
    requests = read(wanted.data, limit=wanted.texts) if wanted.data else demo.texts().take(range(wanted.texts))
    sent = bodies(requests, 1)
    manifest = read_manifest(wanted.bundle)
    ours = [sys.executable, "-m", "bertopt", "serve", str(wanted.bundle), "--port", str(PORT)]
    theirs = [sys.executable, str(PEER), wanted.model, str(PORT), str(manifest.max_length)]
    curves, vectors = [], []
    for name, command in {"sentence-transformers, a server of its own": theirs, "bertopt serve": ours}.items():
        with started(command) as target:
            vectors.append(np.array([ask(target, "POST", "/embed", body)[1]["embeddings"][0] for body in sent[:32]]))
            hold(target, sent, wanted.rate / 2, 3.0, wanted.slo_ms)

            def measure(rate: float, target: Target = target, name: str = name) -> Point:
                point = hold(target, sent, rate, wanted.seconds, wanted.slo_ms)
                print(f"{name}: {rate:.0f}/s: p99 {point.p99_ms or 0.0:.0f} ms", file=sys.stderr, flush=True)
                time.sleep(2)
                return point

            points = find(measure, wanted.rate, close=0.08, most=9)
        curves.append(Curve(name, points, highest(points)))
    record = LoadRecord("", " ".join(sys.argv), bertopt.__version__, requests.name, 1, wanted.slo_ms, curves)
    print("\n".join(lines(record)))
    norms = [np.linalg.norm(v, axis=1) for v in vectors]
    cosine = (vectors[0] * vectors[1]).sum(axis=1) / norms[0] / norms[1]
    print(f"\nsmallest cosine between the two's vectors of 32 texts: {cosine.min():.5f}")
    slow, fast = (curve.highest_rate for curve in curves)
    if slow and fast:
        print(f"highest rate: {fast:.0f} over {slow:.0f}/s, {fast / slow:.1f}x ({manifest.precision} against FP32)")


if __name__ == "__main__":
    main()
