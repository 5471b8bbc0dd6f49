"""Requests in: what each format and encoding means, what is kept exactly, and the sentence for what cannot be read."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertopt.errors import BackendUnavailable, DataError
from bertopt.text import Requests, read
from tests.text_files import characters, jsonl, refused, relaxed, write

# Python 3.10's csv module refuses NUL.
csv_characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0" if sys.version_info < (3, 11) else "")
line_characters = st.characters(exclude_categories=["Cs"], exclude_characters="\n\r")


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


def test_long_fields_are_read(tmp_path):
    assert len(read(write(tmp_path, "x.csv", "text\n" + "w " * 200_000 + "\n")).texts[0]) == 400_000


# Encodings: DAT-02
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
