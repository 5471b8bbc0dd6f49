"""`bertopt load`: what it says of servers whose speed is known."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertopt import records
from bertopt.cli import run as cli
from bertopt.errors import UsageError
from bertopt.loadtest.client import Target
from bertopt.loadtest.openloop import due_times, find, highest, hold, summarize
from bertopt.loadtest.records import LoadRecord, Point
from bertopt.loadtest.run import Wanted, bodies, load_test
from bertopt.text import Requests


@contextlib.contextmanager
def server(answer):
    """A server of one thread: `answer(number, body)` is awaited and gives the status, or None to hang up. Yields its port."""
    loop, ready, found = asyncio.new_event_loop(), threading.Event(), []
    count = iter(range(10**9))

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                status = await answer(next(count), body)
                if status is None:
                    break
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\nok" % status)
        writer.close()

    async def main():
        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        found.append(listening.sockets[0].getsockname()[1])
        ready.set()
        async with listening:
            await asyncio.Event().wait()

    def run():
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        left = asyncio.all_tasks(loop)
        for one in left:
            one.cancel()
        loop.run_until_complete(_ended(left))
        loop.close()

    task = loop.create_task(main())
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)


async def _ended(tasks):
    await asyncio.gather(*tasks, return_exceptions=True)


def point_at(port, rate, seconds, slo_ms=100.0, **options):
    return hold(Target("127.0.0.1", port, "/predict"), [b'{"text": "a"}'], rate, seconds, slo_ms, **options)


@given(rate=st.floats(1, 2000), seconds=st.floats(0.5, 5), seed=st.integers(0, 5))
def test_arrivals_are_those_of_a_poisson_process(rate, seconds, seed):
    due = due_times(rate, seconds, seed)
    assert (np.diff(due) >= 0).all()
    assert len(due) == 0 or due[-1] < seconds
    assert abs(len(due) - rate * seconds) <= 6 * math.sqrt(rate * seconds) + 1
    assert np.array_equal(due, due_times(rate, seconds, seed))


def test_gaps_vary_as_exponential_ones_do():
    gaps = np.diff(due_times(1000, 20, 1))
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


def test_a_server_that_stalls_is_asked_on_and_its_stall_is_seen():
    """All wait while the first 300 ms pass: with a closed loop of one, a single request would have seen it."""
    stalled = threading.Event()

    async def answer(number, body):
        if not stalled.is_set():
            stalled.set()
            threading.Event().wait(0.3)  # the whole server, as garbage collection or a lock would
        return 200

    with server(answer) as port:
        point = point_at(port, 200, 1.0)
    assert point.answered == point.sent == len(due_times(200, 1.0, 0))
    waited = sum(at < 0.15 for at in due_times(200, 1.0, 0))  # due while it stalled, and beyond 100 ms
    assert point.goodput == pytest.approx(point.sent - waited, abs=0.15 * point.sent)
    assert point.p99_ms > 200
    assert not point.within_slo


def test_refusals_and_failures_are_told_apart():
    async def answer(number, body):
        return {1: 429, 2: 500, 3: None}.get(number % 5, 200)

    with server(answer) as port:
        point = point_at(port, 300, 0.5)
    assert point.sent == point.answered + point.refused + sum(point.failed.values())
    assert set(point.failed) == {"500", "no answer"}
    assert point.refused == pytest.approx(point.sent / 5, abs=2)
    assert not point.within_slo


def test_answers_reach_the_request_that_they_are_for():
    async def answer(number, body):
        await asyncio.sleep(0.02 if number % 3 else 0.0)  # out of order
        return 200 if json.loads(body)["text"] == "good" else 418

    told = {}
    with server(answer) as port:
        kinds = [json.dumps({"text": text}).encode() for text in ("good", "bad")]
        target = Target("127.0.0.1", port, "/predict")
        hold(target, kinds, 300, 0.3, 100, told=lambda number, status, body: told.update({number: status}))
    assert all(status == (418 if number % 2 else 200) for number, status in told.items())


def made_up(rate: float, capacity: float) -> Point:
    latency = np.full(100, 0.05 if rate <= capacity else 0.5)
    return summarize(latency, np.zeros(100), collections.Counter({200: 100}), rate, 1.0, 1.0, 200.0)


@given(capacity=st.floats(1, 5000), first=st.floats(1, 500))
def test_the_highest_rate_is_found(capacity, first):
    points = find(lambda rate: made_up(rate, capacity), first, most=40)
    assert capacity / 1.06 <= highest(points) <= capacity


def test_a_disturbed_rate_is_held_again():
    disturbed = iter([True, False, True, True])

    def measure(rate: float) -> Point:
        return made_up(rate, 0.0 if rate == 10 and next(disturbed) else 12.0)

    assert highest(find(measure, 10.0, tries=2)) >= 10
    assert highest(find(measure, 10.0, tries=2)) < 10


def test_a_server_that_keeps_no_rate_has_no_highest():
    points = find(lambda rate: made_up(rate, 0.0), 64.0)
    assert highest(points) is None
    assert min(p.rate_asked for p in points) < 1


def test_a_single_lucky_rate_above_a_bad_one_does_not_count():
    assert highest([made_up(50, 80), made_up(100, 80), made_up(120, 200)]) == 50


def test_one_in_a_hundred_may_be_late_and_no_more():
    for late, kept in ((1, True), (2, False)):
        latency = np.array([0.5] * late + [0.01] * (100 - late))
        point = summarize(latency, np.zeros(100), collections.Counter({200: 100}), 100, 1.0, 1.0, 200.0)
        assert (point.within_slo, point.goodput) == (kept, 100 - late)


def test_bodies_are_texts_and_pairs():
    found = [json.loads(body) for body in bodies(Requests(["a", "b", "c"], ["x", None, ""]), 1)]
    assert found == [{"text": "a", "text_pair": "x"}, {"text": "b"}, {"text": "c", "text_pair": ""}]
    assert [json.loads(b) for b in bodies(Requests(["a", "b", "c"]), 2)] == [{"texts": ["a", "b"]}]


def test_the_command_writes_a_record_and_a_page(tmp_path, capsys):
    async def answer(number, body):
        return 200

    data = tmp_path / "texts.txt"
    data.write_text("good\nbad\n")
    with server(answer) as port:
        arguments = ["--url", f"fast=http://127.0.0.1:{port}", "--data", str(data), "--rate", "100", "--seconds", "0.3"]
        assert cli(["load", *arguments, "--out", str(tmp_path / "out")]) == 0
        assert cli(["load", *arguments, "--slo-ms", "0.0001"]) == 1
    assert "p99 ms" in capsys.readouterr().out
    record = records.from_json(LoadRecord, (tmp_path / "out/load.json").read_text())
    assert record.curves[0].name == "fast"
    assert record.curves[0].points[0].answered > 0
    page = Path(tmp_path / "out/load.html").read_text()
    assert "<svg" in page
    assert "http://www.w3.org" in page
    assert "src=" not in page


def test_who_does_not_answer_is_named():
    with pytest.raises(UsageError, match="nobody answers there"):
        load_test(Wanted(["http://127.0.0.1:9"], limit=1))

    async def answer(number, body):
        return 404

    with server(answer) as port, pytest.raises(UsageError, match="/predict answers 404: ok"):
        load_test(Wanted([f"127.0.0.1:{port}"], limit=1))
    for wanted, said in [
        (Wanted(["x"], rate=0), "--rate"),
        (Wanted(["x"], texts=0), "--texts"),
        (Wanted(["ftp://x"]), "http:"),
    ]:
        with pytest.raises(UsageError, match=said):
            load_test(wanted)
