"""Paragraphs of BBC news with their topics, split by article into those that trained the head and those that it never saw."""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bertopt.demo.sources import corpus_files

if TYPE_CHECKING:
    from bertopt.text import Requests

LABELS = ["business", "entertainment", "politics", "sports", "tech"]
HELD_OUT = 0.3
SEED = 2026

Split = Literal["train", "eval"]


@dataclass(frozen=True)
class Paragraph:
    text: str
    label: str
    article: int


def paragraphs(split: Split) -> list[Paragraph]:
    """Every distinct paragraph (headlines too) of the articles of `split`, in the corpus's order.

    The corpus repeats articles, whole or reworked, so articles that share a paragraph are one article here: they stay on one
    side of the split, carry one `article` number, and a paragraph counts once.
    """
    articles = {name: _paragraphs(content) for name, content in corpus_files().items()}
    same = _joined(articles)
    numbers: dict[str, int] = {}
    seen: set[str] = set()
    found = []
    for name, texts in articles.items():
        number = numbers.setdefault(same[name], len(numbers))
        for text in texts:
            if text not in seen:
                seen.add(text)
                if (fraction_of(same[name]) < HELD_OUT) == (split == "eval"):
                    found.append(Paragraph(text, name.split("/")[0], number))
    return found


def texts(split: Split = "eval") -> Requests:
    """Requests: one paragraph each at its natural length, shuffled with a fixed seed; labels are topics, groups are articles.

    ``eval``: paragraphs of articles that the head never saw; ``train``: those that it was trained on, good for calibration.
    Raises DataError where the corpus is missing or differs.
    """
    from bertopt.text import Requests  # here, so that training the head needs no reader of user files

    found = paragraphs(split)
    random.Random(SEED).shuffle(found)
    articles = len({paragraph.article for paragraph in found})
    side = "held-out" if split == "eval" else "training"
    return Requests(
        texts=[paragraph.text for paragraph in found],
        labels=[paragraph.label for paragraph in found],
        groups=[paragraph.article for paragraph in found],
        name="demo" if split == "eval" else "demo-train",
        notes=[f"the embedded texts: {len(found):,} paragraphs of {articles:,} {side} BBC news articles"],
    )


def _paragraphs(content: bytes) -> list[str]:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:  # one article writes its pound sign in Latin-1
        text = content.decode("latin-1")
    return [piece.strip() for piece in re.split(r"\n\s*\n", text) if piece.strip()]


def _joined(articles: dict[str, list[str]]) -> dict[str, str]:
    """The name of the first article that each one shares a paragraph with, through others too (union-find)."""
    parents = {name: name for name in articles}

    def root(name: str) -> str:
        while parents[name] != name:
            parents[name] = parents[parents[name]]
            name = parents[name]
        return name

    owner: dict[str, str] = {}
    for name, texts in articles.items():
        for text in texts:
            first, second = sorted((root(owner.setdefault(text, name)), root(name)))
            parents[second] = first
    return {name: root(name) for name in articles}


def fraction_of(key: str) -> float:
    """A number from 0 up to 1 that depends on `key` alone, evenly spread over keys."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") / 2**32
