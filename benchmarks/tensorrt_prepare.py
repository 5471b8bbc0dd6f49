"""Graphs, tokens and FP32 answers for `tensorrt_h200.py`, made where torch is; that script then runs where TensorRT is.

    python benchmarks/tensorrt_prepare.py --model minilm-agnews --data ag_news/eval.jsonl --out /tmp/bench

Three models: `trained`, a trained classifier with labelled texts; `bert-base`, its configuration with random weights
(speed and rounding only) and the same vocabulary; `overflow`, a tiny BERT of which one product goes far beyond FP16.
Each gets `graph.onnx` (canonical, FP32), `half.onnx` (typed FP16, with what stays in FP32) and `answers.npz`.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from bertopt.build import text_batches
from bertopt.graph import export as exporter
from bertopt.graph import storage
from bertopt.graph.emit import emit
from bertopt.labels import match
from bertopt.model import Checkpoint, open_checkpoint
from bertopt.text import read
from bertopt.tokenization import load_tokenizer
from bertopt.tokens import Tokens

LENGTH = 128
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="folder of a trained BERT classifier")
    parser.add_argument("--data", required=True, type=Path, help="labelled texts")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--rows", type=int, default=None, help="of the texts; all by default")
    options = parser.parse_args()
    requests = read(options.data, limit=options.rows)
    trained = open_checkpoint(str(options.model))
    tokens = load_tokenizer(trained.folder, max_length=LENGTH, model_type="bert").encode(requests.texts)
    truth, _ = match(requests.labels or [], trained.labels or [], requests.name)
    base = open_checkpoint(str(configuration(options.model, options.out / "configs" / "bert-base")), random_weights=True)
    tiny = configuration(
        options.model,
        options.out / "configs" / "overflow",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.2,
    )
    some = tokens.take(np.arange(min(1024, len(tokens))))
    prepare(trained, tokens, options.out / "trained", truth=truth)
    prepare(base, some, options.out / "bert-base")
    prepare(open_checkpoint(str(tiny), random_weights=True), of_lengths(16, 64, 160), options.out / "overflow", change=overflow)


def of_lengths(*lengths: int, each: int = 100) -> Tokens:
    """Random tokens in rows of these lengths, one after the other."""
    offsets = np.append(0, np.cumsum(np.tile(lengths, each)))
    return Tokens(np.random.default_rng(0).integers(1000, 20_000, offsets[-1]).astype(np.int32), offsets)


def configuration(like: Path, folder: Path, **changes: Any) -> Path:
    """A checkpoint folder without weights: BERT-base's configuration with `changes`, and the tokenizer of `like`."""
    from transformers import BertConfig

    folder.mkdir(parents=True, exist_ok=True)
    made = BertConfig(vocab_size=30522, num_labels=2, **changes)
    made.architectures = ["BertForSequenceClassification"]
    made.save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if (like / name).exists():
            shutil.copy(like / name, folder / name)
    return folder


def overflow(model: onnx.ModelProto) -> None:
    """Hidden values of 400 at the bottom, and a product of the second layer at 30 times what FP16 holds."""
    product = next(n for n in model.graph.node if n.op_type == "MatMul" and "layer.1/intermediate" in n.name)
    for tensor in model.graph.initializer:
        factor = 400.0 if "word_embeddings" in tensor.name else 2e5 if tensor.name == product.input[1] else None
        if factor:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(factor), tensor.name))


def prepare(checkpoint: Checkpoint, tokens: Tokens, folder: Path, *, truth: Any = None, change: Any = None) -> None:
    """Write a model's two graphs, its tokens, and its answers in FP32."""
    start = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    module = checkpoint.torch_module(attention="eager")
    exporter.export(module, checkpoint, folder / "graph.onnx")
    if change is not None:
        model = storage.load(folder / "graph.onnx")
        change(model)
        storage.save(model, folder / "graph.onnx")
    exported = time.perf_counter() - start
    from bertopt.backends.host import padded_arrays

    feeds = [padded_arrays(b, checkpoint.uses_type_ids, checkpoint.pad_id) for b in text_batches(tokens)]
    emitted = emit(folder / "graph.onnx", folder / "half.onnx", "tensorrt-8", feeds=feeds)
    logits = graph_answers(folder / "graph.onnx", tokens) if change else torch_answers(module, tokens)
    arrays: dict[str, Any] = {"ids": tokens.ids, "offsets": tokens.offsets, "logits": logits}
    if truth is not None:
        arrays["truth"] = truth
    np.savez(folder / "answers.npz", **arrays)
    print(f"{folder.name}: exported in {exported:.0f} s, all in {time.perf_counter() - start:.0f} s", flush=True)
    print("\n".join(f"  {line}" for line in (emitted.report.lines() if emitted.report else [])), flush=True)


def torch_answers(module: Any, tokens: Tokens) -> Any:
    """Eager FP32 logits in the rows' own order, on the card where there is one; TF32 is off by default."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = module.to(device)

    def run(feeds: dict[str, Any]) -> Any:
        with torch.inference_mode():
            return module(**{n: torch.from_numpy(a).to(device) for n, a in feeds.items()}).float().cpu().numpy()

    return in_order(run, tokens)


def graph_answers(path: Path, tokens: Tokens) -> Any:
    """The same from the changed graph, on ONNX Runtime."""
    return in_order(exporter.session(path), tokens)


def in_order(run: Any, tokens: Tokens, rows: int = 256) -> Any:
    order, parts = np.argsort(tokens.lengths, kind="stable"), []
    for start in range(0, len(order), rows):
        part = tokens.take(order[start : start + rows])
        shape = (len(part), int(part.lengths.max()))
        feeds = {name: np.zeros(shape, np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
        real = np.arange(shape[1]) < part.lengths[:, None]
        feeds["input_ids"][real] = part.ids
        feeds["attention_mask"][real] = 1
        parts.append(run(feeds))
    logits = np.empty_like(np.concatenate(parts))
    logits[order] = np.concatenate(parts)
    return logits


if __name__ == "__main__":
    main()
