"""Trains the demo's head and writes it, with its accuracy, beside this file: ``python -m bertopt.demo.train_head``.

The encoder stays frozen, so each paragraph's first hidden state is computed once; on these the pooler (384 x 384, tanh) and the
classifier (384 x 5) train in seconds. Settings are chosen on a quarter of the training articles. The held-out articles are read
once, at the end, to write the accuracy down. Takes about ten minutes on two cores, nearly all of it for the hidden states.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.demo.checkpoint import HEAD
from bertopt.demo.corpus import HELD_OUT, LABELS, SEED, Paragraph, fraction_of, paragraphs
from bertopt.demo.sources import CORPUS_SHA256, ENCODER_SHA256, encoder_files
from bertopt.files import write_bytes, write_text

COMMAND = "python -m bertopt.demo.train_head"
TRAINING_LENGTH = 128
EPOCHS = 30
BATCH = 64
LABEL_SMOOTHING = 0.1
VALIDATION = 0.25
SEEDS_PER_SETTING = 2
MIN_DEVIATION = 0.1  # three of the encoder's channels never move; the others deviate by 0.1 or more

Floats = NDArray[np.float32]
Head = dict[str, NDArray[np.float16]]


@dataclass(frozen=True)
class Settings:
    learning_rate: float
    weight_decay: float
    dropout: float


GRID = [Settings(*values) for values in itertools.product((1e-3, 3e-3), (0.05, 0.3), (0.2, 0.5))]


def main() -> None:
    train, held_out = paragraphs("train"), paragraphs("eval")
    features, labels = first_states(train, TRAINING_LENGTH), label_numbers(train)
    validation = np.array([fraction_of(f"validation {paragraph.article}") < VALIDATION for paragraph in train])
    trials = []
    for settings in GRID:
        heads = [fit(features[~validation], labels[~validation], settings, SEED + run) for run in range(SEEDS_PER_SETTING)]
        scores = [accuracy(head, features[validation], labels[validation]) for head in heads]
        trials.append({**asdict(settings), "validation_accuracy": round(float(np.mean(scores)), 4)})
        print(trials[-1], flush=True)
    best = max(zip(trials, GRID, strict=True), key=lambda trial: trial[0]["validation_accuracy"])[1]

    head = fit(features, labels, best, SEED)
    record = {
        "command": COMMAND,
        "seed": SEED,
        "encoder_sha256": ENCODER_SHA256,
        "corpus_sha256": CORPUS_SHA256,
        "head_sha256": save(head, HEAD),
        "versions": _versions(),
        "labels": LABELS,
        "trained_on": _counts(train) | {"max_length": TRAINING_LENGTH, "accuracy": round(accuracy(head, features, labels), 4)},
        "settings": asdict(best) | {"epochs": EPOCHS, "batch": BATCH, "label_smoothing": LABEL_SMOOTHING},
        "chosen_among": {"validation_paragraphs": int(validation.sum()), "trials": trials},
        "held_out_fraction": HELD_OUT,
        "held_out": [report(head, held_out, max_length) for max_length in (TRAINING_LENGTH, 512)],
    }
    write_text(HEAD.with_suffix(".json"), json.dumps(record, indent=2) + "\n")
    print(json.dumps(record["held_out"], indent=2))


def first_states(rows: list[Paragraph], max_length: int, batch: int = 32) -> Floats:
    """The encoder's hidden state at ``[CLS]`` of every row, cut at `max_length` wordpieces: [rows, hidden], FP32."""
    import torch
    from tokenizers import Tokenizer
    from transformers import BertModel

    files = encoder_files()
    model: Any = BertModel.from_pretrained(files["config.json"].parent, local_files_only=True)
    model.eval()
    tokenizer = Tokenizer.from_file(str(files["tokenizer.json"]))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    encodings = tokenizer.encode_batch([row.text for row in rows])
    order = sorted(range(len(rows)), key=lambda row: len(encodings[row].ids))
    states = np.empty((len(rows), model.config.hidden_size), np.float32)
    with torch.inference_mode():
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(encodings[row].ids) for row in chosen], batch_first=True)
            hidden = model(input_ids=ids, attention_mask=(ids != model.config.pad_token_id).long()).last_hidden_state
            states[chosen] = hidden[:, 0].numpy()
            print(f"\r{start + len(chosen):,} of {len(rows):,} paragraphs", end="", flush=True)
    print()
    return states


def label_numbers(rows: list[Paragraph]) -> NDArray[np.int64]:
    return np.array([LABELS.index(row.label) for row in rows])


def fit(states: Floats, labels: NDArray[np.int64], settings: Settings, seed: int) -> Head:
    """Pooler and classifier by AdamW under a one-cycle schedule, in FP16 under their names in the checkpoint.

    They train on standardized states; the standardization is then folded into the pooler.
    """
    import torch
    from torch.nn import functional

    torch.manual_seed(seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # faster on matrices this small, and the sums keep their order
    mean = torch.tensor(states.mean(0))
    deviation = torch.tensor(states.std(0)).clamp(min=MIN_DEVIATION)
    inputs, targets = (torch.tensor(states) - mean) / deviation, torch.tensor(labels)
    pooler, classifier = torch.nn.Linear(states.shape[1], states.shape[1]), torch.nn.Linear(states.shape[1], len(LABELS))
    parameters = [*pooler.parameters(), *classifier.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    steps = EPOCHS * -(-len(inputs) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.learning_rate, total_steps=steps, pct_start=0.1)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(inputs)).split(BATCH):
            pooled = functional.dropout(torch.tanh(pooler(inputs[rows])), settings.dropout)
            loss = functional.cross_entropy(classifier(pooled), targets[rows], label_smoothing=LABEL_SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    torch.set_num_threads(threads)
    with torch.no_grad():
        weight = pooler.weight / deviation
        head = {
            "bert.pooler.dense.weight": weight,
            "bert.pooler.dense.bias": pooler.bias - weight @ mean,
            "classifier.weight": classifier.weight,
            "classifier.bias": classifier.bias,
        }
        return {name: value.half().numpy() for name, value in head.items()}


def predictions(head: Head, states: Floats) -> NDArray[np.int64]:
    weights = {name: value.astype(np.float32) for name, value in head.items()}
    pooled = np.tanh(states @ weights["bert.pooler.dense.weight"].T + weights["bert.pooler.dense.bias"])
    return (pooled @ weights["classifier.weight"].T + weights["classifier.bias"]).argmax(1)


def accuracy(head: Head, states: Floats, labels: NDArray[np.int64]) -> float:
    return float((predictions(head, states) == labels).mean())


def report(head: Head, rows: list[Paragraph], max_length: int) -> dict[str, Any]:
    """Accuracy on `rows`, and for each topic the fraction of its paragraphs that were recognized."""
    labels = label_numbers(rows)
    right = predictions(head, first_states(rows, max_length)) == labels
    return {
        **_counts(rows),
        "max_length": max_length,
        "correct": int(right.sum()),
        "accuracy": round(float(right.mean()), 4),
        "recall": {label: round(float(right[labels == number].mean()), 4) for number, label in enumerate(LABELS)},
    }


def save(head: Head, path: Path) -> str:
    """Writes the head and returns its sha256."""
    from safetensors.numpy import save as serialize

    content = serialize(head)
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()


def _counts(rows: list[Paragraph]) -> dict[str, int]:
    return {"articles": len({row.article for row in rows}), "paragraphs": len(rows)}


def _versions() -> dict[str, str]:
    import torch
    import transformers

    return {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}


if __name__ == "__main__":
    main()
