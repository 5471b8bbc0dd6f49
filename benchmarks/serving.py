"""What serving costs and brings, on this machine: the table of the service, measured through HTTP.

    bertopt ladder --rungs fp16 --out runs/serving
    python benchmarks/serving.py runs/serving [--rung fp16] [--data F] [--slo-ms 200] [--seconds 10] [--parts rates,overload]

Servers are started one at a time, each a process of its own as `bertopt serve` starts it; the client runs beside it on the same
cores, so that what it takes is taken from the server.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil

import bertopt
from bertopt import demo, feed, records
from bertopt.bundle import Bundle, open_bundle
from bertopt.exporting import Wanted, export
from bertopt.loadtest.client import Target
from bertopt.loadtest.openloop import find, highest, hold
from bertopt.loadtest.records import Curve, LoadRecord, Point
from bertopt.loadtest.report import lines, write_report
from bertopt.loadtest.run import bodies
from bertopt.measure.loop import run_pass
from bertopt.text import Requests, read

WAIT_MS = 5.0
MORE = 1.1  # than what the ladder's loop does: enough to keep the queue full, and little to refuse
PARTS = ("rates", "saturation", "overload", "idle", "answers")


@dataclass
class Server:
    process: psutil.Process
    target: Target

    def memory_mib(self) -> float:
        """Of the server and its engines."""
        family = [self.process, *self.process.children(recursive=True)]
        return sum(p.memory_info().rss for p in family) / 2**20

    def post(self, body: bytes) -> tuple[int, Any, float]:
        """Status, answer and milliseconds of one request on a connection of its own."""
        connection = HTTPConnection(self.target.host, self.target.port, timeout=60)
        start = time.perf_counter()
        connection.request("POST", self.target.path, body)
        answer = connection.getresponse()
        content = answer.read()
        took = (time.perf_counter() - start) * 1e3
        connection.close()
        return answer.status, json.loads(content), took


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "bertopt", "serve", str(folder), "--port", "0", "--max-wait-ms", str(WAIT_MS), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = next(m for line in process.stdout if (m := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
        server = Server(psutil.Process(process.pid), Target("127.0.0.1", int(found[1]), "/predict"))
        while not ready(server):
            time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        process.wait(60)


def ready(server: Server) -> bool:
    connection = HTTPConnection(server.target.host, server.target.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def rates(servers: dict[str, tuple[Path, list[str], float]], sent: list[bytes], wanted: Any) -> list[Curve]:
    """The highest rate of each, found in turn."""
    curves = []
    for name, (folder, options, first) in servers.items():
        with serving(folder, *options) as server:
            hold(server.target, sent, first / 4, 2.0, wanted.slo_ms)  # shapes that warming up has not met

            def measure(rate: float, server: Server = server, name: str = name) -> Point:
                point = hold(server.target, sent, rate, wanted.seconds, wanted.slo_ms, seed=wanted.seed)
                p99 = point.p99_ms or 0.0
                say(f"{name}: {rate:.0f}/s: p99 {p99:.0f} ms, {point.goodput:.0f} good/s, {point.refused} refused")
                time.sleep(1.5)
                return point

            points = find(measure, first, close=0.08, most=8, tries=2)
        curves.append(Curve(name, points, highest(points)))
    return curves


def offline(bundle: Bundle, requests: Requests) -> float:
    """Texts a second of the ladder's own loop on the bundle's session: the median of three passes, shapes warm."""
    policy, tokenizer, speeds = bundle.policy(), bundle.tokenizer(), []
    with bundle.open(in_flight=2) as session, feed.Workers(tokenizer, 1) as workers:
        for _ in range(4):
            chunks = workers.ahead(requests, depth=policy.window // feed.CHUNK_ROWS + 2)
            speeds.append(run_pass(chunks, policy, session, len(requests), 2).throughput_seq_s)
    return median(speeds[1:])


def saturation(bundle: Bundle, sent: list[bytes], requests: Requests, wanted: Any) -> list[str]:
    best = offline(bundle, requests)
    with serving(bundle.folder) as server:
        hold(server.target, sent, best, 4.0, wanted.slo_ms)
        point = hold(server.target, sent, MORE * best, 2 * wanted.seconds, wanted.slo_ms, seed=wanted.seed)
    served = point.rate_answered
    return [f"| throughput at saturation | {served:.0f} of {best:.0f} seq/s offline: {served / best:.0%} | 85 % |"]


def overload(bundle: Bundle, sent: list[bytes], rate: float, wanted: Any) -> list[str]:
    """Twice what it can, for a while; then how soon one request is as quick as before."""
    seconds = wanted.overload_seconds
    with serving(bundle.folder) as server:
        hold(server.target, sent, rate / 2, 5.0, wanted.slo_ms)
        usual = median(server.post(sent[n])[2] for n in range(20))
        memory = [server.memory_mib()]
        points = []
        for part in range(3):
            points.append(hold(server.target, sent, 2 * rate, seconds / 3, wanted.slo_ms, seed=part))
            memory.append(server.memory_mib())
        start = time.perf_counter()
        while server.post(sent[0])[2] > 3 * usual + WAIT_MS and time.perf_counter() - start < 30:
            pass
        recovery = time.perf_counter() - start
    sent_all, answered, refused = (sum(getattr(p, name) for p in points) for name in ("sent", "answered", "refused"))
    worst = max(p.p99_ms or 0.0 for p in points)
    grown = memory[-1] - memory[1]
    return [
        f"| {seconds:.0f} s at {2 * rate:.0f}/s: answered or 429 | {answered} + {refused} of {sent_all} | all |",
        f"| the same: p99 of the accepted | {worst:.0f} ms | queue and wait |",
        f"| the same: memory after a third, and at the end | {memory[1]:.0f}, {memory[-1]:.0f} MiB ({grown:+.0f}) | flat |",
        f"| the same: recovery | {recovery:.2f} s | 2 s |",
    ]


def idle(bundle: Bundle, requests: Requests) -> list[str]:
    """One request at a time, against the model's own time for the same text."""
    some = [json.dumps({"text": text}).encode() for text in requests.texts[:100]]
    with serving(bundle.folder) as server:
        for body in some:
            server.post(body)
        found = [server.post(body)[2] for body in some]
    with bertopt.load(bundle.folder) as model:
        own = []
        for _ in range(2):  # the first round compiles shapes
            own = []
            for text in requests.texts[:100]:
                start = time.perf_counter()
                model.predict([text])
                own.append((time.perf_counter() - start) * 1e3)
    over = np.array(found) - np.array(own) - WAIT_MS
    return [
        f"| one request on an idle server, beyond the model's own {median(own):.1f} ms and the wait of {WAIT_MS:g} ms "
        f"| {np.median(over):+.1f} ms (p90 {np.percentile(over, 90):+.1f}) | 3 ms |"
    ]


def answers(bundle: Bundle, requests: Requests) -> list[str]:
    """Every text asked singly at a rate that makes mixed batches, against `predict`."""
    found: dict[int, Any] = {}
    sent = bodies(requests, 1)
    with serving(bundle.folder, "--max-queue", "100000") as server:
        hold(
            server.target, sent, 200, len(sent) / 200, 1e6,
            told=lambda number, status, body: found.update({number % len(sent): json.loads(body)["results"][0]}),
        )  # fmt: skip
    with bertopt.load(bundle.folder) as model:
        expected = model.predict(requests.texts)
    rows = sorted(found)
    same = sum(found[n]["label"] == expected[n].label for n in rows)
    worst = max(abs(found[n]["scores"][label] - p) for n in rows for label, p in (expected[n].scores or {}).items())
    return [f"| same labels as predict, largest difference of a score | {same} of {len(rows)}, {worst:.2g} | all, parity |"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--rung", default=None)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--texts", type=int, default=1024)
    parser.add_argument("--slo-ms", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--overload-seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=200.0, help="where the search starts, and without rates what it found")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    requests = read(wanted.data, limit=wanted.texts) if wanted.data else demo.texts().take(range(wanted.texts))
    sent, rate, table = bodies(requests, 1), wanted.rate, []
    with tempfile.TemporaryDirectory() as scratch:
        bundle = export(Wanted(wanted.run, Path(scratch, "best"), wanted.rung))
        naive = export(Wanted(wanted.run, Path(scratch, "naive"), "baseline"))
        best = f"{bundle.manifest.rung} ({bundle.manifest.precision})"
        parts = wanted.parts.split(",")
        if "rates" in parts:
            servers: dict[str, tuple[Path, list[str], float]] = {
                "each alone, eager FP32": (naive.folder, ["--batching", "alone"], rate / 8),
                f"dynamic, {best}": (bundle.folder, ["--batching", "dynamic"], rate),
                f"bucketed, {best}": (bundle.folder, [], rate),
            }
            curves = rates(servers, sent, wanted)
            record = LoadRecord("", " ".join(sys.argv), bertopt.__version__, requests.name, 1, wanted.slo_ms, curves)
            print("\n".join(lines(record)), "\n")
            if wanted.out:
                records.save(record, wanted.out / "serving.json")
                write_report(record, wanted.out / "serving.html")
            alone, dynamic, ours = (curve.highest_rate or float("nan") for curve in curves)
            slo = f"p99 of {wanted.slo_ms:g} ms"
            over = f"{ours:.0f} over {alone:.0f}/s: {ours / alone:.1f}x"
            table.append(f"| highest rate at {slo} over each alone in eager FP32 | {over} | 6x |")
            over = f"{ours:.0f} over {dynamic:.0f}/s: {ours / dynamic:.2f}x"
            table.append(f"| the same over plain dynamic batching with the same plan | {over} | 1.25x |")
            rate = ours
        if "saturation" in parts:
            table += saturation(bundle, sent, requests, wanted)
        if "overload" in parts:
            table += overload(bundle, sent, rate, wanted)
        if "idle" in parts:
            table += idle(open_bundle(bundle.folder), requests)
        if "answers" in parts:
            table += answers(bundle, requests)
    print("\n".join(["| what | measured | at least |", "|---|---|---|", *table]))


if __name__ == "__main__":
    main()
