"""Requests that were read: no more than the limit, a fingerprint that tells them apart, parts of them."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertopt.errors import UsageError
from bertopt.text import Requests, read, split
from tests.text_files import characters, relaxed, write


def test_limit_reads_no_further(tmp_path):
    path = write(tmp_path, "x.jsonl", '{"text": "a"}\n{"text": "b"}\nnot JSON\n')
    assert read(path, limit=2) == read(write(tmp_path / ".", "x.jsonl", '{"text": "a"}\n{"text": "b"}\n'))
    late = write(tmp_path, "late.jsonl", b'{"text": "a"}\n' * 100_000 + b"\xff\n")
    assert len(read(late, limit=3)) == 3
    for limit in (0, -1):
        with pytest.raises(UsageError, match="--limit"):
            read(path, limit=limit)


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
