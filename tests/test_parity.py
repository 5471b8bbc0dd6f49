from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertopt.errors import GraphError
from bertopt.graph import parity
from bertopt.graph.parity import LIMITS, check, compare, probe_batches, probe_rows, synthetic_feeds
from bertopt.model import Checkpoint, open_checkpoint
from bertopt.records import from_json, to_json
from bertopt.tokens import Tokens

Make = Callable[..., Path]


@pytest.fixture
def checkpoint(tiny: Path) -> Checkpoint:
    return open_checkpoint(str(tiny))


def ragged(lengths: list[int], types: bool = False) -> Tokens:
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
    count = int(offsets[-1])
    return Tokens(np.arange(count, dtype=np.int32) % 90 + 5, offsets, np.zeros(count, np.uint8) if types else None)


def judged(reference: object, candidate: object, **how: object) -> parity.Parity:
    defaults: dict = {"precision": "fp32", "task": "single_label", "trained": True}
    return compare(np.asarray(reference, np.float32), np.asarray(candidate, np.float32), **(defaults | how))


# The verdict


def test_the_difference_is_relative_to_the_spread() -> None:
    reference = np.array([[1.0, -1.0], [-1.0, 1.0]])  # standard deviation 1
    verdict = judged(reference * 10, reference * 10 + 0.005)
    assert verdict.logit_spread == pytest.approx(10)
    assert verdict.max_difference == pytest.approx(0.005, rel=1e-3)
    assert verdict.relative_difference == pytest.approx(0.0005, rel=1e-3)
    assert verdict.passed
    assert not judged(reference, reference + 0.005).passed
    assert judged(reference, reference + 0.005, precision="fp16").passed


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_never_passes(precision: str, value: float) -> None:
    good = np.array([[3.0, -1.0], [2.0, 1.0]])
    bad = good.copy()
    bad[1, 0] = value
    for reference, candidate in ((good, bad), (bad, good), (bad, bad), (np.full((2, 2), value), np.full((2, 2), value))):
        for trained in (True, False):
            verdict = judged(reference, candidate, precision=precision, trained=trained)
            assert not verdict.passed
            assert "NaN or infinite" in parity.describe(verdict)
            assert from_json(parity.Parity, to_json(verdict)) == verdict  # JSON has no NaN


def test_labels_count_only_where_they_mean_something() -> None:
    reference, candidate = np.array([[0.01, 0.0], [8.0, -8.0]]), np.array([[0.0, 0.01], [8.0, -8.0]])
    verdict = judged(reference, candidate, precision="bf16")
    assert verdict.label_agreement == 0.5
    for task in ("embedding", "regression"):
        assert judged(reference, candidate, precision="bf16", task=task).label_agreement is None
    assert judged(reference, candidate, precision="bf16", trained=False).label_agreement is None
    assert judged(reference, candidate, precision="bf16", trained=False).passed


def test_a_share_is_rounded_to_whole_rows() -> None:
    reference = np.tile([2.0, -2.0], (40, 1))
    reference[:4] = [0.01, -0.01]
    for flipped, passed in ((0, True), (1, True), (2, False)):  # 2 % of 40 rows is not yet one row
        candidate = reference.copy()
        candidate[:flipped] *= -1
        verdict = judged(reference, candidate, precision="bf16")
        assert verdict.passed is passed
        assert verdict.limit_label_agreement == pytest.approx(1 - 1 / 40)
    assert not judged(reference, np.where(np.arange(40)[:, None] == 0, -reference, reference)).passed  # float32: not one


def test_multi_label_decides_each_label_at_one_half() -> None:
    reference = np.array([[5.0, -5.0, 0.01], [5.0, 5.0, -5.0]])
    candidate = np.array([[5.0, -5.0, -0.01], [5.0, 5.0, -5.0]])
    assert judged(reference, candidate, precision="int8", task="multi_label").label_agreement == pytest.approx(5 / 6)


def test_answers_are_spans_of_their_own_row() -> None:
    offsets = np.array([0, 3, 5])
    reference = np.array([[9.0, 0], [0, 9], [1, 1], [5, 0], [0, 5]])
    candidate = reference.copy()
    candidate[2] = [1, 9.5]  # the first row ends elsewhere
    verdict = judged(reference, candidate, precision="int8", task="question_answering", offsets=offsets)
    assert verdict.rows == 2
    assert verdict.label_agreement == 0.75


def test_shapes_that_cannot_be_compared() -> None:
    with pytest.raises(GraphError, match=r"\[2, 3\] cannot be judged against \[2, 2\]"):
        judged(np.zeros((2, 2)), np.zeros((2, 3)))
    with pytest.raises(GraphError):
        judged(np.zeros((0, 2)), np.zeros((0, 2)))


def test_a_single_logit_has_its_own_size_for_a_yardstick() -> None:
    assert judged([[100.0]], [[100.01]], task="regression").passed
    assert not judged([[100.0]], [[101.0]], task="regression").passed
    assert judged([[0.0]], [[0.0]], task="regression").passed


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=40),
    st.floats(0.125, 8),
    st.floats(-3, 3),
)
def test_the_verdict_does_not_depend_on_the_logits_scale(values: list[float], scale: float, error: float) -> None:
    reference = np.array(values, np.float64)[:, None]
    if reference.std() < 1e-3:
        return
    first = judged(reference, reference + error * reference.std(), task="regression", precision="int8")
    again = judged(reference * scale, (reference + error * reference.std()) * scale, task="regression", precision="int8")
    assert first.relative_difference == pytest.approx(again.relative_difference, rel=1e-3, abs=1e-4)
    assert first.relative_difference == pytest.approx(abs(error), rel=1e-3, abs=1e-4)


# Probe data


@given(st.lists(st.integers(2, 64), min_size=1, max_size=80), st.booleans())
def test_probe_batches_are_what_hides_nothing(lengths: list[int], pairs: bool) -> None:
    class Described:
        uses_type_ids = True
        max_positions = 64

    tokens = ragged(lengths, types=pairs)
    batches = probe_batches(tokens, Described())  # type: ignore[arg-type]
    assert [b.rows for b in batches] == [1, 2, 3, 7] * 4
    assert np.array_equal(np.concatenate([b.positions for b in batches]), np.arange(probe_rows(batches)))
    for number, batch in enumerate(batches):
        ids = np.empty((batch.layout.rows, batch.layout.length), np.int64)
        mask, types = np.empty_like(ids), np.empty_like(ids)
        batch.fill(ids, mask, types)
        assert batch.layout.length <= 64
        if batch.tokens.lengths.min() < 64:
            assert (mask == 0).any()
        if not pairs:
            assert (batch.tokens.type_ids is not None) == (number % 2 == 1)
            assert not (types > mask).any()
    seen = {int(n) for b in batches for n in b.tokens.lengths}
    assert {min(lengths), max(lengths)} <= seen


def test_probe_rows_of_a_batch_differ_in_length(checkpoint: Checkpoint) -> None:
    batches = probe_batches(ragged(list(range(3, 60))), checkpoint)
    assert all(len(set(b.tokens.lengths)) > 1 for b in batches if b.rows > 1)


@pytest.mark.parametrize("padding", ["right", "left", "gapped"])
@pytest.mark.parametrize("length", [3, 16, 17])
def test_synthetic_feeds_tell_their_inputs_apart(checkpoint: Checkpoint, padding: str, length: int) -> None:
    feeds = synthetic_feeds(checkpoint, 3, length, padding=padding)
    mask, types = feeds["attention_mask"], feeds["token_type_ids"]
    assert list(feeds) == ["input_ids", "attention_mask", "token_type_ids"]
    assert all(array.shape == (3, length) and array.dtype == np.int64 for array in feeds.values())
    assert mask[0].all()
    assert not mask[-1].all()
    assert not np.array_equal(mask, types)
    assert types.any()
    assert (feeds["input_ids"][mask == 0] == checkpoint.pad_id).all()
    if padding == "right":
        assert (np.diff(mask, axis=1) <= 0).all()
    if padding == "left":
        assert (np.diff(mask, axis=1) >= 0).all()


# The self-test of exports (EXP-01)


def torch_run(checkpoint: Checkpoint) -> parity.Run:
    from bertopt.graph.export import reference

    return reference(checkpoint.torch_module())


def test_a_faithful_candidate_passes_at_every_shape(checkpoint: Checkpoint) -> None:
    run, shapes = torch_run(checkpoint), []

    def candidate(feeds: parity.Feeds) -> np.ndarray:
        shapes.append(feeds["input_ids"].shape)
        return run(feeds)

    assert all(p.passed for p in check(run, candidate, checkpoint, "itself"))
    assert {rows for rows, _ in shapes} == {1, 2, 3, 7}
    assert {length for _, length in shapes} == {3, 15, 16, 17, 48, 64}


@pytest.mark.parametrize("names", list(itertools.combinations(["input_ids", "attention_mask", "token_type_ids"], 2)))
@pytest.mark.parametrize("kind", ["bert", "electra", "deberta-v2"])
def test_swapped_inputs_are_found(checkpoint_folder: Make, kind: str, names: tuple[str, str]) -> None:
    checkpoint = open_checkpoint(str(checkpoint_folder(kind)))
    run = torch_run(checkpoint)

    def swapped(feeds: parity.Feeds) -> np.ndarray:
        a, b = (feeds[name].copy() for name in names)
        limits = {"input_ids": 99, "attention_mask": 1, "token_type_ids": 1}
        return run(feeds | {names[0]: np.minimum(b, limits[names[0]]), names[1]: np.minimum(a, limits[names[1]])})

    with pytest.raises(GraphError, match=r"the swapped graph loses parity at (1 x 3|2 x 15)"):
        check(run, swapped, checkpoint, "the swapped graph")


@pytest.mark.parametrize("kind", ["roberta", "distilbert"])
def test_a_mask_that_is_not_looked_at_is_found(checkpoint_folder: Make, kind: str) -> None:
    checkpoint = open_checkpoint(str(checkpoint_folder(kind)))
    run = torch_run(checkpoint)
    with pytest.raises(GraphError, match="loses parity at 2 x 15, right padding"):
        check(run, lambda f: run(f | {"attention_mask": np.ones_like(f["attention_mask"])}), checkpoint, "a graph")


def test_a_length_that_was_recorded_is_found(checkpoint: Checkpoint) -> None:
    run = torch_run(checkpoint)

    def recorded(feeds: parity.Feeds) -> np.ndarray:
        if feeds["input_ids"].shape[1] == 17:
            raise GraphError("Reshape: 16 is not 17")
        return run(feeds)

    with pytest.raises(GraphError, match="a graph fails at 7 x 17, right padding: Reshape"):
        check(run, recorded, checkpoint, "a graph")


def test_what_stands_on_padding_is_not_compared(checkpoint_folder: Make) -> None:
    checkpoint = open_checkpoint(str(checkpoint_folder("bert", head="ForTokenClassification")))
    run = torch_run(checkpoint)

    def spoiled(where: int) -> parity.Run:
        return lambda feeds: np.where(feeds["attention_mask"][..., None] == where, np.float32(99), run(feeds))

    check(run, spoiled(0), checkpoint, "a graph")
    with pytest.raises(GraphError, match="loses parity"):
        check(run, spoiled(1), checkpoint, "a graph")
