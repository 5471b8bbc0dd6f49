"""The gate on what one would get without this project: ONNX Runtime's default static quantization of a classifier.

    python benchmarks/gate_peers.py MODEL calib.jsonl eval.jsonl [--samples 512] [--max-drop 0.5]

Prints the verdict and exits as `bertopt gate` does: 1 where it fails. OpenVINO runs the quantized graph, as it runs ours.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from int8_methods import Case, runtime_default

from bertopt.gate import Predictions, judge, text_hashes, verdict_lines
from bertopt.text import read


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("calibration")
    parser.add_argument("data")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--max-drop", type=float, default=0.5)
    given = parser.parse_args()
    data = read(given.data)
    with tempfile.TemporaryDirectory() as scratch:
        case = Case(given.model, given.calibration, given.data, given.samples, 0, Path(scratch))

        def predictions(name: str, precision: str, logits: Any) -> Predictions:
            return Predictions(
                name=name,
                backend="OpenVINO",
                precision=precision,
                task=case.checkpoint.task,
                labels=case.checkpoint.labels,
                logits=np.asarray(logits),
                text_hashes=text_hashes(data.texts, data.pairs),
                data=data.name,
                data_fingerprint=data.fingerprint,
            )

        reference = predictions(case.checkpoint.name, "fp32", case.in_float("fp32"))
        candidate = predictions("quantize_static", "int8", case.logits(runtime_default(case), "int8"))
    verdict = judge(
        reference, candidate, data.labels, metric="accuracy", max_drop=given.max_drop, groups=data.groups, texts=data.texts
    )
    print("\n".join(verdict_lines(verdict)))
    return verdict.exit_code


if __name__ == "__main__":
    sys.exit(main())
