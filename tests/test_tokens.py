"""Ragged rows of ids: gathered and put together with their segments and marks."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bertopt.tokens import Tokens
from tests.helpers_tokenizers import rows

ragged = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=8)


@settings(deadline=None)
@given(ragged, st.data())
def test_take_gathers_rows_in_the_order_asked(ids: list[list[int]], data: st.DataObject) -> None:
    types = [[i % 2 for i in row] for row in ids]
    tokens = Tokens.from_rows(ids, types, np.array([len(row) > 3 for row in ids], bool))
    picked = data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=12)) if ids else []
    taken = tokens.take(picked)
    assert rows(taken) == [ids[i] for i in picked]
    assert taken.lengths.tolist() == [len(ids[i]) for i in picked]
    assert taken.truncated == sum(len(ids[i]) > 3 for i in picked)
    if tokens.type_ids is not None:
        assert taken.type_ids is not None
        assert taken.type_ids.tolist() == [t for i in picked for t in types[i]]


@settings(deadline=None)
@given(st.lists(st.tuples(ragged, st.booleans()), max_size=4))
def test_concat_keeps_every_row_segment_and_mark(parts: list[tuple[list[list[int]], bool]]) -> None:
    made = [
        Tokens.from_rows(ids, [[1] * len(row) for row in ids] if paired else None, np.full(len(ids), paired))
        for ids, paired in parts
    ]
    whole = Tokens.concat(made)
    assert rows(whole) == [row for ids, _ in parts for row in ids]
    assert whole.truncated == sum(len(ids) for ids, paired in parts if paired)
    types = [int(paired) for ids, paired in parts for row in ids for _ in row]
    assert (whole.type_ids.tolist() if whole.type_ids is not None else [0] * len(types)) == types
    assert (whole.ids.dtype, whole.offsets.dtype) == (np.int32, np.int64)
