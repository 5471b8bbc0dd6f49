"""Which columns of a file are texts, second texts, labels and documents, by name or by number."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertopt.text import read
from tests.text_files import jsonl, refused, write

DATA = Path(__file__).parents[2] / "shared" / "data"
field_files = pytest.mark.skipif(not DATA.is_dir(), reason="the labelled field files are not beside this checkout")


# Pairs: TOK-01


def test_tok_01_null_is_a_single_text_and_empty_is_a_pair(tmp_path):
    long = " ".join(["w"] * 20)
    sent = [("a", "b"), ("", long), (long, ""), ("", ""), ("a", None), (" ", " ")]
    got = read(jsonl(tmp_path, *({"text": a, "text_pair": b} for a, b in sent), {"text": "absent"}))
    assert list(zip(got.texts, got.pairs or [], strict=True)) == [*sent, ("absent", None)]
    as_lists = read(jsonl(tmp_path, *({"text": [a, b]} for a, b in sent), {"text": "absent"}))
    assert as_lists == got


def test_tok_01_other_lists_are_refused(tmp_path):
    fine = {"text": "fine"}
    assert "row 2 " in refused(jsonl(tmp_path, fine, {"text": ["a", "b", "c"]}))
    assert "'text' is a list of 1" in refused(jsonl(tmp_path, fine, {"text": ["a"]}))
    assert "row 2 " in refused(jsonl(tmp_path, fine, {"text": [None, "b"]}))
    assert "row 2 " in refused(jsonl(tmp_path, fine, {"text": ["a", "b"], "text_pair": "c"}))
    assert "'text_pair' is of type list" in refused(jsonl(tmp_path, {"text": "a", "text_pair": ["b", "c"]}))


def test_pairs_are_found_when_only_a_later_row_has_one(tmp_path):
    assert read(jsonl(tmp_path, {"text": "a"}, {"text": "b", "text_pair": "c"})).pairs == [None, "c"]
    assert read(jsonl(tmp_path, {"text": "a"}, {"text": "b", "text_pair": None})).pairs is None


# Columns


def test_field_columns_are_known(tmp_path):
    def first(header: str, row: str) -> tuple[str, str | None, str | None]:
        got = read(write(tmp_path, "x.tsv", header + "\n" + row + "\n"))
        return got.texts[0], got.pairs and got.pairs[0], got.labels and got.labels[0]

    assert first("index\tquestion\tsentence\tlabel", "0\tq\ts\tentailment") == ("q", "s", "entailment")
    assert first("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\tq\tr\t1") == ("q", "r", "1")
    assert first("Premise\thypothesis\tgold_label", "p\th\t-") == ("p", "h", "-")
    assert first("sentence\tlabel", 'a "b" c \t0') == ('a "b" c ', None, "0")


def test_columns_by_name_and_by_number(tmp_path):
    path = write(tmp_path, "x.csv", "id,tweet,reply,mood\n1,a,b,sad\n")
    assert all(word in refused(path) for word in ("'tweet'", "'reply'", "--text-column"))
    for text, pair, label in (("tweet", "reply", "mood"), ("TWEET", "3", "4"), ("2", "reply", "mood")):
        got = read(path, text=text, text_pair=pair, label=label)
        assert (got.texts, got.pairs, got.labels) == (["a"], ["b"], ["sad"])
    assert read(path, text="tweet").pairs is None
    assert "'twit'" in refused(path, text="twit", label="mood")
    assert "'5'" in refused(path, text="tweet", label="5")


def test_a_named_text_stands_alone_and_an_empty_name_means_none(tmp_path):
    path = write(tmp_path, "x.csv", "sentence1,sentence2,label\na,b,c\n")
    assert (read(path).pairs, read(path).labels) == (["b"], ["c"])
    assert (read(path, text="sentence2").texts, read(path, text="sentence2").pairs) == (["b"], None)
    bare = read(path, text_pair="", label="")
    assert (bare.texts, bare.pairs, bare.labels) == (["a"], None, None)


def test_a_file_without_a_header(tmp_path):
    path = write(tmp_path, "x.csv", '"3","Title, one","Body"\n"1","Title","Other ""body"""\n')
    assert "2 ('Title, one')" in refused(path)
    got = read(path, text="2", text_pair="3", label="1")
    assert (got.texts, got.labels) == (["Title, one", "Title"], ["3", "1"])
    assert got.pairs == ["Body", 'Other "body"']
    assert "first row was read as data" in got.notes[0]
    # A class that is spelled as a column's number makes no header.
    assert read(write(tmp_path, "y.csv", "1,a\n2,b\n"), text="2", label="1").texts == ["a", "b"]
    assert read(write(tmp_path, "z.csv", 'one\n"two, 2"\n')).texts == ["one", "two, 2"]


def test_a_wrong_separator_is_said(tmp_path):
    assert "'text;label'" in refused(write(tmp_path, "x.csv", "text;label\na;b\n"))
    assert "'text,label'" in refused(write(tmp_path, "x.tsv", "text,label\na,b\n"))
    assert read(write(tmp_path, "y.tsv", "well, the text, label and all\n")).texts == ["well, the text, label and all"]


def test_plain_text_with_named_columns_is_tab_separated(tmp_path):
    path = write(tmp_path, "x.txt", '1\ta "b\n2\tc\n')
    plain = read(path)
    assert plain.texts == ['1\ta "b', "2\tc"]
    assert "--text-column" in plain.notes[0]
    assert (read(path, text="2", label="1").texts, read(path, text="2", label="1").labels) == (['a "b', "c"], ["1", "2"])


def test_labels_are_the_strings_found(tmp_path):
    rows = '{"text": "", "label": 4.50}\n{"text": "", "label": -1}\n{"text": "", "label": true}\n{"text": "", "label": "01"}\n'
    assert read(write(tmp_path, "x.jsonl", rows)).labels == ["4.50", "-1", "true", "01"]
    assert read(write(tmp_path, "x.csv", "text,label\na,4.50\nb, 1\n")).labels == ["4.50", " 1"]


def test_labels_on_all_rows_or_none(tmp_path):
    some = [{"text": "a", "label": "x"}, {"text": "b", "label": None}, {"text": "c"}]
    assert "row 2 " in refused(jsonl(tmp_path, *some))
    assert read(jsonl(tmp_path, *some[1:])).labels is None
    assert "row 1 " in refused(jsonl(tmp_path, *some[1:]), label="label")
    assert "row 2 (line 3) " in refused(write(tmp_path, "x.csv", "text,label\na,x\nb,\n"))
    assert "row 1 " in refused(write(tmp_path, "x.jsonl", '{"text": "a", "label": NaN}\n{"text": "b", "label": 1}\n'))
    assert "'labels' is of type list" in refused(jsonl(tmp_path, {"text": "a", "labels": ["x", "y"]}))


def test_groups_are_numbered_documents(tmp_path):
    rows = [{"text": t, "doc_id": d} for t, d in (("a", "bbc-7"), ("b", "bbc-7"), ("c", "01"), ("d", 1))]
    got = read(jsonl(tmp_path, *rows))
    assert got.groups == [0, 0, 1, 2]
    assert got.take([3, 0]).groups == [2, 0]
    assert read(jsonl(tmp_path, {"text": "a"})).groups is None
    assert "row 2 " in refused(jsonl(tmp_path, rows[0], {"text": "b"}))


# The field's own files


@field_files
def test_field_ag_news():
    got = read(DATA / "ag_news" / "test.csv", text="2", text_pair="3", label="1")
    assert len(got) == 7600
    assert set(got.labels or []) == {"1", "2", "3", "4"}
    named = read(DATA / "ag_news" / "eval.jsonl")
    assert len(named) == 7600
    assert set(named.labels or []) == {"World", "Sports", "Business", "Sci/Tech"}


@field_files
def test_field_sst2():
    got = read(DATA / "sst2" / "dev.tsv")
    assert len(got) == 872
    assert got.labels is not None
    assert sorted(set(got.labels)) == ["0", "1"]
    assert got.texts[0] == "it 's a charming and often affecting journey . "


@field_files
def test_field_mrpc():
    got = read(DATA / "mrpc" / "msr_paraphrase_test.txt", text="#1 String", text_pair="#2 String", label="Quality")
    assert len(got) == 1725
    assert got.labels is not None
    assert got.labels.count("1") == 1147
    assert got.texts[0].startswith("PCCW's chief operating officer")
    train = read(DATA / "mrpc" / "msr_paraphrase_train.txt", text="4", text_pair="5", label="1")
    assert len(train) == 4080
    assert (
        train.texts[0] == 'Amrozi accused his brother, whom he called "the witness", of deliberately distorting his evidence.'
    )
