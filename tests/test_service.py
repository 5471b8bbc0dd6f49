"""The server without HTTP: requests are answered rightly or told why not, whatever others, clients and engines do."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from bertopt.serve.service import LATE
from tests.served import DiesOn, FakeEngine, raise_on_poison, right, service, until, values


def texts(number: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join("x" * n for n in generator.integers(1, 9, generator.integers(1, 12))) for _ in range(number)]


BAD = "xx " + "x" * 13


@pytest.mark.parametrize("engines", [1, 3])
def test_many_clients_each_get_their_own_answers_in_order(engines):
    asked = [texts(1 + n % 5, seed=n) for n in range(120)]
    tickets = [None] * len(asked)
    with service([FakeEngine() for _ in range(engines)], max_queue=1000) as running:

        def client(start: int) -> None:
            for n in range(start, len(asked), 8):
                tickets[n] = running.ask(asked[n])
                values(tickets[n])

        clients = [threading.Thread(target=client, args=(n,)) for n in range(8)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        assert [values(ticket) for ticket in tickets] == [[right(text) for text in group] for group in asked]
        assert running.service.waiting == running.service.running == 0


def test_a_text_that_fails_its_batch_fails_alone():
    """One in eight; the batches that it was in are run again text by text."""
    rows = [BAD if n % 8 == 3 else text for n, text in enumerate(texts(48))]
    with service([FakeEngine(raise_on_poison)]) as running:
        tickets = [running.ask([text]) for text in rows]
        for text, ticket in zip(rows, tickets, strict=True):
            if text is BAD:
                assert ticket.owner.wait(10)
                assert (ticket.refusal.status, ticket.refusal.reason) == (500, "model_failed")
            else:
                assert values(ticket) == [right(text)]
        assert running.service.ready == 1


def test_a_request_with_a_bad_text_among_good_ones_says_which():
    with service([FakeEngine(raise_on_poison)]) as running:
        ticket, other = running.ask(["xx", "x x", BAD]), running.ask(["xxx"])
        assert values(other) == [right("xxx")]
        assert ticket.owner.wait(10)
        assert ticket.refusal.positions == (2,)


@pytest.mark.parametrize("number", [1, 2])
def test_an_engine_that_dies_once_loses_no_request(number):
    rows = texts(30)
    engine = FakeEngine(DiesOn(number))
    with service([engine]) as running:
        tickets = [running.ask([text]) for text in rows]
        assert [values(ticket) for ticket in tickets] == [[right(text)] for text in rows]
        assert engine.starts == 2
        assert running.service.running == 0


def test_a_text_that_kills_every_engine_is_told_apart():
    rows = [*texts(10), BAD, *texts(10, seed=1)]
    engine = FakeEngine(DiesOn(poison=True))
    with service([engine]) as running:
        tickets = [running.ask([text]) for text in rows]
        for text, ticket in zip(rows, tickets, strict=True):
            if text is BAD:
                assert ticket.owner.wait(10)
                assert ticket.refusal.status == 500
            else:
                assert values(ticket) == [right(text)]
        assert engine.starts == 3  # the batch that it was in, and then it alone


def test_an_engine_that_cannot_be_started_again_is_said_and_comes_back():
    from bertopt.serve.engine import EngineDied

    class Stubborn(FakeEngine):
        def start(self):
            ready = super().start()
            if 1 < self.starts < 4:
                raise EngineDied("not yet")
            return ready

    engine = Stubborn(DiesOn(1))
    with service([engine]) as running:
        first = running.ask(["x xx"])
        until(lambda: running.service.dispatchers[0].failed)
        refused = running.ask(["x"])
        assert (refused.refusal.status, refused.refusal.reason) == (503, "no_engine")
        assert refused.refusal.retry_after_s >= 1
        assert values(first) == [right("x xx")]
        assert values(running.ask(["xxx"])) == [right("xxx")]


def test_clients_that_went_away_are_not_computed():
    """30 of 50, gone while the engine is busy with an earlier batch."""
    engine, rows = FakeEngine(), texts(50)
    with service([engine]) as running:
        engine.free.clear()
        blocker = running.ask(["x"])
        until(lambda: running.service.running == 1)
        tickets = [running.ask([text]) for text in rows]
        until(lambda: running.service.queue is not None and len(running.service.queue) >= 46)  # 4 may be staged ahead
        gone = [ticket for n, ticket in enumerate(tickets) if n % 5 >= 2]
        staged = running.service.running - 1
        for ticket in gone:
            running.service.forget(ticket)
        engine.free.set()
        values(blocker)
        for n, ticket in enumerate(tickets):
            if ticket not in gone:
                assert values(ticket) == [right(rows[n])]
        assert 21 <= engine.rows <= 21 + staged
        assert not any(ticket.owner.is_set() for ticket in gone)


def test_a_deadline_that_passed_is_answered_and_not_computed():
    engine = FakeEngine()
    with service([engine]) as running:
        engine.free.clear()
        running.ask(["x"])
        until(lambda: running.service.running == 1)
        until(lambda: engine.asked)  # it would take one batch ahead, and there is none
        ticket = running.ask(["xx"], seconds=0.01)
        until(lambda: running.service.clock() > ticket.deadline_s)
        engine.free.set()
        assert ticket.owner.wait(10)
        assert ticket.refusal is LATE
        assert running.service.drain(10)
        assert engine.rows == 1


def test_a_full_queue_refuses_and_takes_on_again():
    engine = FakeEngine()
    with service([engine], max_queue=8) as running:
        engine.free.clear()
        tickets = [running.ask(["x xx"]) for _ in range(40)]
        refused = [ticket for ticket in tickets if ticket.refusal is not None]
        assert len(refused) >= 40 - 8 - 8  # what waits, and two batches of four with the engine
        assert {ticket.refusal.status for ticket in refused} == {429}
        assert min(ticket.refusal.retry_after_s for ticket in refused) >= 1
        assert running.service.waiting <= 8
        engine.free.set()
        for ticket in tickets:
            if ticket not in refused:
                assert values(ticket) == [right("x xx")]
        assert values(running.ask(["x"])) == [right("x")]
        too_many = running.ask(["x"] * 9)
        assert (too_many.refusal.status, too_many.refusal.reason) == (413, "too_many_texts")


def test_a_long_text_is_cut_or_refused_as_asked():
    long = "x " * 500
    with service([FakeEngine()]) as running:
        cut = running.ask([long])
        assert values(cut) == [right(long)]
        assert (cut.answers[0].truncated, cut.answers[0].tokens) == (True, 8)
        refused = running.ask(["x", long], truncate=False)
        assert refused.owner.wait(10)
        assert (refused.refusal.status, refused.refusal.reason, refused.refusal.positions) == (422, "text_too_long", (1,))
        assert values(running.ask(["x"], truncate=False)) == [right("x")]


def test_a_text_that_cannot_be_tokenized_fails_alone():
    with service([FakeEngine()]) as running:
        with running.service.lock:  # so that all are tokenized in one call
            tickets = [running.ask([text]) for text in ("x", "unreadable", "xx")]
        assert [values(tickets[0]), values(tickets[2])] == [[right("x")], [right("xx")]]
        assert tickets[1].owner.wait(10)
        assert tickets[1].refusal.status == 422
        assert "unreadable" not in tickets[1].refusal.message


def test_draining_finishes_what_was_taken_on():
    engine, rows = FakeEngine(seconds=0.01), texts(20)
    with service([engine], wait_s=5.0) as running:
        tickets = [running.ask([text]) for text in rows]
        assert running.service.drain(10)
        assert [values(ticket) for ticket in tickets] == [[right(text)] for text in rows]
        assert running.ask(["x"]).refusal.reason == "draining"


def test_closing_tells_whoever_still_waits():
    engine = FakeEngine()
    with service([engine]) as running:
        engine.free.clear()
        tickets = [running.ask(["x"]) for _ in range(20)]
        until(lambda: running.service.queue is not None and len(running.service.queue) >= 12)
        running.service.close()
        waiting = [ticket for ticket in tickets if ticket.refusal is not None]
        assert len(waiting) >= 12
        assert {ticket.refusal.status for ticket in waiting} == {503}


def test_large_texts_do_not_hold_up_small_ones():
    """They are tokenized in a lane of their own."""
    with service([FakeEngine()]) as running:
        hold, small = threading.Event(), running.service.tokenizer.encode

        def encode(texts, pairs=None):
            if len(texts[0]) > 20_000:
                hold.wait(10)
            return small(texts, pairs)

        running.service.tokenizer.encode = encode
        large = running.ask(["x " * 15_000])
        assert values(running.ask(["xx"])) == [right("xx")]
        hold.set()
        assert values(large) == [right("x " * 8)]
