"""Plant one fault at a time in a healthy pipeline on a GPU, diagnose it, and print what the first verdict was.

    python benchmarks/planted_faults.py --out results/planted.json

The healthy pipeline tokenizes in workers, batches by length and copies from page-locked memory. Its model is a BERT of six
layers in random weights whose configuration and vocabulary are written here, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from bertopt import ladder
from bertopt.batching import choose_edges
from bertopt.diagnose import findings
from bertopt.diagnose.card import gain_in_words
from bertopt.diagnose.eliminate import observe
from bertopt.files import write_text
from bertopt.ladder import Rung
from bertopt.measure import loop
from bertopt.model import open_checkpoint
from bertopt.progress import Lines
from bertopt.records_diagnosis import Finding, Observation
from bertopt.run import Opened, Runner, Settings
from bertopt.text import Requests
from bertopt.tokenization import load_tokenizer
from bertopt.workspace import Workspace

LENGTH = 128
WORDS = 2000  # of the made vocabulary, a token each
SIZES = {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 3072}
HEALTHY = Rung("healthy", "workers ahead, length buckets, pinned buffers", "bucketed")


class SlowTokenizer:
    """Two milliseconds a row, in every worker."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def encode(self, texts: list[str], pairs: list[str | None] | None = None) -> Any:
        time.sleep(2e-3 * len(texts))
        return self.real.encode(texts, pairs)


class SleepingAnswers(loop.Answers):
    """A postprocess that takes longer than the device does."""

    def put(self, batch: Any, logits: Any) -> None:
        super().put(batch, logits)
        time.sleep(0.04)


class Stalled:
    """A session whose launch reads one number back, as a stray `.item()` does."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def launch(self, staged: Any) -> Any:
        import torch

        pending = self._session.launch(staged)
        with torch.cuda.stream(self._session.stream):
            float(pending.logits.sum().item())
        return pending


@dataclass(frozen=True)
class Fault:
    """What is planted, and the verdict that has to come first."""

    name: str
    verdict: str | None  # None: none of the others
    requests: int = 16384
    batch_size: int = 128
    on: tuple[str, ...] = ("cuda", "cpu")
    replaces: dict[str, str] = field(default_factory=dict)
    open: Callable[[Opened], None] = lambda opened: None
    around: Callable[[], Any] = contextlib.nullcontext


def _stall(opened: Opened) -> None:
    opened.session = Stalled(opened.session)  # type: ignore[assignment]


@contextlib.contextmanager
def _pageable() -> Iterator[None]:
    """Every session is opened with pageable buffers."""
    from bertopt.backends import eager

    real = eager.open
    with mock.patch.object(eager, "open", lambda artifact, options: real(artifact, dataclasses.replace(options, pinned=False))):
        yield


FAULTS = (
    Fault("nothing", None),
    Fault("slow tokenizer", "TOKENIZE-BOUND", replaces={"tokenizer": "reference"}, requests=8192),
    Fault("unpinned copies", "PAGEABLE-COPY", around=_pageable, on=("cuda",)),
    Fault("a stray .item() per batch", "SYNC-STALLED", open=_stall, on=("cuda",)),
    Fault("everything padded to 128", "PADDING-WASTE", replaces={"batching": "fixed"}),
    Fault("batch 1", "UNDERFILLED", batch_size=1, requests=512),
    Fault(
        "sleeping postprocess",
        "POSTPROCESS-BOUND",
        requests=4096,
        around=lambda: mock.patch.object(loop, "Answers", SleepingAnswers),
    ),
)


def make_model(folder: Path, device: str) -> Path:
    """A model's folder: configuration, and a WordPiece vocabulary of whole words."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(WORDS))]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": LENGTH}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    sizes = SIZES if device == "cuda" else {**SIZES, "hidden_size": 96, "num_hidden_layers": 2, "intermediate_size": 192}
    BertConfig(vocab_size=len(pieces), architectures=["BertForSequenceClassification"], **sizes).save_pretrained(folder)
    return folder


def texts(count: int) -> Requests:
    """Requests of 6 to 126 words, most of them short."""
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(3.5, 0.6, count).astype(int), 6, LENGTH - 2)
    return Requests([" ".join(f"word{i}" for i in generator.integers(0, WORDS, n)) for n in lengths], name="made")


def examine(fault: Fault, folder: Path, device: str, workers: int, scale: float, repeats: int) -> Observation:
    """The pipeline with this fault, observed."""
    checkpoint = open_checkpoint(str(folder), random_weights=True)
    requests = texts(max(12 * fault.batch_size, int(fault.requests * scale)))
    fast = load_tokenizer(folder, max_length=LENGTH, model_type="bert")
    tokens = fast.encode(requests.texts)
    settings = Settings(fault.batch_size, LENGTH, repeats, 4096, workers, device)
    edges = choose_edges(tokens.lengths[:4096], LENGTH, batch_size=fault.batch_size, window=settings.window)
    rung = dataclasses.replace(HEALTHY, replaces=fault.replaces)
    tokenizers = {"fast": fast, "reference": SlowTokenizer(fast)}
    runner = Runner(settings, Workspace(checkpoint, device=device), requests, tokens, tokenizers, edges, Lines(quiet=True))
    with fault.around():
        try:
            opened = runner.open(rung, (*ladder.RUNGS, rung), lambda of: None)  # type: ignore[arg-type,return-value]
            if not isinstance(opened, Opened):
                raise SystemExit(f"{fault.name}: {opened.reason}")
            fault.open(opened)
            return observe(runner, opened, checkpoint, repeats)
        finally:
            runner.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests")
    parser.add_argument("--only", help="one fault by its name")
    parser.add_argument("--out", type=Path, help="every observation and finding, as JSON")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_model(Path(temporary) / "model", args.device)
        print(f"{'planted':<28}{'first verdict':<20}{'named':<7}{'seq/s':>9}  predicted")
        for fault in FAULTS:
            if args.device not in fault.on or (args.only and args.only != fault.name):
                continue
            began = time.perf_counter()
            seen = examine(fault, folder, args.device, args.workers, args.scale, args.repeats)
            found = findings(seen)
            ok = _right(fault, found)
            promise = gain_in_words(found[0], seen) or ""
            print(f"{fault.name:<28}{found[0].verdict:<20}{'yes' if ok else 'NO':<7}{seen.throughput_seq_s:>9,.0f}  {promise}")
            for finding in found:
                print(f"    {finding.verdict}: {finding.why}")
            rows.append({
                "planted": fault.name,
                "wanted": fault.verdict,
                "right": ok,
                "seconds": time.perf_counter() - began,
                "findings": [dataclasses.asdict(f) for f in found],
                "observation": dataclasses.asdict(seen),
            })  # fmt: skip
            if args.out:  # after each, so that a run that is cut short leaves what it saw
                write_text(args.out, json.dumps(rows, indent=1) + "\n")
    print(f"{sum(r['right'] for r in rows)} of {len(rows)} as planted")


def _right(fault: Fault, found: list[Finding]) -> bool:
    if fault.verdict is not None:
        return found[0].verdict == fault.verdict
    return not {f.verdict for f in found} & {f.verdict for f in FAULTS if f.verdict}


if __name__ == "__main__":
    main()
