"""Building in a process of its own: the caller sees time pass, Ctrl-C is answered at once, and a crash is a sentence.

A builder keeps the interpreter lock for minutes and cannot be interrupted. The child reads a job from its standard
input, writes events to its standard output, one JSON object a line, and writes files only where the job says: into a
folder that the caller removes whatever happens.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bertopt import errors
from bertopt.errors import BertoptError, WorkerError

Progress = Callable[[float, str], None]  # seconds since the start, what is being done
Report = Callable[[str], None]  # what is being done
TICK_S = 0.2


@dataclass(frozen=True)
class Job:
    """What a builder is told; plain JSON."""

    builder: str  # module of bertopt.builders
    target: str  # key of graph.emit.TARGETS
    onnx: str
    out: str  # where the plan goes
    precision: str
    fp32_nodes: list[str] = field(default_factory=list)
    profiles: list[str] = field(default_factory=list)
    tactics: str = "all"  # "all", or "internal": none of cuBLAS and cuDNN
    timing_cache: str | None = None  # read if it is there, and written
    layers: str | None = None  # where the inspector's report goes
    quantized: int = 0  # products that are to run in INT8


@dataclass(frozen=True)
class Built:
    """What a builder says of its plan; plain JSON."""

    precision: str  # that really runs, as far as the library tells
    inputs: dict[str, str]
    outputs: dict[str, str]
    layers: dict[str, int] = field(default_factory=dict)  # precision -> number, from the inspector
    notes: list[str] = field(default_factory=list)


def run(job: Job, progress: Progress | None = None) -> Built:
    """Build in a child process and wait for it.

    Raises what the builder raised, and WorkerError, with the end of what it printed, when it died.
    """
    start = time.monotonic()
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(paths))
    with tempfile.TemporaryFile("w+") as printed:
        command = [sys.executable, "-m", "bertopt.builders.process"]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed, text=True, env=environment
        )
        try:
            assert child.stdin
            assert child.stdout
            child.stdin.write(json.dumps(dataclasses.asdict(job)))
            child.stdin.close()
            answer = _follow(child.stdout, start, progress)
            status = child.wait()
        finally:
            child.kill()
            child.wait()
        if answer is None:
            printed.seek(0)
            last = [line for line in printed.read().splitlines() if line.strip()][-3:]
            how = f"signal {-status}" if status < 0 else f"status {status}"
            raise WorkerError(f"the builder of {job.target} died with {how}: {' / '.join(last) or 'it printed nothing'}")
    if "error" in answer:
        kind = getattr(errors, answer["error"], WorkerError)
        raise kind(answer["text"])
    return Built(**answer["built"])


def _follow(stream: IO[str], start: float, progress: Progress | None) -> dict[str, Any] | None:
    """The child's last event; None when it ended without one."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    doing, answer, told = "starting", None, 0.0
    while True:
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=TICK_S)
            if line is None:
                return answer
            event = json.loads(line)
            if "doing" in event:
                doing = event["doing"]
            else:
                answer = event
        now = time.monotonic()
        if progress is not None and now - told >= TICK_S:
            told = now
            progress(now - start, doing)


def _child() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent answers it
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: don't outlive a parent that was killed
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print where they like

    def send(**event: Any) -> None:
        print(json.dumps(event), file=events, flush=True)

    job = Job(**json.loads(sys.stdin.read()))
    try:
        built = importlib.import_module(f"bertopt.builders.{job.builder}").build(job, lambda doing: send(doing=doing))
    except BertoptError as error:
        send(error=type(error).__name__, text=str(error))
    except MemoryError:
        send(error="WorkerError", text=f"the builder of {job.target} ran out of memory")
    else:
        send(built=dataclasses.asdict(built))


if __name__ == "__main__":
    _child()
