"""bertopt against what one would pick otherwise: raw texts to labels on the host, on one CPU, in one run.

    python benchmarks/peers.py --model FOLDER --data FILE.jsonl [--limit N] [--only pipeline,st-openvino,bertopt-fp16]

All peers get the same texts, batch size, length and cores. They are loaded and warmed up first, each environment in a
process of its own; then every repeat asks each for one pass, one at a time, so that a slow minute of the machine is
shared by all. Environments that cannot share libraries are made under --envs on the first run (about 1.5 GB each). Peers,
and what each computes, are the rows of peers_worker.py.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from peers_systems import Job
from peers_worker import HERE, PEERS, Peer, rungs

from bertopt import demo, labels
from bertopt.environment import environment
from bertopt.errors import BertoptError, UsageError
from bertopt.files import write_text
from bertopt.ladder import RUNGS
from bertopt.measure.cores import usable_cores
from bertopt.measure.statistics import compare
from bertopt.model import Checkpoint, open_checkpoint
from bertopt.prepare import Climb, sequence_length
from bertopt.progress import progress
from bertopt.text import Requests, read
from bertopt.workspace import cache_folder

WORKER = Path(__file__).with_name("peers_worker.py")
SETTLE_SECONDS = 0.3  # between passes: threads of the peer before spin for a while when their work is done

# sentence-transformers' back ends each bring a version of transformers that the others do not take
TORCH = "torch==2.13.0"
ENVIRONMENTS = {
    "st-torch": (TORCH, "sentence-transformers==6.2.0", "transformers==5.24.0"),
    "st-onnx": (
        TORCH,
        "sentence-transformers[onnx]==5.7.0",
        "optimum-onnx==0.1.0",
        "transformers==4.57.6",
        "onnx==1.23.2",
        "onnxruntime==1.32.0",
    ),
    "st-openvino": (
        TORCH,
        "sentence-transformers[openvino]==6.2.0",
        "optimum-intel==2.2.0",
        "transformers==5.5.4",
        "openvino==2026.4.1",
        "nncf==3.4.0",
    ),
}


@dataclass
class Row:
    """A peer and what was seen of it."""

    peer: Peer
    status: str = "measured"  # "measured", "skipped" or "failed"
    reason: str | None = None
    precision: str | None = None
    seconds: list[float] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)  # of the last pass

    def take(self, answer: dict[str, Any]) -> None:
        for status in ("skipped", "failed"):
            if status in answer:
                self.status, self.reason = status, answer[status]
        self.precision = answer.get("precision", self.precision)
        if "seconds" in answer:
            self.seconds.append(answer["seconds"])
            self.labels = answer["labels"]

    @property
    def alive(self) -> bool:
        return self.status == "measured"


class Worker:
    """The process of one environment; JSON lines to and fro. A context manager: it ends when the block does."""

    def __init__(self, python: Path, job: Job, log: Path) -> None:
        threads = str(job.threads)
        variables = {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
        self.log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(python), str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | variables | {"TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "true"},
                text=True,
                encoding="utf-8",
            )
        self.hello = self.ask(**asdict(job))

    def ask(self, **request: Any) -> dict[str, Any]:
        """Its answer, or {"failed": ...} when it has died."""
        try:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        return json.loads(line) if line else {"failed": f"its process died with code {self._process.wait()}; see {self.log}"}

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def interpreter(name: str, root: Path, log: Path) -> Path:
    """The Python of an environment, which is made first where its requirements are not those that it was made from.

    Raises BertoptError with pip's last words where it cannot be made.
    """
    if name == HERE:
        return Path(sys.executable)
    folder, wanted = root / name, "\n".join(ENVIRONMENTS[name])
    marker, python = folder / "made-from.txt", folder / "bin" / "python"
    if marker.exists() and marker.read_text() == wanted:
        return python
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [*pip, "install", "--quiet", *ENVIRONMENTS[name]],
        # optimum-intel wants it for images. Its default wheel, made for CUDA, breaks every import beside a CPU build of torch.
        [*pip, "uninstall", "--quiet", "--yes", "torchvision"],
    )
    with log.open("w+") as output:
        for step in steps:
            if subprocess.run(step, stdout=output, stderr=subprocess.STDOUT, check=False).returncode:
                output.seek(0)
                said = [line.strip() for line in output if line.strip()] or [shlex.join(step)]
                raise BertoptError(f"the environment {name} cannot be made: {said[-1]}")
    marker.write_text(wanted)
    return python


def measure(peers: Sequence[Peer], job: Job, repeats: int, root: Path) -> tuple[list[Row], dict[str, Any]]:
    """Rows in the order of `peers`, and the versions of each environment's libraries."""
    rows = [Row(peer) for peer in peers]
    root.mkdir(parents=True, exist_ok=True)
    with progress() as bar, ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in dict.fromkeys(peer.environment for peer in peers):
            bar.stage(f"environment {name}")
            try:
                python = interpreter(name, root, root / f"{name}-pip.log")
                workers[name] = stack.enter_context(Worker(python, job, root / f"{name}.log"))
            except BertoptError as error:
                for row in rows:
                    if row.peer.environment == name:
                        row.take({"skipped": str(error)})
        start = {}
        for row in filter(lambda row: row.alive, rows):
            bar.stage(f"loading {row.peer.name}")
            began = time.perf_counter()
            row.take(workers[row.peer.environment].ask(open=row.peer.name))
            start[row.peer.name] = time.perf_counter() - began
        bar.total(sum(start.values()) * repeats)
        for repeat in range(repeats):
            for row in rows if repeat % 2 == 0 else reversed(rows):  # no peer always follows the same one
                if row.alive:
                    bar.stage(f"{row.peer.name}, repeat {repeat + 1} of {repeats}")
                    time.sleep(SETTLE_SECONDS)
                    row.take(workers[row.peer.environment].ask(run=row.peer.name))
                    bar.advance(start[row.peer.name])
        return rows, {name: worker.hello.get("versions") for name, worker in workers.items()}


def summary(rows: Sequence[Row], truth: np.ndarray | None) -> list[dict[str, Any]]:
    """What the record keeps of each row. Agreement is with the first row that was measured."""
    first = next((np.array(row.labels) for row in rows if row.alive), None)
    found = []
    for row in rows:
        entry: dict[str, Any] = {"name": row.peer.name, "computes": row.peer.computes, "environment": row.peer.environment}
        entry |= {"status": row.status, "reason": row.reason, "precision": row.precision}
        if row.alive:
            rates = [len(row.labels) / seconds for seconds in row.seconds]
            given = np.array(row.labels)
            entry |= {
                "throughput_seq_s": statistics.median(rates),
                "repeats_seq_s": rates,
                "accuracy": None if truth is None else float((given == truth).mean()),
                "agreement": float((given == first).mean()),
            }
        found.append(entry)
    return found


def table(entries: Sequence[dict[str, Any]]) -> str:
    """Plain text in 100 columns: the terminal's, the README's. Speed and agreement are over the first measured row."""
    first = next((entry["throughput_seq_s"] for entry in entries if entry["status"] == "measured"), None)
    lines = [f"{'peer':22}{'seq/s':>10}{'lowest to highest':>22}{'times':>8}{'right':>9}{'agrees':>9}{'ran':>7}", "-" * 87]
    for entry in entries:
        if entry["status"] != "measured":
            lines.append(f"{entry['name']:22}  {entry['status']}: {entry['reason']}")
            continue
        rates, speed = entry["repeats_seq_s"], entry["throughput_seq_s"]
        spread = f"{min(rates):,.1f} to {max(rates):,.1f}"
        right = "" if entry["accuracy"] is None else f"{entry['accuracy']:.2%}"
        lines.append(
            f"{entry['name']:22}{speed:10,.1f}{spread:>22}{speed / first:7.2f}x{right:>9}"
            f"{entry['agreement']:9.2%}{entry['precision']:>7}"
        )
    return "\n".join(lines)


def verdict(entries: Sequence[dict[str, Any]]) -> str:
    """Whether anything beats bertopt's best rung. Gated rungs do not count: nobody gated them here."""
    gated = {f"bertopt-{rung.name}" for rung in RUNGS if rung.gated}
    measured = [entry for entry in entries if entry["status"] == "measured" and entry["name"] not in gated]
    ours = [entry for entry in measured if entry["name"].startswith("bertopt-")]
    others = [entry for entry in measured if entry not in ours]
    if not ours or not others:
        return "no comparison: it takes a rung of bertopt and a peer"
    best = max(ours, key=lambda entry: entry["throughput_seq_s"])
    rival = max(others, key=lambda entry: entry["throughput_seq_s"])
    ratio = best["throughput_seq_s"] / rival["throughput_seq_s"]
    difference = compare(best["repeats_seq_s"], rival["repeats_seq_s"])
    words = "inside the spread of the repeats" if difference == "no difference" else difference
    return f"{best['name']} is {ratio:.2f} times {rival['name']}, the fastest peer: {words}"


def chosen(only: str | None) -> list[Peer]:
    """The rows asked for, in the table's order. Raises UsageError for a name that is none."""
    every = [*PEERS, *rungs()]
    if only is None:
        return every
    names = [name.strip() for name in only.split(",")]
    if unknown := [name for name in names if name not in {peer.name for peer in every}]:
        raise UsageError(f"there is no peer {unknown[0]!r}; there are {', '.join(peer.name for peer in every)}")
    return [peer for peer in every if peer.name in names]


def without_folders(arguments: Sequence[str]) -> str:
    """The command line with paths cut to their last part: a record should not tell where someone keeps files."""
    shown = []
    for word in arguments:
        option, equals, value = word.rpartition("=")
        shown.append(f"{option}{equals}{Path(value).name if '/' in value else value}")
    return shlex.join(["python", "benchmarks/peers.py", *shown])


def texts_and_truth(checkpoint: Checkpoint, data: Path | None, limit: int | None) -> tuple[Requests, np.ndarray | None]:
    requests = read(data, limit=limit) if data else demo.texts()
    requests = requests.take(range(min(limit or len(requests), len(requests))))
    if checkpoint.task != "single_label":
        raise UsageError(f"{checkpoint.name} is for {checkpoint.task}; the peers are compared as classifiers with one label")
    if requests.pairs is not None:
        raise UsageError(f"{requests.name} has pairs of texts; the peers are compared on single ones")
    if requests.labels is None:
        return requests, None
    assert checkpoint.labels is not None
    return requests, labels.match(requests.labels, checkpoint.labels, requests.name)[0]


def report(record: dict[str, Any]) -> Iterator[str]:
    machine = record["environment"]
    yield f"{record['created']}  {record['command']}"
    yield f"{machine['cpu']}, {record['threads']} threads, {' '.join(machine['cpu_features'])}; {machine['system']}"
    for name, versions in record["versions"].items():
        yield f"{name}: " + ", ".join(f"{library} {version}" for library, version in (versions or {}).items())
    yield (
        f"{record['model']}, {record['requests']} texts of {record['data']}, batch size {record['batch_size']}, at most "
        f"{record['length']} tokens; median of {record['repeats']} passes in turn, raw text to labels on the host"
    )
    yield ""
    yield table(record["peers"])
    yield ""
    yield record["verdict"]
    yield ""
    yield from (f"{entry['name']:22}{entry['computes']}" for entry in record["peers"])


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="a folder with a classifier, or the embedded demo")
    parser.add_argument("--data", type=Path, help="single texts, with labels or without (default: the demo's)")
    parser.add_argument("--bs", type=int, default=32)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--limit", type=int, help="texts (default: all)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", help="names of peers, comma-separated (default: all)")
    parser.add_argument("--envs", type=Path, help="where other environments are made (default: in bertopt's cache)")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.txt")
    asked = parser.parse_args(arguments)
    if min(asked.bs, asked.repeats, 1 if asked.limit is None else asked.limit) < 1:
        raise UsageError("--bs, --repeats and --limit must be at least 1")
    if asked.out and not os.access(asked.out.resolve().parent, os.W_OK):
        raise UsageError(f"--out {asked.out}: {asked.out.resolve().parent} is no folder that can be written")
    peers, checkpoint = chosen(asked.only), open_checkpoint(asked.model)
    length = sequence_length(checkpoint, Climb(asked.model, sequence_length=asked.seq))
    requests, truth = texts_and_truth(checkpoint, asked.data, asked.limit)
    threads = usable_cores()
    data = str(asked.data) if asked.data else None
    job = Job(asked.model, data, str(checkpoint.folder), requests.texts, asked.bs, length, threads)
    rows, versions = measure(peers, job, asked.repeats, asked.envs or cache_folder("peers"))
    entries = summary(rows, truth)
    record = {
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": without_folders(arguments),
        "environment": environment("cpu"),
        "threads": threads,
        "versions": versions,
        "model": checkpoint.name,
        "data": requests.name,
        "requests": len(requests),
        "batch_size": asked.bs,
        "length": length,
        "repeats": asked.repeats,
        "peers": entries,
        "verdict": verdict(entries),
    }
    text = "\n".join(report(record)) + "\n"
    print(text, end="")
    if asked.out:
        write_text(Path(f"{asked.out}.json"), json.dumps(record, indent=1) + "\n")
        write_text(Path(f"{asked.out}.txt"), text)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BertoptError as error:
        sys.exit(f"peers.py: {error}")
    except KeyboardInterrupt:
        sys.exit("peers.py: interrupted; nothing was written")
