"""Requests in: what each format means, what is kept exactly, and the sentence for each thing that is wrong."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertopt.errors import BackendUnavailable, DataError, UsageError
from bertopt.text import Requests, read, split

DATA = Path(__file__).parents[2] / "shared" / "data"
field_files = pytest.mark.skipif(not DATA.is_dir(), reason="the labelled field files are not beside this checkout")

# Machines that are busy with something else are no failure of the reader.
relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

# Python 3.10's csv module refuses NUL; a lone surrogate is no text in any format.
characters = st.characters(exclude_categories=["Cs"])
csv_characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0" if sys.version_info < (3, 11) else "")
line_characters = st.characters(exclude_categories=["Cs"], exclude_characters="\n\r")


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def jsonl(folder: Path, *rows: object) -> Path:
    return write(folder, "x.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def refused(path: Path, **options: object) -> str:
    with pytest.raises(DataError) as caught:
        read(path, **options)  # type: ignore[arg-type]
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert path.name in sentence
    return sentence


# Round trips


@relaxed
@given(st.lists(st.tuples(st.text(characters), st.none() | st.text(characters), st.text(characters, min_size=1)), min_size=1))
def test_jsonl_comes_back_as_it_was_written(tmp_path_factory, rows):
    for ascii_only in (True, False):
        lines = [json.dumps({"text": a, "text_pair": b, "label": c}, ensure_ascii=ascii_only) for a, b, c in rows]
        got = read(write(tmp_path_factory.getbasetemp(), "trip.jsonl", "\r\n".join(lines)))
        assert got.texts == [a for a, _, _ in rows]
        assert (got.pairs or [None] * len(rows)) == [b for _, b, _ in rows]
        assert got.labels == [c for _, _, c in rows]
        assert got.fingerprint == Requests(got.texts, got.pairs, got.labels).fingerprint


@relaxed
@given(st.lists(st.tuples(st.text(csv_characters), st.text(csv_characters)), min_size=1), st.sampled_from(["\r\n", "\n"]))
def test_csv_comes_back_as_it_was_written(tmp_path_factory, rows, end):
    buffer = io.StringIO(newline="")
    quoting = csv.QUOTE_MINIMAL if end == "\r\n" else csv.QUOTE_ALL  # with "\n" the module may leave a "\r" unquoted
    csv.writer(buffer, lineterminator=end, quoting=quoting).writerows([("text", "text_pair"), *rows])
    got = read(write(tmp_path_factory.getbasetemp(), "trip.csv", buffer.getvalue()))
    assert got.texts == [a for a, _ in rows]
    assert got.pairs == [b for _, b in rows]


@relaxed
@given(st.lists(st.text(line_characters), min_size=1), st.text(line_characters, min_size=1), st.sampled_from(["\n", "\r\n"]))
def test_plain_text_keeps_every_line_but_empty_ones_at_the_end(tmp_path_factory, lines, last, end):
    if lines[0].startswith("\ufeff"):  # the first one is the byte-order mark
        lines[0] = "\ufeff" + lines[0]
    path = write(tmp_path_factory.getbasetemp(), "trip.txt", end.join([*lines, last, "", ""]))
    got = read(path)
    assert got.texts == [*(line.removeprefix("\ufeff") if n == 0 else line for n, line in enumerate(lines)), last]


@relaxed
@given(st.lists(st.tuples(st.text(line_characters), st.text(line_characters)), min_size=1))
def test_tsv_keeps_quotes(tmp_path_factory, rows):
    rows = [(a.replace("\t", " "), b.replace("\t", " ")) for a, b in rows]
    path = write(tmp_path_factory.getbasetemp(), "trip.tsv", "\n".join(["sentence1\tsentence2", *map("\t".join, rows)]))
    got = read(path)
    assert list(zip(got.texts, got.pairs or [], strict=True)) == rows


def test_parquet_keeps_numbers_as_they_print(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pa.table(
        {
            "sentence1": ["a", "", "\0🙂"],
            "sentence2": pa.array(["b", None, ""]),
            "label": pa.array([4.6, 5.0, 0.0], pa.float32()),
            "group": [7, 7, 2],
        }
    )
    parquet.write_table(table, tmp_path / "x.parquet")
    got = read(tmp_path / "x.parquet")
    assert (got.texts, got.pairs, got.labels) == (["a", "", "\0🙂"], ["b", None, ""], ["4.6", "5.0", "0.0"])
    assert got.groups == [0, 0, 1]
    assert read(tmp_path / "x.parquet", limit=2).texts == ["a", ""]
    assert refused(write(tmp_path, "bad.parquet", b"no such thing")).startswith(str(tmp_path))
    parquet.write_table(pa.table({"text": [1, 2]}), tmp_path / "n.parquet")
    assert "row 1" in refused(tmp_path / "n.parquet")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BackendUnavailable, match=r"pip install 'bertopt\[parquet\]'"):
        read(write(tmp_path, "x.parquet", b"PAR1"))


# DAT-02


DAT_02 = b'\xef\xbb\xbftext,label\r\n"he said ""no"", then\r\nleft",a\r\nplain,b\r\n"",a\r\n"x,y",b\r\n'


def test_dat_02_mark_quotes_and_line_ends(tmp_path):
    got = read(write(tmp_path, "x.csv", DAT_02))
    assert got.texts == ['he said "no", then\r\nleft', "plain", "", "x,y"]
    assert got.labels == ["a", "b", "a", "b"]


def test_dat_02_is_independent_of_the_locale(tmp_path):
    path = write(tmp_path, "x.csv", DAT_02 + "naïve 🙂,b\r\n".encode())
    program = "import sys; from bertopt.text import read; print(read(sys.argv[1]).fingerprint)"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", program, str(path)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == read(path).fingerprint


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.txt", "x.jsonl"])
def test_dat_02_other_encodings_name_the_byte(tmp_path, name):
    body = {"x.csv": "text\ncafé\n", "x.tsv": "text\ncafé\n", "x.txt": "\ncafé\n", "x.jsonl": '{"text": "café"}\n'}[name]
    latin = write(tmp_path, name, body.encode("latin-1"))
    sentence = refused(latin)
    assert f"byte {body.index('é')} " in sentence
    assert "--encoding" in sentence
    assert read(latin, encoding="latin-1").texts[-1] == "café"

    for encoding in ("utf-16", "utf-32"):
        wide = write(tmp_path, name, body.encode(encoding))
        assert f"--encoding {encoding}" in refused(wide)
        assert "byte 0" in refused(wide)
        assert read(wide, encoding=encoding).texts[-1] == "café"


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("before", [0, 8191, 8192, 200_001])
def test_the_bad_byte_is_counted_from_the_start_of_the_file(tmp_path, suffix, mark, before):
    content = mark + ("é" * before).encode() + b"\xe2\x82 and more\n"  # two bytes of a three-byte character
    path = write(tmp_path, "x" + suffix, gzip.compress(content) if suffix.endswith("gz") else content)
    assert f"byte {len(mark) + 2 * before} " in refused(path)
    cut = content[: len(mark) + 2 * before + 2]
    path = write(tmp_path, "cut" + suffix, gzip.compress(cut) if suffix.endswith("gz") else cut)
    assert f"byte {len(mark) + 2 * before} " in refused(path)


def test_encodings_that_do_not_exist_or_do_not_fit(tmp_path):
    path = write(tmp_path, "x.txt", "text\n")
    for encoding in ("utf-9", "hex"):
        with pytest.raises(DataError, match=f"--encoding {encoding} "):
            read(path, encoding=encoding)
    assert "byte 0" in refused(path, encoding="utf-16")
    assert read(write(tmp_path, "y.txt", b"\xef\xbb\xbftext\n"), encoding="UTF8").texts == ["text"]


# TOK-01: pairs


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


# What is wrong, in one sentence


def test_files_that_cannot_be_read(tmp_path):
    assert "no file" in refused(tmp_path / "absent.jsonl")
    assert "no file" in refused(tmp_path / "absent")
    assert "folder" in refused(tmp_path)
    assert "'.xlsx'" in refused(write(tmp_path, "x.xlsx", b"PK"))
    assert ".jsonl" in refused(write(tmp_path, "x", b"text"))
    refused(write(tmp_path, "x.jsonl.gz", b"not gzip"))
    refused(write(tmp_path, "cut.txt.gz", gzip.compress(b"text\n" * 9000)[:-9]))


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.csv", "x.tsv", "x.txt", "x.txt.gz"])
@pytest.mark.parametrize("content", [b"", b"\n\r\n", b"\xef\xbb\xbf"])
def test_empty_files(tmp_path, name, content):
    assert "empty" in refused(write(tmp_path, name, gzip.compress(content) if name.endswith("gz") else content))
    assert "empty" in refused(write(tmp_path, "header.csv", "text,label\n"))
    assert "empty" in refused(write(tmp_path, "array.json", "[]"))


def test_rows_without_a_text_name_row_and_field(tmp_path):
    fine = {"text": "fine"}
    assert "row 3 of" in refused(jsonl(tmp_path, fine, fine, {"text": None}, fine))
    assert "'text'" in refused(jsonl(tmp_path, fine, {"label": "a"}))
    for value, kind in ((4.5, "number"), (True, "boolean"), ({}, "object")):
        sentence = refused(jsonl(tmp_path, fine, {"text": value}))
        assert "row 2 of" in sentence
        assert f"'text' is of type {kind}" in sentence
    assert "row 2 of" in refused(jsonl(tmp_path, fine, "text"))
    assert "row 2 of" in refused(jsonl(tmp_path, fine, ["a", "b"]))
    assert "row 1 of" in refused(write(tmp_path, "x.json", '[null, {"text": "a"}]'))
    assert "row 2 (line 4) of" in refused(write(tmp_path, "x.jsonl", '\n{"text": "a"}\n\n{"text": 1}\n'))


def test_json_that_does_not_parse_names_its_line(tmp_path):
    assert "line 3 of" in refused(write(tmp_path, "x.jsonl", '{"text": "a"}\n\n{"text": "b"\n'))
    assert "line 2 of" in refused(write(tmp_path, "x.json", '[{"text": "a"},\n{"text": }]\n'))
    assert "line 1 of" in refused(write(tmp_path, "x.jsonl", '{"text": ' + "[" * 100_000 + "\n"))


def test_half_a_surrogate_pair_is_no_text(tmp_path):
    assert read(write(tmp_path, "x.jsonl", '{"text": "\\ud83d\\ude00"}')).texts == ["😀"]
    sentence = refused(write(tmp_path, "x.jsonl", '{"text": "a"}\n{"text": "bc\\ud83d"}'))
    assert "row 2 of" in sentence
    assert "character 2 " in sentence


def test_ragged_rows_and_broken_quotes(tmp_path):
    assert "row 2 (line 4) of" in refused(write(tmp_path, "x.csv", 'text,label\n"a\nb",c\nd,e,f\n'))
    assert "row 2 (line 3) of" in refused(write(tmp_path, "x.tsv", "text\tlabel\na\tb\nc\n"))
    assert "line 3 of" in refused(write(tmp_path, "x.csv", 'text,label\na,b\n"c "d" e",f\n'))
    assert "line 2 of" in refused(write(tmp_path, "x.csv", 'text,label\n"never closed,b\nc,d\n'))
    assert "text, text" in refused(write(tmp_path, "x.csv", "text,text\na,b\n"))


def test_long_fields_are_read(tmp_path):
    assert len(read(write(tmp_path, "x.csv", "text\n" + "w " * 200_000 + "\n")).texts[0]) == 400_000


# Limit, fingerprint, take and split


def test_limit_reads_no_further(tmp_path):
    path = write(tmp_path, "x.jsonl", '{"text": "a"}\n{"text": "b"}\nnot JSON\n')
    assert read(path, limit=2) == read(write(tmp_path / ".", "x.jsonl", '{"text": "a"}\n{"text": "b"}\n'))
    late = write(tmp_path, "late.jsonl", b'{"text": "a"}\n' * 100_000 + b"\xff\n")
    assert len(read(late, limit=3)) == 3
    for limit in (0, -1):
        with pytest.raises(UsageError, match="--limit"):
            read(path, limit=limit)


def test_json_arrays_and_compressed_files_read_as_their_lines_do(tmp_path):
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 2.50}]
    lines = read(jsonl(tmp_path, *rows))
    for name, content in (
        ("x.json", json.dumps(rows, indent=1).encode()),
        ("y.json", "\n".join(map(json.dumps, rows)).encode()),
        ("x.NDJSON.gz", gzip.compress("\n".join(map(json.dumps, rows)).encode())),
    ):
        got = read(write(tmp_path, name, content))
        assert (got.fingerprint, got.labels, got.name) == (lines.fingerprint, ["1", "2.5"], name)


text = st.text(characters, max_size=3)
contents = st.lists(st.tuples(text, st.none() | text, text), max_size=4)


@relaxed
@given(contents, contents)
def test_fingerprints_differ_where_the_requests_do(one, other):
    def made(rows: list[tuple[str, str | None, str]]) -> Requests:
        return Requests([a for a, _, _ in rows], [b for _, b, _ in rows], [c for _, _, c in rows])

    assert (made(one).fingerprint == made(other).fingerprint) == (one == other)


FRAMES: list[tuple] = [
    (["ab", "c"],),
    (["a", "bc"],),
    (["abc"],),
    (["a"], ["b"]),
    (["a"], None, ["b"]),
    (["a"], [""]),
    (["a"],),
    (["a", "b"],),
    ([],),
]


def test_fingerprints_are_framed_and_stable():
    assert len({Requests(*columns).fingerprint for columns in FRAMES}) == len(FRAMES)
    assert Requests(["a"], [None]).fingerprint == Requests(["a"]).fingerprint
    assert Requests(["a"], name="x", notes=["n"]).fingerprint == Requests(["a"], groups=[3]).fingerprint
    framed = b"\0" * 7 + b"\1a" + b"\xff" * 16  # a length and its text, then no pair and no label
    assert Requests(["a"]).fingerprint == hashlib.sha256(framed).hexdigest()[:16]


@relaxed
@given(st.lists(st.sampled_from(["a", "b", "c", "dd", "🙂", ""]) | text), st.floats(0.01, 0.98))
def test_split_is_a_stable_partition(texts, fraction):
    requests = Requests(texts, labels=[str(n) for n in range(len(texts))])
    calibration, evaluation = split(requests, fraction)
    assert sorted(map(int, [*(calibration.labels or []), *(evaluation.labels or [])])) == list(range(len(texts)))
    assert not set(calibration.texts) & set(evaluation.texts)
    shuffled = requests.take(range(len(texts) - 1, -1, -1))
    assert set(split(shuffled, fraction)[0].texts) == set(calibration.texts)
    assert set(split(requests, fraction + 0.01)[0].texts) >= set(calibration.texts)


def test_split_has_about_the_share_asked_for_and_never_moves():
    requests = Requests([f"text {n}" for n in range(2000)])
    calibration, evaluation = split(requests, 0.1)
    assert 150 < len(calibration) < 250
    assert len(calibration) + len(evaluation) == 2000
    assert calibration.texts[:3] == ["text 12", "text 13", "text 19"]  # as sha256sum has it
    for fraction in (0, 1, -0.1):
        with pytest.raises(UsageError):
            split(requests, fraction)


def test_take_keeps_rows_together():
    requests = Requests(["a", "b", "c"], ["x", None, ""], ["0", "1", "2"], [5, 5, 6], name="n")
    got = requests.take([2, 0])
    assert (got.texts, got.pairs, got.labels, got.groups, got.name) == (["c", "a"], ["", "x"], ["2", "0"], [6, 5], "n")
    assert got.fingerprint == Requests(["c", "a"], ["", "x"], ["2", "0"]).fingerprint
    assert requests.take([1]).pairs is None
    assert requests.take(range(3)) == requests


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
