"""An open loop: requests are sent when they are due by a Poisson process, whatever became of those before.

A closed loop waits for an answer before it sends the next request, so a server that stalls is asked less and its worst
latencies are never seen (Tene's "coordinated omission"). Here each latency runs from when the request was due.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bertopt.loadtest.client import Pool, Target
from bertopt.loadtest.records import Point

PATIENCE_S = 40.0  # after the last request is sent: longer than the server's own limit
SHARE = 0.99  # of all requests, that must be answered within the SLO
SPIN_S = 0.0005
Told = Callable[[int, int, bytes], None]  # which request, status, body


def due_times(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """When requests are due: exponential gaps of mean 1 / rate, until `seconds`."""
    random = np.random.default_rng(seed)
    gaps = random.exponential(1.0 / rate, size=int(rate * seconds + 8 * (rate * seconds) ** 0.5 + 16))
    times = np.cumsum(gaps)
    return times[times < seconds]


def hold(
    target: Target,
    bodies: Sequence[bytes],
    rate: float,
    seconds: float,
    slo_ms: float,
    *,
    seed: int = 0,
    told: Told | None = None,
) -> Point:
    """Send requests at `rate` for `seconds`, `bodies` in turn, and say what came back. `told` sees each answer."""
    requests = [target.request(body) for body in bodies]
    loop = _loop()
    try:
        return loop.run_until_complete(_hold(target, requests, due_times(rate, seconds, seed), rate, seconds, slo_ms, told))
    finally:
        loop.close()


def _loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _hold(
    target: Target,
    requests: list[bytes],
    due: NDArray[np.float64],
    rate: float,
    seconds: float,
    slo_ms: float,
    told: Told | None,
) -> Point:
    latency, late = np.full(len(due), np.inf), np.zeros(len(due))
    statuses: collections.Counter[int] = collections.Counter()
    pool, everything = Pool(target), asyncio.Event()
    start = time.perf_counter() + 0.05
    last = start

    def answered(number: int, status: int, body: bytes) -> None:
        nonlocal last
        statuses[status] += 1
        last = time.perf_counter()
        if status == 200:
            latency[number] = last - start - due[number]
        if told is not None:
            told(number, status, body)
        if statuses.total() == len(due):
            everything.set()

    for number, at in enumerate(due.tolist()):
        wait = start + at - time.perf_counter()
        if wait > SPIN_S:
            await asyncio.sleep(wait)
        late[number] = time.perf_counter() - start - at
        pool.send(requests[number % len(requests)], functools.partial(answered, number))
        if wait <= SPIN_S:
            await asyncio.sleep(0)  # whatever is due at once, answers are read in between
    if len(due):
        try:
            await asyncio.wait_for(everything.wait(), PATIENCE_S)
        except asyncio.TimeoutError:
            statuses[0] += len(due) - statuses.total()
    pool.close()
    await asyncio.sleep(0.01)  # connections are closed by the loop
    return summarize(latency, late, statuses, rate, seconds, max(last - start, seconds), slo_ms)


def summarize(
    latency_s: NDArray[np.float64],
    late_s: NDArray[np.float64],
    statuses: collections.Counter[int],
    rate: float,
    seconds: float,
    until_last_s: float,
    slo_ms: float,
) -> Point:
    """A point from each request's latency (infinite where it has no answer) and the count of statuses (0: no answer)."""
    got = latency_s[np.isfinite(latency_s)] * 1e3
    good = int((latency_s * 1e3 <= slo_ms).sum())
    p50, p95, p99 = np.percentile(got, [50, 95, 99], method="inverted_cdf").tolist() if len(got) else (None, None, None)
    failed = {str(s) if s else "no answer": n for s, n in sorted(statuses.items()) if s not in (200, 429)}
    return Point(
        rate_asked=rate,
        seconds=seconds,
        sent=len(latency_s),
        answered=len(got),
        refused=statuses[429],
        failed=failed,
        rate_answered=len(got) / until_last_s,
        goodput=good / seconds,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        max_ms=float(got.max()) if len(got) else None,
        late_ms=float(np.percentile(late_s, 99)) * 1e3 if len(late_s) else 0.0,
        within_slo=len(latency_s) > 0 and good >= SHARE * len(latency_s),
    )


def find(
    measure: Callable[[float], Point], first: float, *, close: float = 0.05, most: int = 16, tries: int = 1
) -> list[Point]:
    """Points on the way to the highest rate within the SLO: doubled until one is not, then halved between, to `close`.

    A rate that misses the SLO is held `tries` times, and its best try counts: other work on the machine only ever takes away.
    """

    def best(rate: float) -> Point:
        tried = [measure(rate)]
        while not tried[-1].within_slo and len(tried) < tries:
            tried.append(measure(rate))
        return max(tried, key=lambda point: (point.within_slo, point.goodput))

    points = [best(first)]
    good, bad = (first, None) if points[0].within_slo else (None, first)
    while len(points) < most:
        if bad is None and good is not None:
            rate = 2 * good
        elif good is None and bad is not None:
            rate = bad / 2
            if rate < 0.5:
                break
        elif good is not None and bad is not None and bad / good > 1 + close:
            rate = (good * bad) ** 0.5
        else:
            break
        points.append(best(rate))
        if points[-1].within_slo:
            good = rate
        else:
            bad = rate
    return points


def highest(points: Sequence[Point]) -> float | None:
    """The highest rate within the SLO below the lowest that is not."""
    bad = min((p.rate_asked for p in points if not p.within_slo), default=float("inf"))
    return max((p.rate_asked for p in points if p.within_slo and p.rate_asked < bad), default=None)
