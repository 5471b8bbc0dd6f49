"""Engines that are held, fail and die when a test says so, and answers that show a mix-up."""

from __future__ import annotations

import collections
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any

import numpy as np

from bertopt.batching import Batch, Dynamic
from bertopt.serve.engine import Answered, BatchFailed, EngineDied, Ready
from bertopt.serve.grouping import FirstCome
from bertopt.serve.scheduler import Queue
from bertopt.serve.service import Head, Service
from tests.fakes import WordTokenizer

POISON = 13  # letters of a word that no batch survives
WAIT_S = 10.0


class FakeEngine:
    """Answers each row with (sum of its ids, number of them). `hold` stops it; `fate` may raise for a batch."""

    def __init__(self, fate: Callable[[Batch], None] = lambda batch: None, seconds: float = 0.0) -> None:
        self.fate, self.seconds = fate, seconds
        self.free = threading.Event()
        self.free.set()
        self.starts, self.asked = 0, False
        self.batches: list[int] = []
        self._sent: collections.deque[Batch] = collections.deque()

    @property
    def rows(self) -> int:
        return sum(self.batches)

    def start(self) -> Ready:
        self.starts += 1
        self._sent.clear()
        return Ready("fake", "fp32", [(1, 8, 0.001), (4, 8, 0.001), (1, 64, 0.002)])

    def submit(self, batch: Batch) -> None:
        self._sent.append(batch)

    def poll(self, seconds: float) -> bool:
        return self.free.wait(max(0.0, seconds))

    def result(self, timeout_s: float) -> Answered:
        self.asked = True
        self.free.wait(WAIT_S)
        time.sleep(self.seconds)
        batch = self._sent.popleft()
        self.batches.append(batch.rows)
        self.fate(batch)
        sums = np.add.reduceat(batch.tokens.ids, batch.tokens.offsets[:-1]).astype(np.float32)
        return Answered(np.stack([sums, batch.tokens.lengths.astype(np.float32)], axis=1), 1.0)

    def close(self) -> None:
        self.free.set()


def raise_on_poison(batch: Batch) -> None:
    if POISON in batch.tokens.ids:
        raise BatchFailed("RuntimeError")


class DiesOn:
    """The engine dies on these batches, counted from 1; or on poison, at every start anew."""

    def __init__(self, *numbers: int, poison: bool = False) -> None:
        self.numbers, self.poison, self.seen = numbers, poison, 0

    def __call__(self, batch: Batch) -> None:
        self.seen += 1
        if self.seen in self.numbers or (self.poison and POISON in batch.tokens.ids):
            raise EngineDied("gone")


class CutTokenizer(WordTokenizer):
    """Texts of more than 8 words are cut, and say so."""

    def encode(self, texts: list[str], pairs: Any = None) -> Any:
        from dataclasses import replace

        tokens = super().encode([" ".join(text.split()[:8]) for text in texts])
        return replace(tokens, cut=np.array([len(text.split()) > 8 for text in texts]))


@contextlib.contextmanager
def service(engines: list[FakeEngine], *, max_queue: int = 64, rows: int = 4, wait_s: float = 0.002) -> Iterator[Any]:
    """A running service, and `ask(texts, **fields of a ticket)` -> a ticket whose `owner` is set when it is finished."""
    from bertopt.serve.tickets import Ticket

    def finish(tickets: list[Ticket]) -> None:
        for ticket in tickets:
            ticket.owner.set()

    made = Service(
        CutTokenizer(fails_on="unreadable"),  # type: ignore[arg-type]
        Head("regression", None, 8),
        engines,  # type: ignore[arg-type]
        finish,
        make_queue=lambda cost: (Queue(FirstCome(Dynamic(rows), rows), wait_s), max_queue),
    )
    made.start()

    def ask(texts: list[str], seconds: float = 60.0, **fields: Any) -> Ticket:
        now = made.clock()
        ticket = Ticket(len(texts), now, now + seconds, owner=threading.Event(), **fields)
        refusal = made.submit(ticket, texts, None)
        if refusal is not None:
            ticket.refusal = refusal
            ticket.owner.set()
        return ticket

    try:
        yield SimpleNamespace(service=made, ask=ask)
    finally:
        made.close()


def right(text: str) -> tuple[float, float]:
    words = text.split()[:8]
    return float(sum(map(len, words))), float(len(words))


def values(ticket: Any) -> list[Any]:
    assert ticket.owner.wait(WAIT_S), "nobody finished the request"
    assert ticket.refusal is None, ticket.refusal
    return [answer.value for answer in ticket.answers]


def until(condition: Callable[[], bool], seconds: float = WAIT_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.002)


class Client:
    """One connection, kept alive."""

    def __init__(self, port: int) -> None:
        self.connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any, dict[str, str]]:
        raw = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        self.connection.request(method, path, raw)
        response = self.connection.getresponse()
        content = response.read()
        headers = {name.lower(): value for name, value in response.getheaders()}
        json_like = headers.get("content-type", "").startswith("application/json")
        return response.status, json.loads(content) if json_like else content.decode(), headers
