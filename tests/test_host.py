"""CPU sessions: a batch's rows over several streams give what one stream gives."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertopt.backends.base import Options
from bertopt.backends.host import PART_ROWS, HostSession, Lengths, split_rows
from bertopt.batching import Batch, Padded
from bertopt.tokens import Tokens


class Sums(HostSession):
    """The sum of each row's ids, and the thread that computed it."""

    def __init__(self, streams: int) -> None:
        super().__init__(Options(threads=4), False, most_streams=streams)
        self.barrier = threading.Barrier(streams)

    def compute(self, feeds):
        self.barrier.wait(10)  # only where every stream has a part does any go on
        sums = (feeds["input_ids"] * feeds["attention_mask"]).sum(axis=1)
        return np.stack([sums, np.full_like(sums, threading.get_ident() % 2**20)], axis=1).astype(np.float32)


def batch_of(rows: int) -> Batch:
    tokens = Tokens.from_rows([[i + 1] * (i % 5 + 1) for i in range(rows)])
    return Batch(np.arange(rows), tokens, Padded(rows, 8))


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_rows_come_back_in_order_and_every_stream_has_a_share(streams):
    with Sums(streams) as session:
        batch = batch_of(4 * PART_ROWS + 1)
        pending = session.launch(session.stage(batch))
        found = pending.result()
        assert found[:, 0].tolist() == [(i + 1) * (i % 5 + 1) for i in range(batch.rows)]
        assert len(set(found[:, 1])) == streams
        assert pending.times.device_ms >= 0


@given(st.integers(1, 100), st.integers(1, 8))
def test_parts_hold_every_row_once_and_none_is_small(rows, most):
    parts = split_rows({"input_ids": np.arange(rows)[:, None], "attention_mask": np.ones((rows, 1))}, most)
    assert np.concatenate([part["input_ids"] for part in parts]).ravel().tolist() == list(range(rows))
    assert len(parts) <= most
    assert len(parts) == 1 or min(len(part["attention_mask"]) for part in parts) >= PART_ROWS


@given(st.integers(1, 600), st.integers(1, 64), st.integers(0, 512))
def test_computed_lengths_hold_the_batch_and_stay_within_the_model(length, multiple, longest):
    computed = Lengths(multiple, longest).computed(length)
    assert computed >= length
    assert computed == length or computed <= longest
    assert computed - length < multiple


@given(st.integers(1, 40))
def test_lengths_are_left_alone_where_nothing_is_said(length):
    assert Lengths().computed(length) == length


def test_a_session_stages_the_length_that_it_computes():
    with Sums(1) as session:
        session._lengths = Lengths(16, 64)
        batch = batch_of(5)
        staged = session.stage(batch)
        assert {array.shape for array in staged.values()} == {(5, 16)}
        assert staged["attention_mask"].sum() == batch.tokens.lengths.sum(), "what was added is padding"
        assert session.launch(staged).result()[:, 0].tolist() == [(i + 1) * (i % 5 + 1) for i in range(5)]
