"""Texts -> Tokens: what comes out of every family, and faults from the field with their right values."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertopt.errors import UsageError
from bertopt.tokenization import (
    BertReference,
    RowAtATime,
    Tokens,
    load_reference_tokenizer,
    load_tokenizer,
    longest_first,
    probe_mismatches,
)
from tests import helpers_tokenizers as makers
from tests.helpers_tokenizers import CLS, SEP, UNK, WORDS20, rows

MINILM = Path(__file__).parents[2] / "shared" / "models" / "minilm-agnews"


def test_no_texts_make_no_rows(any_tokenizer: Callable[[int], Any]) -> None:
    tokens = any_tokenizer(16).encode([])
    assert (len(tokens), tokens.offsets.tolist(), tokens.ids.dtype) == (0, [0], np.int32)


@pytest.mark.parametrize("kind", makers.FAMILIES)
def test_a_call_with_all_texts_equals_a_call_for_each(family_folder: Callable[[str], Path], kind: str) -> None:
    fast = load_tokenizer(family_folder(kind), max_length=12)
    texts = [*makers.CORPUS, "", "   ", "的人有 \U0001f600", "a" * 101] * 20  # more than one slice
    pairs = [None if i % 3 == 0 else texts[-i] for i in range(len(texts))]
    whole = fast.encode(texts, pairs)
    single = Tokens.concat([fast.encode([text], [pair]) for text, pair in zip(texts, pairs, strict=True)])
    assert rows(whole) == rows(single)
    assert whole.truncated == single.truncated > 0
    assert (whole.type_ids is None) == (kind in {"roberta", "xlm-roberta"})
    if whole.type_ids is not None:
        assert np.array_equal(whole.type_ids, single.type_ids)


@pytest.mark.parametrize("kind", makers.FAMILIES)
def test_ids_are_those_of_transformers(family_folder: Callable[[str], Path], kind: str) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(family_folder(kind)))
    fast = load_tokenizer(family_folder(kind), max_length=16)
    texts = [*makers.CORPUS[:5], "", "Naïve Apple \U0001f600", "[SEP] </s>"]
    pairs = texts[1:] + texts[:1]
    assert rows(fast.encode(texts)) == theirs(texts, truncation=True, max_length=16)["input_ids"]
    paired = [(t, p) for t, p in zip(texts, pairs, strict=True) if p]  # an empty second text is lost there
    expected = [theirs(t, p, truncation=True, max_length=16)["input_ids"] for t, p in paired]
    assert rows(fast.encode([t for t, _ in paired], [p for _, p in paired])) == expected
    assert fast.pad_id == theirs.pad_token_id


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta"])
def test_truncation_is_that_of_the_rust_library(tmp_path: Path, kind: str, side: str) -> None:
    folder = makers.save(kind, tmp_path / kind, truncation_side=side)
    texts = ["the team [SEP] won </s> " * n for n in range(8)]
    firsts, seconds = [t for t in texts for _ in texts], texts * len(texts)
    for max_length in (15, 16):
        fast = load_tokenizer(folder, max_length=max_length)
        library = copy.deepcopy(fast.rust)
        library.enable_truncation(max_length, direction=side)
        theirs = library.encode_batch(list(zip(firsts, seconds, strict=True)))
        ours = fast.encode(firsts, seconds)
        assert rows(ours) == [encoding.ids for encoding in theirs]
        if ours.type_ids is not None:
            assert ours.type_ids.tolist() == [t for encoding in theirs for t in encoding.type_ids]
        assert ours.truncated == sum(bool(encoding.overflowing) for encoding in theirs)
        assert rows(fast.encode(texts)) == [encoding.ids for encoding in library.encode_batch(texts)]


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 50))
def test_longest_first_fills_the_budget_and_spares_the_shorter(first: int, second: int, budget: int) -> None:
    kept = longest_first(first, second, budget)
    assert sum(kept) == min(first + second, budget)
    assert kept[0] <= first
    assert kept[1] <= second
    if kept != (first, second) and min(first, second) <= budget // 2:
        assert min(kept) == min(first, second)


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(max_size=30), st.none() | st.text(max_size=30)), max_size=6), st.integers(5, 20))
def test_any_text_is_encoded_within_the_limit(
    fast_tokenizer: Any, pairs: list[tuple[str, str | None]], max_length: int
) -> None:
    fast = replace(fast_tokenizer, max_length=max_length)
    tokens = fast.encode([text for text, _ in pairs], [pair for _, pair in pairs])
    assert len(tokens) == len(pairs)
    for row, (_, pair) in zip(rows(tokens), pairs, strict=True):
        assert (2 if pair is None else 3) <= len(row) <= max_length
        assert (row[0], row[-1]) == (CLS, SEP)


def test_it_travels_to_another_process_small(fast_tokenizer: Any, tokenizer_folder: Path) -> None:
    sent = pickle.dumps(fast_tokenizer)
    assert len(sent) < (tokenizer_folder / "tokenizer.json").stat().st_size + 1000
    assert rows(pickle.loads(sent).encode(["good news"])) == rows(fast_tokenizer.encode(["good news"]))
    reference = load_reference_tokenizer(tokenizer_folder, max_length=16, model_type="bert")
    assert rows(pickle.loads(pickle.dumps(reference)).encode(["good news"])) == rows(fast_tokenizer.encode(["good news"]))


def test_reading_tokenizer_json_needs_no_transformers(tokenizer_folder: Path) -> None:
    program = (
        "import sys; sys.modules.update(transformers=None, torch=None)\n"
        "from bertopt.tokenization import load_tokenizer\n"
        f"print(load_tokenizer({str(tokenizer_folder)!r}, max_length=16).encode(['good news']).ids.tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    assert json.loads(done.stdout) == load_tokenizer(tokenizer_folder, max_length=16).encode(["good news"]).ids.tolist()


def test_the_naive_tokenizer_says_what_it_is(tokenizer_folder: Path, family_folder: Callable[[str], Path]) -> None:
    bert = load_reference_tokenizer(tokenizer_folder, max_length=16, model_type="bert")
    other = load_reference_tokenizer(family_folder("roberta"), max_length=16, model_type="roberta")
    assert isinstance(bert, BertReference)
    assert isinstance(other, RowAtATime)
    assert "Python" in bert.description
    assert "a row at a time" in other.description
    texts, pairs = makers.CORPUS[:5], ["", None, "good", None, ""]
    assert rows(other.encode(texts, pairs)) == rows(
        load_tokenizer(family_folder("roberta"), max_length=16).encode(texts, pairs)
    )


@pytest.mark.skipif(not MINILM.exists(), reason="no trained checkpoint beside this checkout")
def test_a_real_vocabulary_slow_and_fast() -> None:
    fast = load_tokenizer(MINILM, max_length=128)
    reference = load_reference_tokenizer(MINILM, max_length=128, model_type="bert")
    texts = [
        "Wall St. Bears Claw Back Into the Black (Reuters)",
        "naïve İstanbul 한국어 …½ #36;10",
        "ΑΣ ΣΑΣ",
        *makers.CORPUS[:5],
    ]
    assert fast.encode(texts[:1]).ids[:4].tolist() == [101, 2813, 2358, 1012]
    # Python lower-cases a last sigma as the language does, Rust letter by letter.
    assert probe_mismatches(fast, reference, texts) == [
        (2, "tokenized otherwise by the pure-Python tokenizer, a row at a time")
    ]


@pytest.mark.parametrize(
    ("text", "pair", "counts"),
    [
        ("a", "b", (1, 1)),
        ("", WORDS20, (0, 13)),
        (WORDS20, "", (13, 0)),
        ("", "", (0, 0)),
        (" ", " ", (0, 0)),
        (WORDS20, WORDS20, (6, 7)),
    ],
)
def test_tok_01_pairs_with_an_odd_member(
    any_tokenizer: Callable[[int], Any], text: str, pair: str, counts: tuple[int, int]
) -> None:
    tokens = any_tokenizer(16).encode([text], [pair])
    ids = tokens.ids.tolist()
    assert len(tokens) == 1
    assert [i for i, token in enumerate(ids) if token == SEP] == [counts[0] + 1, sum(counts) + 2]
    assert len(ids) <= 16
    assert tokens.type_ids.tolist() == [0] * (counts[0] + 2) + [1] * (counts[1] + 1)
    assert tokens.truncated == (20 in (len(text.split()), len(pair.split())))


def test_tok_01_no_second_text_is_a_single_text(any_tokenizer: Callable[[int], Any]) -> None:
    tokens = any_tokenizer(16).encode(["a", "a", "a"], [None, "b", None])
    alone = any_tokenizer(16).encode(["a"])
    assert np.array_equal(tokens.row(0), alone.ids)
    assert np.array_equal(tokens.row(2), alone.ids)
    assert alone.type_ids is None
    assert tokens.type_ids.sum() == 2


def test_a_limit_without_room_for_text(tokenizer_folder: Path) -> None:
    with pytest.raises(UsageError, match="--seq 2 has no room for a text: TINY adds 2 special tokens to it; give at least 3"):
        load_tokenizer(tokenizer_folder, max_length=2)
    with pytest.raises(UsageError, match="--seq 3 has no room for a pair"):
        load_tokenizer(tokenizer_folder, max_length=3).encode(["a"], ["b"])
    with pytest.raises(UsageError, match="--seq 3 has no room for a pair"):
        load_reference_tokenizer(tokenizer_folder, max_length=3, model_type="bert").encode(["a"], ["b"])


def test_tok_04_sixteen_threads_share_one_tokenizer(fast_tokenizer: Any) -> None:
    by_length = {length: replace(fast_tokenizer, max_length=length) for length in (16, 64)}
    texts = ["good news " * n for n in range(1, 40)]
    expected = {length: rows(fast.encode(texts)) for length, fast in by_length.items()}

    def calls(thread: int) -> int:
        wrong = 0
        for call in range(250):
            length = (16, 64)[(thread + call) % 2]
            some = slice(call % 30, call % 30 + 4)
            wrong += rows(by_length[length].encode(texts[some])) != expected[length][some]
        return wrong

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(calls, range(16))) == [0] * 16


ODD = [
    "\U0001f600" * 5,
    "\0abc",
    "\u200b",
    "\a\b",
    "a" * 101,
    "的人有",
    "bad [SEP] great [CLS]",
    "   ",
    "\ud800ab",
    "",
    "a\r\nb",
]


def test_tok_07_odd_characters_and_typed_special_tokens(any_tokenizer: Callable[[int], Any]) -> None:
    tokens = any_tokenizer(64).encode(ODD)
    made = rows(tokens)
    assert all(len(row) >= 2 for row in made)
    assert made[0] == made[4] == [CLS, UNK, SEP]
    assert made[2] == made[3] == made[7] == made[9] == [CLS, SEP]
    assert made[5] == [CLS, UNK, UNK, UNK, SEP]
    assert len(made[1]) == 5
    assert len(made[8]) == 4  # U+FFFD is cleaned away by a BERT
    assert tokens.type_ids is None


def test_tok_07_a_typed_separator_never_moves_the_segments(any_tokenizer: Callable[[int], Any]) -> None:
    typed = any_tokenizer(64).encode(["bad [SEP] great [CLS]"], ["good [SEP]"])
    assert typed.type_ids.tolist() == [0] * 6 + [1] * 3
    assert typed.ids.tolist().count(SEP) == 4
    cut = any_tokenizer(8).encode(["bad [SEP] great [CLS]"], ["good [SEP] good good"])
    assert cut.type_ids.tolist() == [0] * 4 + [1] * 4


def test_tok_07_the_report_lists_unknown_rows_and_mismatches(tokenizer_folder: Path, fast_tokenizer: Any) -> None:
    reference = load_reference_tokenizer(tokenizer_folder, max_length=16, model_type="bert")
    found = probe_mismatches(fast_tokenizer, reference, ["good news", *ODD], ["good", *[None] * len(ODD)])
    reasons = {position: [m.reason for m in found if m.position == position] for position in range(len(ODD) + 1)}
    assert reasons[0] == []
    assert reasons[1] == reasons[5] == reasons[6] == ["all content unknown"]
    assert reasons[3] == reasons[4] == reasons[8] == reasons[10] == ["no content"]
    assert reasons[7] == ["special tokens typed in the text"]
    assert reasons[2] == reasons[9] == reasons[11] == []


def test_tok_07_a_vocabulary_that_differs_is_found(tokenizer_folder: Path, fast_tokenizer: Any) -> None:
    reference = load_reference_tokenizer(tokenizer_folder, max_length=16, model_type="bert")
    assert isinstance(reference, BertReference)
    del reference.slow.vocab["good"]
    found = probe_mismatches(fast_tokenizer, reference, ["bad", "good", "bad good"])
    assert [m.position for m in found] == [1, 2]


def test_surrogates_are_replaced_alike(fast_tokenizer: Any, family_folder: Callable[[str], Path]) -> None:
    roberta = load_tokenizer(family_folder("roberta"), max_length=16)
    assert rows(roberta.encode(["a\ud800b"])) == rows(roberta.encode(["a\ufffdb"]))
    assert rows(roberta.encode(["\ud83d\ude00"])) == rows(roberta.encode(["\U0001f600"]))  # halves of one character
    assert rows(fast_tokenizer.encode(["good", "a\udc00"], ["\ud800bad", None])) == rows(
        fast_tokenizer.encode(["good", "a"], ["bad", None])
    )
