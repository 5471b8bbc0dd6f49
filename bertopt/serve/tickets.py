"""A request on its way through the server: one ticket, and an item for each of its texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertopt.heads import Answer
from bertopt.tokens import Tokens


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered: an HTTP status, a word for programs and a sentence for people."""

    status: int
    reason: str
    message: str
    positions: tuple[int, ...] = ()  # of the texts, from 0
    retry_after_s: int | None = None

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"status": self.status, "reason": self.reason, "message": self.message}
        return {"error": found | ({"positions": list(self.positions)} if self.positions else {})}


@dataclass(eq=False)
class Ticket:
    """One request. `finish` is called once, from whatever thread ends it, and not at all where the client went away."""

    texts: int
    arrived_s: float
    deadline_s: float = math.inf
    truncate: bool = True
    owner: Any = None  # who waits; the service never looks at it
    answers: list[Answer | None] = field(default_factory=list)
    refusal: Refusal | None = None
    gone: bool = False  # answered, refused, or nobody waits any more
    left: int = 0

    def __post_init__(self) -> None:
        self.answers = [None] * self.texts
        self.left = self.texts


@dataclass(eq=False)
class Item:
    """One text of a ticket. `row` of `tokens` is it, once it is tokenized."""

    ticket: Ticket
    position: int
    text: str
    pair: str | None
    alone: bool = False
    length: int = 0
    tokens: Tokens | None = None
    row: int = 0
    tokenized_s: float = 0.0
    launched_s: float = 0.0

    @property
    def arrived_s(self) -> float:
        return self.ticket.arrived_s

    @property
    def deadline_s(self) -> float:
        return self.ticket.deadline_s

    @property
    def gone(self) -> bool:
        return self.ticket.gone

    @property
    def cut(self) -> bool:
        return self.tokens is not None and self.tokens.cut is not None and bool(self.tokens.cut[self.row])


def joined(items: Sequence[Item]) -> Tokens:
    """The tokens of these items as one batch's rows, in their order."""
    ids, types, some = [], [], False
    for item in items:
        assert item.tokens is not None
        span = slice(item.tokens.offsets[item.row], item.tokens.offsets[item.row + 1])
        ids.append(item.tokens.ids[span])
        own = item.tokens.type_ids
        some |= own is not None
        types.append(np.zeros(item.length, np.uint8) if own is None else own[span])
    offsets = np.append(0, np.cumsum([len(row) for row in ids])).astype(np.int64)
    return Tokens(np.concatenate(ids), offsets, np.concatenate(types) if some else None)
