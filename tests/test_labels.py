"""Labels of a file against labels of a model (DAT-04)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertopt.errors import DataError
from bertopt.labels import match

NAMES = ["neg", "pos"]


def test_names_match_by_name_whatever_the_order_in_the_file():
    truth, notes = match(["pos", "neg", "neg"], NAMES, "x.csv")
    assert truth.tolist() == [1, 0, 0]
    assert notes == []


def test_case_does_not_matter_unless_it_tells_two_names_apart():
    assert match(["POS", "Neg"], NAMES, "x.csv")[0].tolist() == [1, 0]
    assert match(["us", "US"], ["US", "us"], "x.csv")[0].tolist() == [1, 0]


def test_numbers_are_taken_for_indices_and_a_note_says_so():
    truth, notes = match(["1", "0"], NAMES, "x.csv")
    assert truth.tolist() == [1, 0]
    assert len(notes) == 1
    assert "taken for indices" in notes[0]
    assert "neg, pos" in notes[0]


def test_numbers_of_a_model_without_names_are_indices_too():
    truth, notes = match(["1", "0"], ["LABEL_0", "LABEL_1"], "x.csv")
    assert truth.tolist() == [1, 0]
    assert "has no names" in notes[0]
    truth, notes = match(["LABEL_1"], ["LABEL_0", "LABEL_1"], "x.csv")
    assert (truth.tolist(), notes) == ([1], [])


def test_a_models_numeric_names_are_names_before_they_are_indices():
    truth, notes = match(["1", "2"], ["2", "1"], "x.csv")
    assert truth.tolist() == [1, 0]
    assert notes == []


@pytest.mark.parametrize(
    ("found", "row", "label"),
    [
        (["pos", "meh"], 2, "'meh'"),
        (["0", "1", "2"], 3, "'2'"),
        (["0", "-1"], 2, "'-1'"),
        (["LABEL_0"], 1, "'LABEL_0'"),
        (["neg", "1"], 2, "'1'"),  # each could be read alone, and together they mean nothing
        (["1", "neg", "meh"], 3, "'meh'"),
        (["1.0"], 1, "'1.0'"),
    ],
)
def test_a_label_that_the_model_does_not_know_is_named_with_its_row(found, row, label):
    with pytest.raises(DataError, match=f"x.csv, row {row}: the model has no label {label}; it knows neg, pos"):
        match(found, NAMES, "x.csv")


@given(st.lists(st.sampled_from(["neg", "pos", "0", "1", "7", "-1", "meh", "NEG"]), min_size=1))
def test_every_row_gets_a_class_of_the_model_or_the_file_is_refused(found):
    try:
        truth, _ = match(found, NAMES, "x.csv")
    except DataError:
        assert not set(map(str.casefold, found)) <= set(NAMES)
    else:
        assert len(truth) == len(found)
        assert set(truth.tolist()) <= {0, 1}
