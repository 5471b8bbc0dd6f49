"""One stream over all cores against streams of fewer cores that share each batch's rows: what OpenVINO gains.

    python benchmarks/streams.py [--model FOLDER] [--data FILE.jsonl] [--limit 1024] [--repeats 6]

The same batches lie ready in every case and the cases are run in turn; seconds of a pass, the fastest and the median.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from bertopt import demo
from bertopt.backends import openvino
from bertopt.backends.base import Options
from bertopt.batching import Bucketed, batches, choose_edges
from bertopt.environment import environment
from bertopt.measure.loop import replay
from bertopt.model import open_checkpoint
from bertopt.run import warm_up
from bertopt.text import read
from bertopt.tokenization import load_tokenizer
from bertopt.workspace import Workspace

PRECISIONS = ("fp32", "half")
BATCH_SIZE, LENGTH, WINDOW, IN_FLIGHT = 32, 128, 1024, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--limit", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=6)
    asked = parser.parse_args()
    checkpoint = open_checkpoint(asked.model)
    requests = read(asked.data, limit=asked.limit) if asked.data else demo.texts().take(np.arange(asked.limit))
    tokens = load_tokenizer(checkpoint.folder, max_length=LENGTH, model_type=checkpoint.model_type).encode(requests.texts)
    edges = choose_edges(tokens.lengths, LENGTH, batch_size=BATCH_SIZE, window=WINDOW)
    grouped = list(batches([tokens], Bucketed(BATCH_SIZE, edges, WINDOW)))
    workspace, most = Workspace(checkpoint), openvino.STREAMS
    sessions: dict[tuple[str, int], Any] = {}
    for precision in PRECISIONS:
        artifact = openvino.prepare(workspace, precision)
        for openvino.STREAMS in (1, most):
            session = openvino.open(artifact, Options(in_flight=IN_FLIGHT, pad_id=checkpoint.pad_id))
            warm_up(session, grouped)
            sessions[session.precision, openvino.STREAMS] = session
    seconds: dict[Any, list[float]] = {case: [] for case in sessions}
    for _ in range(asked.repeats):
        for case, session in sessions.items():
            seconds[case].append(replay(session, grouped, IN_FLIGHT))
    print(f"{environment('cpu')['cpu']}; {checkpoint.name}, {len(requests)} texts of {requests.name}, {len(grouped)} batches")
    for (precision, most), found in seconds.items():
        fastest, middle, alone = min(found), statistics.median(found), statistics.median(seconds[precision, 1])
        print(f"{precision} on up to {most} streams: {fastest:.2f} s at best, {middle:.2f} s median, {alone / middle:.2f}x")


if __name__ == "__main__":
    main()
