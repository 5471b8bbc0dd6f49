"""A tiny BERT that really was trained, in about two seconds: to tell texts with more good words from those with more bad ones.

Its answers depend on the text, so that what quantization breaks shows; a few labels are wrong, so that it errs on some rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests import models

LABELS = ["bad", "good"]
GOOD, BAD = ["good", "great"], ["bad", "poor"]
NEUTRAL = [word for word in models.WORDS if len(word) > 1 and word not in (*GOOD, *BAD)]
WRONG = 0.04  # share of labels that say the opposite
LENGTH = 32


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Distinct texts of 6 to 24 words with an odd number of telling ones, most of which decide the label."""
    generator = np.random.default_rng(seed)
    made: dict[str, str] = {}
    while len(made) < count:
        telling = generator.choice([*GOOD, *BAD], 1 + 2 * generator.integers(0, 3)).tolist()
        words = [*telling, *generator.choice(NEUTRAL, generator.integers(5, 20))]
        label = sum(word in GOOD for word in telling) > len(telling) / 2
        made[" ".join(generator.permutation(words))] = LABELS[int(label != (generator.random() < WRONG))]
    return [{"text": text, "label": label} for text, label in made.items()]


def write(path: Path, found: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, found)) + "\n", encoding="utf-8")
    return path


def classifier(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """The trained checkpoint in `folder`; another `seed` gives other weights of the same task."""
    import torch
    from transformers import AutoModelForSequenceClassification

    from bertopt.tokenization import load_tokenizer

    names = {"id2label": dict(enumerate(LABELS)), "label2id": {name: i for i, name in enumerate(LABELS)}}
    models.save("bert", folder, seed=seed, **(names | {"initializer_range": 0.05} | changes))
    found = rows(1500, seed=100 + seed)
    tokens = load_tokenizer(folder, max_length=LENGTH).encode([row["text"] for row in found])
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(tokens.row(i)).long() for i in range(len(found))], batch_first=True)
    truth = torch.tensor([LABELS.index(row["label"]) for row in found])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_pretrained(folder).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for _ in range(6):
            for batch in torch.randperm(len(ids)).split(32):
                loss = model(input_ids=ids[batch], attention_mask=(ids[batch] != 0).long(), labels=truth[batch]).loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        model.eval().save_pretrained(folder)
    return folder
