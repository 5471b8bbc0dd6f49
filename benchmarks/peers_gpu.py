"""Packed against its peers on one GPU, device only: BERT-base with random weights, the table of the README in one run.

    python benchmarks/peers_gpu.py [--out DIR] [--sections a,b,...] [--tensorrt FILE]
                                   [--checkpoint FOLDER --rows FILE --calibration FILE]

What is not there is a row with the reason. `--tensorrt` merges rows that another interpreter measured on the same machine,
a list of {"name", "shape", "ms"}. Times are medians of CUDA graph replays on random ids.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from on_gpu import MEAN_26, SHAPES, batch_of, captured, graph_of, load_batch, on_a_stream, replay_ms

from bertopt.backends import packed, packed_encoder, packed_kernels
from bertopt.backends.base import Artifact, Options
from bertopt.backends.packed_encoder import Encoder, Linear, PlainOperations
from bertopt.backends.packed_graphs import Captured, fastest
from bertopt.backends.packed_kernels import KernelOperations
from bertopt.backends.packed_weights import load
from bertopt.batching import Batch
from bertopt.measure.loop import Answers, replay
from bertopt.model import Checkpoint, open_checkpoint
from bertopt.tokens import Tokens

BERT_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
COMPARED = ("1 x 128", "32 x 128", "256, mean 26")
GROWTH = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
CORRECT = [5, 128, 17, 64, 100, 2, 33, 128, 1, 90]  # lengths of the rows that are checked


class Run:
    """Rows as they are measured, on the terminal and in a file."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows, self.section, self.started = path, [], "", time.perf_counter()  # type: ignore[var-annotated]
        self.environment = {
            "card": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "command": " ".join(sys.argv),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }

    def add(self, name: str, shape: str = "", ms: float | None = None, **more: Any) -> None:
        self.rows.append({"section": self.section, "name": name, "shape": shape, "ms": ms, **more})
        figures = [] if ms is None else [f"{ms:9.4f} ms"]
        figures += [f"{key} {value:,.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in more.items()]
        at = time.perf_counter() - self.started
        print(f"{at:6.1f} s {self.section:8} {name:56} {shape:13} {'  '.join(figures)}", flush=True)

    def attempt(self, name: str, shape: str, measure: Callable[[], dict[str, Any]]) -> None:
        """A row of what `measure` gives, or of why it gives nothing."""
        try:
            self.add(name, shape, **measure())
        except Exception as error:  # a layout that a library refuses, a tile that does not fit: the others go on
            self.add(name, shape, failed=f"{type(error).__name__}: {str(error).strip()[:150]}")

    def sections(self, bench: Any, names: list[str]) -> None:
        with torch.inference_mode():
            for self.section in names:
                try:
                    getattr(bench, self.section)()
                except Exception as error:  # one section must not take the figures of the others with it
                    traceback.print_exc()
                    self.add(self.section, failed=f"{type(error).__name__}: {error}"[:200])
                self.save()

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"environment": self.environment, "rows": self.rows}, indent=1) + "\n")


class Model:
    """BERT-base in random weights: the checkpoint, and our encoder in each precision that the card has."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp())
        config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], **BERT_BASE}
        (folder / "config.json").write_text(json.dumps(config))
        self.checkpoint: Checkpoint = open_checkpoint(str(folder), random_weights=True)
        self.encoders = {"fp16": load(self.checkpoint, torch.float16, "cuda")}
        if torch.cuda.get_device_capability() >= (8, 9):
            reference = load(self.checkpoint, torch.float32, "cuda")
            amax = reference.calibrate(packed.calibration_batches(batch_of(MEAN_26).tokens, "cuda"))
            self.encoders["fp8"] = load(self.checkpoint, torch.float16, "cuda")
            self.encoders["fp8"].quantize(amax)


class Peers:
    """A section a method."""

    def __init__(self, run: Run, arguments: argparse.Namespace) -> None:
        self.run, self.arguments, self.model = run, arguments, Model()

    def right(self) -> None:
        """Largest logit difference to transformers' eager FP32 over its logits' spread, and whether sequences are isolated."""
        reference = transformers_logits(self.model.checkpoint.torch_module().cuda())
        half = transformers_logits(self.model.checkpoint.torch_module().cuda().half())
        spread = float(reference.std())
        self.run.add("transformers, half, eager", "mixed", relative=float((half - reference).abs().max()) / spread)
        for precision, encoder in self.model.encoders.items():
            plain = PlainOperations(packed_encoder.varlen)
            self.run.attempt(f"{precision}, plain torch, varlen", "mixed", partial(correctness, encoder, plain, reference))
            for choices in packed_kernels.choices_for(encoder):
                run = partial(correctness, encoder, KernelOperations(choices), reference)
                self.run.attempt(f"{precision}, up {choices.up}"[:56], "mixed", run)

    def floor(self) -> None:
        """The twelve layers' products alone, each with weights of its own; INT8's too, and scales a row."""
        for shape in COMPARED:
            tokens = batch_of(SHAPES[shape]).computed_tokens
            for precision, encoder in self.model.encoders.items():
                sites = encoder.sites().values()
                x = {width: torch.randn(tokens, width, device="cuda").half() for width in {s.weight.shape[1] for s in sites}}
                work = [partial(site, site.take(x[site.weight.shape[1]]), add_bias=False) for site in sites]
                self.run.attempt(f"the products alone, {precision}", shape, partial(all_of, work))
                if precision == "fp8":
                    rows = [scaled_by_row(site, site.take(x[site.weight.shape[1]])) for site in sites]
                    self.run.attempt("the products alone, fp8, a scale a row", shape, partial(all_of, rows))
            whole = [
                partial(torch._int_mm, integers(tokens, s.weight.shape[1]), integers(*s.weight.shape).t())
                for s in self.model.encoders["fp16"].sites().values()
            ]
            self.run.attempt("the products alone, int8", shape, partial(all_of, whole))

    def packed(self) -> None:
        """What a session replays: the fastest choice for each budget."""
        for precision, encoder in self.model.encoders.items():
            for shape, lengths in SHAPES.items():
                self.run.attempt(f"bertopt packed {precision}", shape, partial(self.fastest_ms, encoder, lengths))

    def fastest_ms(self, encoder: Encoder, lengths: list[int], repeats: int = 30) -> dict[str, Any]:
        batch, start = batch_of(lengths), time.perf_counter()
        made = on_a_stream(fastest, encoder, batch.computed_tokens, 128)
        took = time.perf_counter() - start
        load_batch(made, batch)
        ms = replay_ms(made.graph, repeats)
        return {
            "ms": ms,
            "seq_s": len(lengths) / ms * 1e3,
            "padding": batch.padding_fraction,
            "capture_s": took,
            "choice": made.choice,
        }

    def growth(self) -> None:
        """Device time over tokens: a line through what is measured, and how far the points lie from it."""
        for precision, encoder in self.model.encoders.items():
            times = []
            for tokens in GROWTH:
                figures = self.fastest_ms(encoder, [128] * (tokens // 128), repeats=10)
                times.append(figures["ms"])
                self.run.add(f"bertopt packed {precision}", f"{tokens} tokens", **figures)
                torch.cuda.empty_cache()
            slope, offset = np.polyfit(GROWTH, times, 1)
            off = np.abs(np.polyval((slope, offset), GROWTH) / times - 1).max()
            self.run.add(f"line, {precision}", us_a_token=float(slope * 1e3), offset_ms=float(offset), farthest=float(off))

    def eager(self) -> None:
        """transformers, padded to 128, half precision and SDPA, in a CUDA graph of ours."""
        module = self.model.checkpoint.torch_module().model.cuda().half()
        for shape in ("1 x 128", "32 x 128"):
            self.run.attempt("transformers half, SDPA, CUDA graph", shape, partial(padded_ms, module, len(SHAPES[shape])))

    def compile(self) -> None:
        """torch.compile of transformers' model, and of our encoder in plain torch, in CUDA graphs of ours."""
        for precision, encoder in self.model.encoders.items():
            self.run.attempt(
                f"our plain encoder, torch.compile, {precision}", "32 x 128", partial(compiled_ms, encoder, "default")
            )
        mode = "max-autotune-no-cudagraphs"
        encoder = self.model.encoders["fp16"]
        self.run.attempt("our plain encoder, torch.compile max-autotune, fp16", "32 x 128", partial(compiled_ms, encoder, mode))
        start = time.perf_counter()
        module = torch.compile(self.model.checkpoint.torch_module().model.cuda().half(), mode=mode, dynamic=False)
        self.run.attempt("transformers half, torch.compile max-autotune", "32 x 128", partial(padded_ms, module, 32))
        self.run.add("compiling it took", s=time.perf_counter() - start)

    def ort(self) -> None:
        """Fused ONNX Runtime in FP16 on CUDA, padded to the longest row; then its packing mode."""
        import onnx
        import onnxruntime

        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            self.run.add("ONNX Runtime", failed="this onnxruntime has no CUDA: put onnxruntime-gpu on PYTHONPATH")
            return
        from onnxruntime.transformers.convert_to_packing_mode import PackingMode
        from onnxruntime.transformers.onnx_model import OnnxModel

        from bertopt.workspace import Workspace

        for device, mask in (("cpu", "as it is"), ("cuda", "as lengths")):
            path, counts = Workspace(self.model.checkpoint, device=device).fused(half=True)
            self.run.add("ONNX Runtime's fused operators", counts=str(counts)[:150])
            for shape in COMPARED:
                self.run.attempt(f"ONNX Runtime fused FP16, mask {mask}", shape, partial(ort_ms, path, SHAPES[shape]))
        model = OnnxModel(onnx.load(path))
        with tempfile.TemporaryDirectory() as folder:
            packing = Path(folder, "packing.onnx")
            PackingMode(model).convert()
            onnx.save(model.model, packing)
            for shape in COMPARED:
                self.run.attempt("ONNX Runtime packing mode FP16", shape, partial(ort_ms, packing, SHAPES[shape]))

    def trained(self) -> None:
        """A trained classifier: accuracy, agreement with FP32, and a session fed with staged batches of real lengths."""
        from bertopt import text
        from bertopt.batching import TokenBudget, batches
        from bertopt.tokenization import load_tokenizer

        if not self.arguments.checkpoint:
            self.run.add("trained classifier", failed="--checkpoint, --rows and --calibration name none")
            return
        checkpoint = open_checkpoint(self.arguments.checkpoint)
        tokenizer = load_tokenizer(checkpoint.folder, max_length=128)
        requests = text.read(self.arguments.rows)
        tokens = tokenizer.encode(requests.texts)
        truth = np.array([(checkpoint.labels or []).index(label) for label in requests.labels or []])
        plain, rows = load(checkpoint, torch.float32, "cuda"), f"{len(truth)} rows"
        parts = [plain(*part, 128).cpu().numpy() for part in packed.calibration_batches(tokens, "cuda")]
        right = np.concatenate(parts).argmax(1)
        self.run.add(f"{checkpoint.name}, fp32", rows, accuracy=float((right == truth).mean()))
        calibration = tokenizer.encode(text.read(self.arguments.calibration).texts[:256])
        amax = plain.calibrate(packed.calibration_batches(calibration, "cuda"))
        grouped = list(batches([tokens], TokenBudget((1024, 2048, 4096, 8192, 16384), 128, max_rows=2048)))
        for precision in self.model.encoders:
            artifact = Artifact(checkpoint, precision, True, {"amax": amax})
            with packed.open(artifact, Options("cuda", in_flight=2, pinned=True)) as session:
                kept = Answers(len(truth))
                for batch in grouped:
                    kept.put(batch, session.launch(session.stage(batch)).result())
                seconds = min(replay(session, grouped, 2) for _ in range(3))
                found = kept.stacked().argmax(1)
                self.run.add(
                    f"{checkpoint.name}, session {precision}",
                    rows,
                    accuracy=float((found == truth).mean()),
                    agreement=float((found == right).mean()),
                    seq_s=len(truth) / seconds,
                    padding=1 - sum(b.real_tokens for b in grouped) / sum(b.computed_tokens for b in grouped),
                    version=session.version,
                )


def transformers_logits(module: Any) -> torch.Tensor:
    """Each of CORRECT's rows alone."""
    tokens, rows = batch_of(CORRECT).tokens, []
    for n in range(len(tokens)):
        ids = torch.from_numpy(tokens.row(n).astype(np.int64))[None].cuda()
        rows.append(module(ids, torch.ones_like(ids))[0].float())
    return torch.stack(rows)


def correctness(encoder: Encoder, operations: Any, reference: torch.Tensor) -> dict[str, Any]:
    batch = batch_of(CORRECT, 1024)
    made = captured(encoder, operations, batch)
    made.graph.replay()
    before = made.logits[: batch.rows].clone()
    ids = batch.tokens.ids.copy()
    ids[CORRECT[0] : CORRECT[0] + CORRECT[1]] = 5000
    load_batch(made, Batch(batch.positions, Tokens(ids, batch.tokens.offsets), batch.layout))
    made.graph.replay()
    same = (before == made.logits[: batch.rows]).all(dim=1).tolist()
    relative = float((before - reference).abs().max() / reference.std())
    return {"relative": relative, "isolated": same == [n != 1 for n in range(len(same))]}


def all_of(work: list[Callable[[], Any]]) -> dict[str, float]:
    return {"ms": replay_ms(graph_of(lambda: [run() for run in work]))}


def integers(rows: int, columns: int) -> torch.Tensor:
    return torch.randint(-99, 99, (rows, columns), device="cuda").to(torch.int8)


def scaled_by_row(site: Linear, x: torch.Tensor) -> Callable[[], Any]:
    rows, columns = torch.ones(len(x), 1, device="cuda"), torch.ones(1, len(site.weight), device="cuda")
    return partial(torch._scaled_mm, x, site.weight.t(), rows, columns, out_dtype=torch.bfloat16, use_fast_accum=True)


def padded_ms(module: Any, rows: int) -> dict[str, float]:
    ids = torch.randint(1000, 30522, (rows, 128), device="cuda")
    mask = torch.ones_like(ids)
    ms = replay_ms(graph_of(lambda: module(input_ids=ids, attention_mask=mask).logits))
    return {"ms": ms, "seq_s": rows / ms * 1e3}


def compiled_ms(encoder: Encoder, mode: str) -> dict[str, float]:
    """Our encoder in plain torch with varlen attention, compiled."""
    encoder.operations = PlainOperations(packed_encoder.varlen)
    call = type(encoder).__call__.__wrapped__  # type: ignore[attr-defined]  # inference mode is on already
    forward: Any = torch.compile(lambda *arguments: call(encoder, *arguments), mode=mode, dynamic=False)
    forward.tables, forward.operations = encoder.tables, encoder.operations  # what Captured asks an encoder for
    start = time.perf_counter()
    made = on_a_stream(Captured, forward, 4096, 128)
    took = time.perf_counter() - start
    load_batch(made, batch_of(SHAPES["32 x 128"]))
    ms = replay_ms(made.graph)
    torch._dynamo.reset()
    return {"ms": ms, "seq_s": 32 / ms * 1e3, "compile_s": took}


def ort_ms(file: Path, lengths: list[int]) -> dict[str, float]:
    from bertopt.backends.onnxruntime_cuda import CudaOnnxSession

    mask = (torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]).long().cuda()
    ids = torch.randint(1000, 30522, mask.shape, device="cuda") * mask
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    torch.cuda.synchronize()
    with CudaOnnxSession(Artifact(file, "fp16"), Options("cuda", pinned=True)) as session, torch.cuda.stream(session.stream):
        ms = replay_ms(Replayed(partial(session.run, inputs)))
    return {"ms": ms, "seq_s": len(lengths) / ms * 1e3}


class Replayed:
    """What `replay_ms` wants of a graph, around a call that is no graph."""

    def __init__(self, replay: Callable[[], Any]) -> None:
        self.replay = replay


SECTIONS = ("right", "floor", "packed", "growth", "eager", "compile", "ort", "trained")


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Every system on the three shapes, in milliseconds."""
    yield f"{'device only, ms':52}" + "".join(f"{shape:>14}" for shape in COMPARED)
    found = {(r["name"], r["shape"]): r["ms"] for r in rows if r["ms"] is not None}
    for name in dict.fromkeys(name for name, shape in found if shape in COMPARED):
        yield f"{name:52}" + "".join(f"{found[name, s]:14.3f}" if (name, s) in found else " " * 14 for s in COMPARED)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--sections", default=",".join(SECTIONS), help="of " + ", ".join(SECTIONS))
    parser.add_argument("--tensorrt", type=Path)
    parser.add_argument("--checkpoint")
    parser.add_argument("--rows")
    parser.add_argument("--calibration")
    arguments = parser.parse_args()
    run = Run(arguments.out / "peers_gpu.json")
    run.sections(Peers(run, arguments), arguments.sections.split(","))
    run.section = "tensorrt"
    for row in json.loads(arguments.tensorrt.read_text()) if arguments.tensorrt else []:
        run.add(row["name"], row["shape"], row["ms"])
    run.save()
    print("\n" + "\n".join(table(run.rows)))


if __name__ == "__main__":
    main()
