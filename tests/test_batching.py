"""Policies are pure functions of lengths; every request is in exactly one batch; edges are the best there are."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertopt.batching import Bucketed, Dynamic, Fixed, Packed, TokenBudget, batches, choose_edges, waste
from bertopt.tokenization import Tokens

LENGTHS = st.lists(st.integers(1, 64), min_size=1, max_size=120)
POLICIES = st.sampled_from(
    [
        Fixed(8, 64),
        Dynamic(8),
        Bucketed(8, (8, 16, 40, 64), 32),
        Bucketed(5, (64,), 7),
        TokenBudget((64, 128, 256), 64, max_rows=16),
    ]
)


def tokens_of(lengths: list[int]) -> Tokens:
    """Row i holds the value i + 5 throughout, so that a mix-up is visible."""
    return Tokens.from_rows([[i + 5] * n for i, n in enumerate(lengths)])


@given(LENGTHS, POLICIES, st.integers(1, 50))
@settings(max_examples=150, deadline=None)
def test_every_request_is_in_exactly_one_batch_and_brings_its_own_tokens(lengths, policy, chunk):
    tokens = tokens_of(lengths)
    chunks = [tokens.take(np.arange(i, min(i + chunk, len(lengths)))) for i in range(0, len(lengths), chunk)]
    seen = []
    for batch in batches(chunks, policy):
        seen.extend(batch.positions.tolist())
        assert batch.computed_tokens >= batch.real_tokens
        assert 0.0 <= batch.padding_fraction < 1.0
        for row, position in enumerate(batch.positions):
            start, stop = batch.tokens.offsets[row : row + 2]
            assert batch.tokens.ids[start:stop].tolist() == [position + 5] * lengths[position]
    assert sorted(seen) == list(range(len(lengths)))


@given(LENGTHS, POLICIES)
@settings(max_examples=100, deadline=None)
def test_no_policy_sees_more_than_its_window(lengths, policy):
    for batch in batches([tokens_of(lengths)], policy):
        if isinstance(policy, TokenBudget):
            assert np.ptp(batch.positions) < policy.window
        else:
            assert len(set((batch.positions // policy.window).tolist())) == 1


@given(LENGTHS, POLICIES, st.integers(1, 50), st.sampled_from([None, 4, 16]))
@settings(max_examples=100, deadline=None)
def test_batches_are_the_same_however_the_chunks_are_cut(lengths, policy, chunk, first_window):
    tokens = tokens_of(lengths)
    chunks = [tokens.slice(i, min(i + chunk, len(lengths))) for i in range(0, len(lengths), chunk)]
    cut, whole = (list(batches(given, policy, first_window=first_window)) for given in (chunks, [tokens]))
    assert [(b.positions.tolist(), b.layout) for b in cut] == [(b.positions.tolist(), b.layout) for b in whole]


@given(LENGTHS)
@settings(deadline=None)
def test_a_packed_batch_goes_as_soon_as_the_next_row_cannot_join_it(lengths):
    policy, given = TokenBudget((64, 128), 64, max_rows=16), []

    def one_by_one():
        for length in lengths:
            given.append(length)
            yield tokens_of([length])

    first = next(batches(one_by_one(), policy))
    if first.rows < min(16, len(lengths)):
        assert given == lengths[: first.rows + 1]
        assert sum(given) > 128
    else:
        assert given == lengths[: first.rows]


@given(LENGTHS, POLICIES)
@settings(max_examples=60, deadline=None)
def test_the_arithmetic_of_waste_is_what_the_batches_waste(lengths, policy):
    made = list(batches([tokens_of(lengths)], policy))
    real = sum(b.real_tokens for b in made)
    padding, _ = waste(np.array(lengths), policy)
    assert padding == pytest.approx(1 - real / sum(b.computed_tokens for b in made))


def test_fill_writes_every_element():
    batch = next(batches([tokens_of([2, 4])], Fixed(2, 5)))
    ids, mask, types = (np.full((2, 5), -9) for _ in range(3))
    batch.fill(ids, mask, types, pad_id=1)
    assert ids.tolist() == [[5, 5, 1, 1, 1], [6, 6, 6, 6, 1]]
    assert mask.tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]]
    assert types.tolist() == [[0] * 5] * 2


def test_padding_of_27_in_128_is_79_percent():
    lengths = np.full(64, 27)
    assert waste(lengths, Fixed(32, 128))[0] == pytest.approx(0.789, abs=1e-3)


def test_a_packed_batch_counts_its_fill_as_padding_and_as_sequences():
    batch = next(batches([tokens_of([10, 20])], TokenBudget((64,), 32, max_rows=8)))
    assert batch.layout == Packed(64, 32)
    assert batch.padding_fraction == pytest.approx(34 / 64)
    assert batch.layout.computed_pairs(batch.tokens.lengths) == 10**2 + 20**2 + 32**2 + 2**2


def test_a_window_that_is_no_multiple_of_the_batch_still_makes_whole_batches():
    made = list(batches([tokens_of([3] * 25)], Bucketed(8, (4,), 20)))
    assert [b.rows for b in made] == [8, 8, 8, 1]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=30), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_edges_are_the_best_of_all_choices(lengths, most):
    longest = 12
    found = choose_edges(np.array(lengths), longest, max_edges=most)

    def cost(edges):
        return sum(min(e for e in edges if e >= n) for n in lengths)

    best = min(cost((*inner, longest)) for k in range(most) for inner in itertools.combinations(range(1, longest), k))
    assert cost(found) == best
    assert found[-1] == longest
    assert len(found) <= most


def test_edges_keep_to_a_multiple_but_for_the_last():
    edges = choose_edges(np.random.default_rng(0).integers(4, 100, 500), 100, max_edges=6, multiple=8)
    assert all(e % 8 == 0 for e in edges[:-1])
    assert edges[-1] == 100


def test_lengths_beyond_the_longest_are_taken_for_truncated():
    assert choose_edges(np.array([500, 3]), 64, max_edges=2) == (3, 64)


@given(LENGTHS, st.data())
def test_a_slice_of_tokens_is_what_taking_its_rows_gives(lengths, data):
    tokens = Tokens(np.arange(sum(lengths), dtype=np.int32), np.append(0, np.cumsum(lengths)).astype(np.int64))
    start = data.draw(st.integers(0, len(lengths)))
    stop = data.draw(st.integers(start, len(lengths)))
    ours, right = tokens.slice(start, stop), tokens.take(np.arange(start, stop))
    assert np.array_equal(ours.ids, right.ids)
    assert np.array_equal(ours.offsets, right.offsets)
