"""One engine's thread: takes batches from the queue, keeps the engine busy, and mends what fails."""

from __future__ import annotations

import collections
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bertopt.batching import Batch, Layout, Padded
from bertopt.errors import BertoptError, GraphError
from bertopt.serve.cost import Cost, fit
from bertopt.serve.engine import Answered, BatchFailed, Engine, EngineDied
from bertopt.serve.tickets import Item, Refusal, joined

if TYPE_CHECKING:
    from bertopt.serve.service import Service

# Before a batch should be done the next is sent, so that the engine stages it meanwhile and never waits for this process: late
# enough that what arrives may still join it, early enough for a machine whose cores are all busy. A full batch goes at once
LEAD_S, LEAD_SHARE = 0.003, 0.6
HANDLING_S = 0.002  # of a batch beside its computation: pipe, staging, answers
SLOWEST = 20.0  # times the expected seconds, and STALL_S at least: an engine that takes longer hangs
STALL_S = 20.0
RECENT = 0.1  # weight of the last batch in what is known of the latest ones
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # between attempts to start an engine again


@dataclass
class Sent:
    """A batch that the engine has."""

    items: list[Item]
    layout: Layout
    ends_s: float  # when it should be done
    expected_s: float


class Dispatcher:
    """See above. `ready` while the engine answers, `failed` when it could not be started again at the last attempt."""

    def __init__(self, service: Service, engine: Engine) -> None:
        self.service, self.engine = service, engine
        self.ready = self.failed = False
        self.started = threading.Event()
        self.error: BertoptError | None = None
        self.cost = Cost(0.0, 0.0)
        self.slowness = 1.0  # seconds that batches lately took over those of the cost: others may want the cores too
        self._sent: collections.deque[Sent] = collections.deque()
        self._thread = threading.Thread(target=self._run, name="dispatch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """The service is closed already."""
        if self._thread.ident is not None:
            self._thread.join(2.0)
        self.engine.close()

    def _run(self) -> None:
        try:
            self._open()
        except BertoptError as error:
            self.error = error
        except EngineDied as error:
            self.error = GraphError(str(error))
        finally:
            self.started.set()
        while self.error is None and not self.service.closed:
            try:
                self._step()
            except EngineDied:
                self._mend()

    def _open(self) -> None:
        found = self.engine.start()
        measured = fit(found.samples)
        self.cost = replace(measured, batch_s=measured.batch_s + HANDLING_S)
        with self.service.lock:
            if self.service.queue is None:
                self.service.queue, self.service.max_queue = self.service.make_queue(self.cost)
                self.service.row_s = self.cost.of(1, self.service.head.max_length // 2)
            self.ready, self.failed = True, False

    def _step(self) -> None:
        """Send a batch where it is full or the engine is about to be free, and take a result where one is due."""
        service = self.service
        if self._sent:
            self._send_second(full=True)
            lead = max(LEAD_S, LEAD_SHARE * self._sent[0].expected_s)
            left = self._sent[0].ends_s - lead - service.clock()
            done = self.engine.poll(left)
            if not done:
                self._send_second()
            self._take_result(send_first=done)
        else:
            self._send_next(wait=True)

    def _send_second(self, *, full: bool = False) -> None:
        """Beside one batch, which is no suspect, the engine may have another."""
        if len(self._sent) == 1 and not self._sent[0].items[0].alone:
            self._send_next(wait=False, full=full)

    def _send_next(self, *, wait: bool, full: bool = False) -> None:
        """Take the next batch of the queue, if there is one; with `wait`, wait until there is, or the service ends."""
        service, late, items = self.service, [], []
        layout: Layout | None = None
        with service.lock:
            while not service.closed:
                assert service.queue is not None
                now = service.clock()
                decision = service.queue.next(now, hurry=service.draining, full=full)
                late += decision.late
                items, layout = decision.batch, decision.layout
                if items or late or not wait:
                    break
                service.queued.wait(min(decision.wake_s - now, threading.TIMEOUT_MAX))
            service.running += len(items)
        if late:
            from bertopt.serve.service import LATE

            service.end([item.ticket for item in late], LATE)
        if layout is not None:
            self._send(items, layout)

    def _send(self, items: list[Item], layout: Layout) -> None:
        now = self.service.clock()
        for item in items:
            item.launched_s = now
        batch = Batch(np.arange(len(items)), joined(items), layout)
        length = layout.length if isinstance(layout, Padded) else layout.max_length
        expected = self.slowness * self.cost.of(layout.computed_tokens // length, length)
        starts = max(now, self._sent[-1].ends_s) if self._sent else now
        self._sent.append(Sent(items, layout, starts + expected, expected))
        metrics = self.service.metrics
        metrics.rows.observe(len(items))
        metrics.padding.observe(batch.padding_fraction)
        metrics.real_tokens.inc(batch.real_tokens)
        metrics.computed_tokens.inc(batch.computed_tokens)
        self.engine.submit(batch)

    def _take_result(self, *, send_first: bool) -> None:
        """The oldest batch's result. With `send_first` the engine gets its next batch before the answers are made."""
        sent = self._sent[0]
        found: Answered | BatchFailed
        try:
            found = self.engine.result(max(STALL_S, SLOWEST * sent.expected_s))
        except BatchFailed as failure:
            found = failure
        self._sent.popleft()
        try:
            if send_first and not self._sent:
                self._send_next(wait=False)
        finally:  # an engine that dies on the next batch has answered this one
            self._give(sent, found)

    def _give(self, sent: Sent, found: Answered | BatchFailed) -> None:
        if isinstance(found, BatchFailed):
            self.service.metrics.failures.inc()
            self._apart(sent.items, str(found))
        else:
            took = found.device_ms / 1e3
            self.slowness *= min(2.0, max(0.5, took / max(sent.expected_s, 1e-6))) ** RECENT
            self.service.row_s += RECENT * (took / len(sent.items) - self.service.row_s)
            self._answer(sent.items, found)
        with self.service.lock:
            self.service.running -= len(sent.items)

    def _answer(self, items: list[Item], found: Answered) -> None:
        logits = found.logits[: len(items)]
        whole: NDArray[np.bool_] = np.asarray(np.isfinite(logits).all(axis=1))
        for item in (item for item, fine in zip(items, whole.tolist(), strict=True) if not fine):
            self._refuse(item, "NaN")
        good = [item for item, fine in zip(items, whole.tolist(), strict=True) if fine]
        if good:
            self.service.answer(good, logits[whole])

    def _apart(self, items: list[Item], what: str) -> None:
        """A batch failed. Each of its texts is run alone, and one that was alone already is what fails."""
        if items[0].alone:
            self._refuse(items[0], what)
            return
        for item in items:
            item.alone = True
        with self.service.lock:
            assert self.service.queue is not None
            self.service.queue.put_back([item for item in items if not item.gone])
            self.service.queued.notify_all()

    def _refuse(self, item: Item, what: str) -> None:
        message = f"the model fails on text {item.position + 1} ({what})"
        self.service.end([item.ticket], Refusal(500, "model_failed", message, (item.position,)))

    def _mend(self) -> None:
        """The engine is gone. What it had waits, its first batch to be run text by text; then it is started again."""
        service = self.service
        self.ready = False
        service.metrics.failures.inc()
        lost, self._sent = list(self._sent), collections.deque()
        for number, sent in reversed(list(enumerate(lost))):
            if number == 0:
                self._apart(sent.items, "the back end died")
            else:
                with service.lock:
                    assert service.queue is not None
                    service.queue.put_back([item for item in sent.items if not item.gone])
        with service.lock:
            service.running -= sum(len(sent.items) for sent in lost)
            service.queued.notify_all()
        attempt = 0
        while not service.closed:
            try:
                service.metrics.restarts.inc()
                self._open()
                return
            except (BertoptError, EngineDied):
                self.failed = True
                time.sleep(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)])
                attempt += 1
