"""INT8 by several methods against FP32 on real rows: the table that the defaults of calibration were chosen by.

    python benchmarks/int8_methods.py --classifier MODEL CALIBRATION ROWS [--classifier ...] [--variants a,b,...]
                                      [--samples 512] [--rows 1000] [--speed] [--out FILE]

ROWS are labelled, and the method is chosen on rows that nobody judges by: give the training rows, and for the last word the
evaluation rows with `--rows 0` (all) and few variants. Every variant is one Q/DQ file that OpenVINO runs with the BF16 hint,
or FP32 where the processor has no BF16. Peers (ONNX Runtime's own quantizer, NNCF) that are not installed are rows with the
reason. `--speed` adds the time over BF16's, the median of passes in turn.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).parents[1]))

from bertopt import calibration as caches
from bertopt import labels
from bertopt.backends import openvino
from bertopt.backends.base import Artifact, Options
from bertopt.backends.host import padded_arrays
from bertopt.batching import Bucketed, Dynamic, batches, choose_edges
from bertopt.calibration import SMOOTH
from bertopt.graph.linears import sites
from bertopt.graph.quantize import SAFE_LEVELS, fold_weights, quantize
from bertopt.model import open_checkpoint
from bertopt.run import logits_of
from bertopt.text import Requests, read
from bertopt.tokenization import load_tokenizer
from bertopt.workspace import Workspace

LENGTH, BATCH, PASSES = 128, 32, 5
TIMED_BATCHES = 40


def spread(requests: Requests, rows: int) -> Requests:
    wanted = min(rows or len(requests), len(requests))
    return requests.take(np.unique(np.linspace(0, len(requests) - 1, wanted).astype(np.int64)))


@dataclass
class Case:
    """One classifier, its texts and its answers in float."""

    folder: str
    calibration_file: str
    rows_file: str
    samples: int
    rows: int
    scratch: Path
    float_logits: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.checkpoint = open_checkpoint(self.folder)
        self.workspace = Workspace(self.checkpoint)
        self.tokenizer = load_tokenizer(self.checkpoint.folder, max_length=LENGTH, model_type=self.checkpoint.model_type)
        self.texts = read(self.calibration_file)
        judged = spread(read(self.rows_file), self.rows)
        self.truth, _ = labels.match(judged.labels or [], self.checkpoint.labels or [], self.rows_file)
        tokens = self.tokenizer.encode(judged.texts, judged.pairs)
        edges = choose_edges(tokens.lengths, LENGTH, batch_size=BATCH, window=len(tokens))
        self.batches = list(batches([tokens], Bucketed(BATCH, edges, len(tokens))))

    @functools.cached_property
    def model(self) -> onnx.ModelProto:
        return onnx.load(self.workspace.canonical())

    def calibrated(self, **options: Any) -> caches.Calibration:
        return caches.cached(self.workspace, self.texts, max_length=LENGTH, samples=self.samples, **options)[0]

    def save(self, model: onnx.ModelProto) -> Path:
        path = self.scratch / f"{len(list(self.scratch.iterdir()))}.onnx"
        onnx.save(model, path)
        return path

    def single_feeds(self) -> Iterator[dict[str, Any]]:
        """Calibration rows one at a time, for peers that cannot leave padding out."""
        chosen = spread(self.texts, self.samples)
        for batch in batches([self.tokenizer.encode(chosen.texts, chosen.pairs)], Dynamic(1)):
            yield padded_arrays(batch, self.checkpoint.uses_type_ids, self.checkpoint.pad_id)

    def open(self, path: Path, precision: str) -> Any:
        return openvino.open(Artifact(path, precision, self.checkpoint.uses_type_ids), Options(pad_id=self.checkpoint.pad_id))

    def logits(self, path: Path, precision: str) -> Any:
        with self.open(path, precision) as session:
            return logits_of(session, self.batches, len(self.truth))

    def in_float(self, precision: str) -> Any:
        if precision not in self.float_logits:
            self.float_logits[precision] = self.logits(self.workspace.canonical(), precision)
        return self.float_logits[precision]

    def speed(self, path: Path) -> float:
        """Of this INT8 file over the graph in BF16 (FP32 without), shapes warm, passes in turn."""
        half = openvino.half_precision() or "fp32"
        timed = self.batches[:: -(-len(self.batches) // TIMED_BATCHES)]
        with self.open(path, "int8") as low, self.open(self.workspace.canonical(), half) as high:
            times: dict[int, list[float]] = {0: [], 1: []}
            for turn in range(1 + PASSES):
                for index, session in enumerate((low, high)):
                    start = time.perf_counter()
                    for batch in timed:
                        session.launch(session.stage(batch)).result()
                    times[index] += [time.perf_counter() - start] * bool(turn)  # the first one compiles
        return statistics.median(times[1]) / statistics.median(times[0])


def ours(case: Case, *, leave: str = "", levels: int = 127, **options: Any) -> Path:
    """`leave` is a kind of site."""
    left = {site.name for site in sites(case.model) if site.kind == leave}
    attention = options.get("attention", False)
    result, _ = quantize(case.model, case.calibrated(**options), leave=left, weight_levels=levels, attention=attention)
    return case.save(fold_weights(result))


def runtime_default(case: Case) -> Path:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.feeds = case.single_feeds()

        def get_next(self) -> dict[str, Any] | None:
            return next(self.feeds, None)

    path = case.scratch / "runtime.onnx"
    quantize_static(str(case.workspace.canonical()), str(path), Reader())
    return path


def nncf_performance(case: Case) -> Path:
    import nncf

    result = nncf.quantize(
        case.model,
        nncf.Dataset(list(case.single_feeds())),
        preset=nncf.QuantizationPreset.PERFORMANCE,
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=case.samples,
    )
    return case.save(result)


STRENGTHS = (0.0, 0.5, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97)
VARIANTS: dict[str, Callable[[Case], Path]] = {
    **{f"min-max, smoothing {s:g}": functools.partial(ours, smooth=s) for s in STRENGTHS},
    **{
        f"the same {s:g}, down projection in float": functools.partial(ours, smooth=s, leave="down")
        for s in (0.0, *STRENGTHS[2:])
    },
    **{f"{m}, smoothing {SMOOTH:g}": functools.partial(ours, method=m) for m in ("percentile", "entropy", "mse")},
    **{f"{m}, no smoothing": functools.partial(ours, method=m, smooth=0.0) for m in ("percentile", "entropy", "mse")},
    f"min-max, smoothing {SMOOTH:g}, attention products too": functools.partial(ours, attention=True),
    f"min-max, smoothing {SMOOTH:g}, 7-bit weights": functools.partial(ours, levels=SAFE_LEVELS),
    "ONNX Runtime's default static quantization": runtime_default,
    "NNCF, PERFORMANCE, transformer": nncf_performance,
}


def asked(name: str, wanted: str) -> bool:
    return name == wanted or (wanted not in VARIANTS and name.startswith(wanted))


def measure(case: Case, make: Callable[[Case], Path], with_speed: bool) -> list[str]:
    """Cells of one row: accuracy, agreement with FP32 and rows that flip, error of the logits, speed."""
    right = case.in_float("fp32")
    path = make(case)
    found = case.logits(path, "unchecked int8")
    cells = scores(case, right, found)
    return [*cells, f"{case.speed(path):.2f}x"] if with_speed else cells


def scores(case: Case, right: Any, found: Any) -> list[str]:
    flips = int((found.argmax(1) != right.argmax(1)).sum())
    error = float(np.sqrt(((found - right) ** 2).mean()) / right.std())
    accuracy = float((found.argmax(1) == case.truth).mean())
    return [f"{accuracy:.2%}", f"{1 - flips / len(right):.2%} ({flips})", f"{error:.4f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classifier", nargs=3, action="append", required=True, metavar=("MODEL", "CALIBRATION", "ROWS"))
    parser.add_argument("--variants", help="names or beginnings of names, separated by semicolons (default: all)")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--rows", type=int, default=1000, help="0: all")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    wanted = options.variants.split(";") if options.variants else [""]
    chosen = {name: make for name, make in VARIANTS.items() if any(asked(name, each.strip()) for each in wanted)}
    columns = ["accuracy", "labels as FP32 (flips)", "logit error"] + ["speed over BF16"] * options.speed
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        for number, files in enumerate(options.classifier):
            folder = Path(scratch, str(number))
            folder.mkdir()
            case = Case(*files, options.samples, options.rows, folder)
            used = len(spread(case.texts, options.samples))
            say(f"\n{case.checkpoint.name}: {len(case.truth)} rows of {Path(files[2]).name}, calibrated on {used}\n")
            say(f"| variant | {' | '.join(columns)} |")
            say("|---" * (1 + len(columns)) + "|")
            right = case.in_float("fp32")
            for name in ("fp32", *filter(None, [openvino.half_precision()])):
                cells = scores(case, right, case.in_float(name))
                say(f"| {name.upper()} | {' | '.join(cells)} |" + " |" * options.speed)
            for name, make in chosen.items():
                try:
                    cells = measure(case, make, options.speed)
                except ImportError as error:
                    cells = [f"not run: {error}", *[""] * (len(columns) - 1)]
                say(f"| {name} | {' | '.join(cells)} |")
    if options.out:
        caches.write_text(options.out, "\n".join(lines).lstrip() + "\n")


if __name__ == "__main__":
    main()
