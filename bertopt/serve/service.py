"""The server without HTTP: requests in from one thread, tokenized by others, run by an engine each, told when they are done.

    submit -> raw -> [tokenizing threads] -> queue -> [a thread an engine] -> finish

One lock guards what waits, and each kind of thread is woken by a condition of its own. A batch that fails is run again text by
text, so that the one that fails it fails alone; an engine that dies is started again while the requests wait.
"""

from __future__ import annotations

import collections
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertopt.heads import interpret
from bertopt.serve.dispatch import Dispatcher
from bertopt.serve.engine import Engine
from bertopt.serve.metrics import Metrics
from bertopt.serve.scheduler import Queue
from bertopt.serve.tickets import Item, Refusal, Ticket
from bertopt.tokenization import FastTokenizer

Clock = Callable[[], float]
TOGETHER = 128  # texts tokenized in one call
LARGE = 20_000  # characters: such a text is tokenized apart, where it holds up none but its like

DRAINING = Refusal(503, "draining", "the server is shutting down", retry_after_s=1)
LATE = Refusal(504, "deadline", "the deadline passed before the answer was there")
NO_ENGINE = Refusal(503, "no_engine", "the back end failed and is being started again", retry_after_s=2)


@dataclass(frozen=True)
class Head:
    """What the model's logits mean."""

    task: str
    labels: list[str] | None
    max_length: int


class Service:
    """See above. `finish` gets the tickets that were answered or refused, a list at a time, from any thread."""

    def __init__(
        self,
        tokenizer: FastTokenizer,
        head: Head,
        engines: Sequence[Engine],
        finish: Callable[[list[Ticket]], None],
        *,
        make_queue: Callable[[Any], tuple[Queue[Item], int]],
        clock: Clock = time.perf_counter,
    ) -> None:
        self.tokenizer, self.head, self.finish, self.clock = tokenizer, head, finish, clock
        self.lock = threading.RLock()
        self.arrived = {large: threading.Condition(self.lock) for large in (False, True)}
        self.queued = threading.Condition(self.lock)
        self.raw: dict[bool, collections.deque[Item]] = {False: collections.deque(), True: collections.deque()}
        self.tokenizing = 0  # items that are out of `raw` and not in `queue` yet
        self.running = 0  # items that an engine has
        self.draining = self.closed = False
        self.make_queue = make_queue
        self.queue: Queue[Item] | None = None  # made when the first engine knows what batches cost
        self.max_queue = 0
        self.row_s = 0.0  # seconds a text lately took of an engine
        self.dispatchers = [Dispatcher(self, engine) for engine in engines]
        self.metrics = Metrics(lambda: self.waiting, lambda: self.ready)
        self._threads = [threading.Thread(target=self._tokenize, args=(large,), daemon=True) for large in (False, True)]

    @property
    def waiting(self) -> int:
        """Texts that no engine has yet."""
        return sum(map(len, self.raw.values())) + self.tokenizing + (len(self.queue) if self.queue else 0)

    @property
    def ready(self) -> int:
        return sum(dispatcher.ready for dispatcher in self.dispatchers)

    def start(self) -> None:
        """Start all engines and wait for them. Raises what the first of them raises, after closing the others."""
        for thread in self._threads:
            thread.start()
        for dispatcher in self.dispatchers:
            dispatcher.start()
        for dispatcher in self.dispatchers:
            dispatcher.started.wait()
            if dispatcher.error is not None:
                self.close()
                raise dispatcher.error

    def submit(self, ticket: Ticket, texts: Sequence[str], pairs: Sequence[str | None] | None) -> Refusal | None:
        """Take a request on, or say why not. Never waits."""
        with self.lock:
            if self.draining:
                return DRAINING
            if self.queue is None or all(dispatcher.failed for dispatcher in self.dispatchers):
                return NO_ENGINE
            if len(texts) > self.max_queue:
                return Refusal(
                    413,
                    "too_many_texts",
                    f"{len(texts)} texts are more than the {self.max_queue} that may wait at once: send fewer",
                )
            if (full := self.full(len(texts))) is not None:
                return full
            for position, text in enumerate(texts):
                pair = None if pairs is None else pairs[position]
                large = len(text) + len(pair or "") > LARGE
                self.raw[large].append(Item(ticket, position, text, pair))
                self.arrived[large].notify()
        return None

    def full(self, texts: int = 1) -> Refusal | None:
        """Why so many texts more cannot wait. Asked before a body is read too: refusing must be cheaper than answering."""
        waiting = self.waiting
        if self.queue is None or waiting + texts <= self.max_queue:
            return None
        self.metrics.dropped["queue full"].inc(texts)
        seconds = max(1, math.ceil(waiting * self.row_s / len(self.dispatchers)))
        return Refusal(429, "queue_full", f"{waiting} texts wait, and {self.max_queue} may: try again", retry_after_s=seconds)

    def forget(self, ticket: Ticket) -> None:
        """Nobody waits for this request any more: what of it is not computed yet will not be."""
        with self.lock:
            if not ticket.gone:
                ticket.gone = True
                self.metrics.dropped["client gone"].inc(ticket.left)

    def expire(self, ticket: Ticket) -> None:
        """Its deadline has passed."""
        self.end([ticket], LATE)

    def end(self, tickets: Sequence[Ticket], refusal: Refusal) -> None:
        """Refuse these requests, all of their texts."""
        with self.lock:
            ended = [ticket for ticket in dict.fromkeys(tickets) if not ticket.gone]
            for ticket in ended:
                ticket.refusal, ticket.gone = refusal, True
                if refusal is LATE:
                    self.metrics.dropped["deadline"].inc(ticket.left)
        if ended:
            self.finish(ended)

    def answer(self, items: Sequence[Item], logits: Any) -> None:
        """Give each text its own row's answer; requests that are whole are finished. Raises GraphError for NaN."""
        lengths = np.fromiter((item.length for item in items), np.int64, len(items))
        cut = np.fromiter((item.cut for item in items), np.bool_, len(items))
        answers = interpret(self.head.task, self.head.labels, logits, lengths, cut)
        now, whole = self.clock(), []
        with self.lock:
            for item, found in zip(items, answers, strict=True):
                ticket = item.ticket
                ticket.answers[item.position] = found
                ticket.left -= 1
                if ticket.left == 0 and not ticket.gone:
                    ticket.gone = True
                    whole.append(ticket)
        if whole:
            self.finish(whole)
        phases = self.metrics.phases
        self.metrics.texts.inc(len(items))
        for item in items:
            phases["tokenize"].observe(item.tokenized_s - item.arrived_s)
            phases["queue"].observe(item.launched_s - item.tokenized_s)
            phases["compute"].observe(now - item.launched_s)
            phases["total"].observe(now - item.arrived_s)

    def drain(self, seconds: float) -> bool:
        """Take nothing on any more and wait until all that was taken on is done; whether that was in time."""
        with self.lock:
            self.draining = True
            self.queued.notify_all()
            end = self.clock() + seconds
            while (self.waiting or self.running) and self.clock() < end:
                self.queued.wait(0.02)
            return not (self.waiting or self.running)

    def close(self) -> None:
        """End all threads and engines; whoever still waits is told."""
        with self.lock:
            self.draining = self.closed = True
            left = [*self.raw[False], *self.raw[True], *(self.queue.drain() if self.queue else [])]
            for lane in self.raw.values():
                lane.clear()
            for condition in (*self.arrived.values(), self.queued):
                condition.notify_all()
        self.end([item.ticket for item in left], DRAINING)
        for dispatcher in self.dispatchers:
            dispatcher.close()

    def _tokenize(self, large: bool) -> None:
        lane = self.raw[large]
        while True:
            with self.lock:
                self.arrived[large].wait_for(lambda: bool(lane) or self.closed)
                if self.closed:
                    return
                items = [lane.popleft() for _ in range(min(len(lane), 1 if large else TOGETHER))]
                self.tokenizing += len(items)
            wanted = [item for item in items if not item.gone]
            refused = self._encode(wanted) if wanted else []
            with self.lock:
                self.tokenizing -= len(items)
                assert self.queue is not None
                for item in wanted:
                    if item.length and not item.gone:
                        self.queue.add(item)
                self.queued.notify_all()
            for ticket, refusal in refused:
                self.end([ticket], refusal)

    def _encode(self, items: list[Item]) -> list[tuple[Ticket, Refusal]]:
        """Tokenize these together, and one by one where that fails. What is left without a length is refused."""
        paired = any(item.pair is not None for item in items)
        try:
            tokens = self.tokenizer.encode([item.text for item in items], [item.pair for item in items] if paired else None)
        except Exception as error:  # whatever the library raises; its message may hold the text, so only its kind is told
            if len(items) > 1:
                return [refused for item in items for refused in self._encode([item])]
            message = f"the tokenizer cannot read text {items[0].position + 1} ({type(error).__name__})"
            return [(items[0].ticket, Refusal(422, "not_tokenized", message, (items[0].position,)))]
        now, refused = self.clock(), []
        for row, (item, length) in enumerate(zip(items, tokens.lengths.tolist(), strict=True)):
            item.tokens, item.row, item.tokenized_s = tokens, row, now
            if item.cut and not item.ticket.truncate:
                message = f"text {item.position + 1} has more than {self.head.max_length} tokens, and truncate is false"
                refused.append((item.ticket, Refusal(422, "text_too_long", message, (item.position,))))
            else:
                item.length = length
        return refused
