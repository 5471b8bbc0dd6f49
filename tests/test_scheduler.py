"""What waits -> batches: nothing is lost, doubled, late or longer than its limit, whatever comes when."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertopt.batching import Dynamic, TokenBudget
from bertopt.serve.cost import Cost, fit
from bertopt.serve.grouping import BACKLOG, Alone, Bucketed, FirstCome
from bertopt.serve.scheduler import Queue

EDGES, ROWS, TOKENS = (4, 8, 16, 32), 5, 64
COST = Cost(0.002, 0.0001, 0.000001)


@dataclass(eq=False)
class Waiting:
    length: int
    arrived_s: float = 0.0
    deadline_s: float = math.inf
    gone: bool = False
    alone: bool = False


def groupings():
    bucketed = Bucketed(EDGES, ROWS, TOKENS, COST, window=12)
    packed = TokenBudget((32, 64), 32, max_rows=8)
    return [Alone(), FirstCome(Dynamic(ROWS), ROWS), bucketed, FirstCome(packed, 8)]


def rows_of(decision):
    lengths = [item.length for item in decision.batch]
    if hasattr(decision.layout, "budget"):
        assert sum(lengths) <= decision.layout.budget
    else:
        assert decision.layout.rows == len(lengths)
        assert max(lengths) <= decision.layout.length
    return len(lengths)


lengths_of = st.lists(st.integers(1, 32), min_size=1, max_size=40)


@given(lengths=lengths_of, which=st.integers(0, 3))
@settings(deadline=None)
def test_every_request_is_in_one_batch_and_the_oldest_goes_first(lengths, which):
    grouping = groupings()[which]
    queue, items = Queue(grouping, 0.0), [Waiting(length) for length in lengths]
    for item in items:
        queue.add(item)
    seen = []
    while len(queue):
        oldest = next(item for item in items if item not in seen)
        decision = queue.next(0.0)
        assert oldest in decision.batch
        assert rows_of(decision) <= (8 if which == 3 else ROWS)
        if which == 2:
            assert decision.layout.length in EDGES
            waiting = [length for length, item in zip(lengths, items, strict=True) if item not in seen]
            backlog = sum(EDGES[np.searchsorted(EDGES, length)] for length in waiting)
            most = max(TOKENS, BACKLOG * backlog)
            assert decision.layout.computed_tokens <= most or len(decision.batch) == 1
        seen += decision.batch
    assert len(seen) == len(set(map(id, seen))) == len(items)


@given(
    arrivals=st.lists(st.tuples(st.floats(0, 0.02), st.integers(1, 32)), min_size=1, max_size=30),
    wait_ms=st.floats(0, 8),
    which=st.integers(0, 3),
)
@settings(deadline=None)
def test_a_free_backend_never_lets_a_request_wait_beyond_the_limit(arrivals, wait_ms, which):
    """The engine is always free: a request leaves when its wait is over, at the latest."""
    queue, now, left = Queue(groupings()[which], wait_ms / 1e3), 0.0, sorted(arrivals)
    launched = []
    while left or len(queue):
        while left and left[0][0] <= now:
            queue.add(Waiting(left[0][1], left.pop(0)[0]))
        decision = queue.next(now)
        launched += [(item, now) for item in decision.batch]
        if not decision.batch:
            now = max(now, min(decision.wake_s, left[0][0] if left else math.inf))
    assert len(launched) == len(arrivals)
    for item, at in launched:
        assert at - item.arrived_s <= wait_ms / 1e3 + 1e-9


@given(lengths=st.lists(st.integers(1, 32), min_size=1, max_size=14))
@settings(deadline=None)
def test_the_cut_between_buckets_is_the_cheapest(lengths):
    """Against all cuts of the used buckets into runs, by hand."""
    grouping = Bucketed(EDGES, ROWS, TOKENS, COST)
    buckets = np.searchsorted(EDGES, lengths)
    used = sorted(set(buckets.tolist()))

    def price(part):
        number, top = sum(b in part for b in buckets), EDGES[part[-1]]
        return math.ceil(number / max(1, min(ROWS, TOKENS // top))) * COST.batch_s + number * COST.row(top)

    def parts(cuts):
        ends = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(used)]
        return [used[a:b] for a, b in itertools.pairwise(ends)]

    best = min(sum(map(price, parts(cuts))) for cuts in itertools.product([0, 1], repeat=len(used) - 1))
    low, high = grouping._part(buckets, np.clip(TOKENS // np.array(EDGES), 1, ROWS))
    mine = [b for b in used if low <= b <= high]
    others = [cuts for cuts in itertools.product([0, 1], repeat=len(used) - 1) if mine in parts(cuts)]
    assert min(sum(map(price, parts(cuts))) for cuts in others) == pytest.approx(best)
    assert low <= buckets[0] <= high


def test_short_ones_do_not_pay_for_a_long_one():
    grouping = Bucketed((8, 128), 32, 4096, Cost(0.001, 0.00003))
    apart = grouping.pick(np.array([5, 128, 6, 7, 5, 6]))
    assert (apart.positions.tolist(), apart.layout.length) == ([0, 2, 3, 4, 5], 8)
    dear = Bucketed((8, 128), 32, 4096, Cost(1.0, 0.00003))  # a launch costs more than all of the padding
    assert dear.pick(np.array([5, 128, 6, 7, 5, 6])).layout.length == 128


def test_a_long_queue_makes_larger_batches():
    grouping = Bucketed((8, 128), 32, 256, Cost(0.001, 0.00003))
    assert len(grouping.pick(np.full(4, 128)).positions) == 2
    assert len(grouping.pick(np.full(64, 128)).positions) == BACKLOG * 64


def test_only_a_full_batch_is_sent_where_nothing_else_is_asked_for():
    queue = Queue(Bucketed((8, 128), 2, 256, Cost(0.001, 0.00003)), 0.005)
    queue.add(Waiting(100, 0.0))
    assert queue.next(1.0, full=True).batch == []
    queue.add(Waiting(120, 1.0))
    assert len(queue.next(1.0, full=True).batch) == 2


def test_a_batch_that_is_not_full_waits_and_a_full_one_does_not():
    queue = Queue(FirstCome(Dynamic(2), 2), 0.005)
    queue.add(Waiting(3, arrived_s=1.0))
    assert queue.next(1.002).batch == []
    assert queue.next(1.002).wake_s == pytest.approx(1.005)
    assert len(queue.next(1.002, hurry=True).batch) == 1
    for _ in range(2):
        queue.add(Waiting(3, arrived_s=1.0))
    assert len(queue.next(1.0).batch) == 2
    assert queue.next(9.0).wake_s == math.inf


def test_what_is_gone_or_late_is_not_computed():
    queue = Queue(FirstCome(Dynamic(8), 8), 0.0)
    gone, late, good = Waiting(3, gone=True), Waiting(3, deadline_s=1.0), Waiting(3, deadline_s=3.0)
    for item in (gone, late, good):
        queue.add(item)
    decision = queue.next(1.5)
    assert (decision.batch, decision.late) == ([good], [late])
    assert len(queue) == 0


def test_a_deadline_ends_the_wait_for_more():
    """A batch that takes 4 ms must start 4 ms before the deadline of its most pressed request."""
    queue = Queue(FirstCome(Dynamic(8), 8), 0.050, lambda rows, length: 0.004)
    queue.add(Waiting(3, arrived_s=0.0, deadline_s=0.020))
    assert queue.next(0.0).wake_s == pytest.approx(0.016)
    assert len(queue.next(0.016).batch) == 1


def test_a_request_that_was_in_a_failed_batch_goes_alone_and_first():
    queue = Queue(FirstCome(Dynamic(8), 8), 0.0)
    queue.add(Waiting(3))
    suspects = [Waiting(4, alone=True), Waiting(5, alone=True)]
    queue.put_back(suspects)
    assert [queue.next(0.0).batch for _ in range(2)] == [[suspects[0]], [suspects[1]]]


@given(st.floats(0, 0.01), st.floats(1e-6, 1e-3), st.floats(0, 1e-6))
def test_the_cost_is_found_again(batch_s, token_s, pair_s):
    true = Cost(batch_s, token_s, pair_s)
    found = fit([(rows, length, true.of(rows, length)) for rows in (1, 4, 16) for length in (8, 64, 128)])
    for rows, length in ((1, 8), (3, 20), (32, 128)):
        assert found.of(rows, length) == pytest.approx(true.of(rows, length), rel=1e-3)


def test_a_noisy_cost_is_never_negative():
    found = fit([(1, 8, 0.010), (4, 8, 0.009), (1, 64, 0.008), (16, 64, 0.011)])
    assert min(found.batch_s, found.token_s, found.pair_s) >= 0
    assert found.of(1, 8) > 0
