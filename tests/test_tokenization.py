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

from bertopt.errors import ModelError, UsageError
from bertopt.tokenization import (
    BertReference,
    RowAtATime,
    Tokens,
    check_vocabulary,
    effective_length,
    load_reference_tokenizer,
    load_tokenizer,
    longest_first,
    probe_mismatches,
)
from tests import helpers_tokenizers as makers
from tests import models

CLS, SEP, UNK = 2, 3, 1  # of a BERT made by models or makers
WORDS20 = "good " * 20
MINILM = Path(__file__).parents[2] / "shared" / "models" / "minilm-agnews"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TINY's tokenizer: whole words, letters, punctuation; no limit of its own."""
    folder = tmp_path_factory.mktemp("made") / "TINY"
    models.save_tokenizer("bert", folder, max_length=None)
    return folder


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = makers.save(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return folder


@pytest.fixture(scope="module", params=["fast", "reference"])
def any_tokenizer(request: pytest.FixtureRequest, tiny: Path) -> Callable[[int], Any]:
    """The serving tokenizer and the naive one, which answer alike."""
    if request.param == "fast":
        return lambda max_length: load_tokenizer(tiny, max_length=max_length)
    return lambda max_length: load_reference_tokenizer(tiny, max_length=max_length, model_type="bert")


def rows(tokens: Tokens) -> list[list[int]]:
    return [tokens.row(i).tolist() for i in range(len(tokens))]


def change_json(folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    read = json.loads((folder / name).read_text())
    change(read)
    (folder / name).write_text(json.dumps(read))


# ---------------------------------------------------------------------------------------------- Tokens

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


def test_no_texts_make_no_rows(any_tokenizer: Callable[[int], Any]) -> None:
    tokens = any_tokenizer(16).encode([])
    assert (len(tokens), tokens.offsets.tolist(), tokens.ids.dtype) == (0, [0], np.int32)


# ---------------------------------------------------------------------------------------------- encode


@pytest.mark.parametrize("kind", makers.FAMILIES)
def test_a_call_with_all_texts_equals_a_call_for_each(family: Callable[[str], Path], kind: str) -> None:
    fast = load_tokenizer(family(kind), max_length=12)
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
def test_ids_are_those_of_transformers(family: Callable[[str], Path], kind: str) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(family(kind)))
    fast = load_tokenizer(family(kind), max_length=16)
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
def test_any_text_is_encoded_within_the_limit(tiny_fast: Any, pairs: list[tuple[str, str | None]], max_length: int) -> None:
    fast = replace(tiny_fast, max_length=max_length)
    tokens = fast.encode([text for text, _ in pairs], [pair for _, pair in pairs])
    assert len(tokens) == len(pairs)
    for row, (_, pair) in zip(rows(tokens), pairs, strict=True):
        assert (2 if pair is None else 3) <= len(row) <= max_length
        assert (row[0], row[-1]) == (CLS, SEP)


@pytest.fixture(scope="module")
def tiny_fast(tiny: Path) -> Any:
    return load_tokenizer(tiny, max_length=16)


def test_it_travels_to_another_process_small(tiny_fast: Any, tiny: Path) -> None:
    sent = pickle.dumps(tiny_fast)
    assert len(sent) < (tiny / "tokenizer.json").stat().st_size + 1000
    assert rows(pickle.loads(sent).encode(["good news"])) == rows(tiny_fast.encode(["good news"]))
    reference = load_reference_tokenizer(tiny, max_length=16, model_type="bert")
    assert rows(pickle.loads(pickle.dumps(reference)).encode(["good news"])) == rows(tiny_fast.encode(["good news"]))


def test_reading_tokenizer_json_needs_no_transformers(tiny: Path) -> None:
    program = (
        "import sys; sys.modules.update(transformers=None, torch=None)\n"
        "from bertopt.tokenization import load_tokenizer\n"
        f"print(load_tokenizer({str(tiny)!r}, max_length=16).encode(['good news']).ids.tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    assert json.loads(done.stdout) == load_tokenizer(tiny, max_length=16).encode(["good news"]).ids.tolist()


@pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta"])
def test_a_folder_with_only_a_vocabulary(family: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    whole = load_tokenizer(family(kind), max_length=16)
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((family(kind) / name).read_bytes())
    if kind == "roberta":
        whole.rust.model.save(str(tmp_path))
    else:
        pieces = sorted(whole.rust.get_vocab(), key=whole.rust.token_to_id)
        (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    fast = load_tokenizer(tmp_path, max_length=16, model_type=kind)
    texts, pairs = makers.CORPUS[:4], ["", "good music", None, WORDS20]
    assert rows(fast.encode(texts, pairs)) == rows(whole.encode(texts, pairs))
    assert fast.pad_id == whole.pad_id


def test_the_naive_tokenizer_says_what_it_is(tiny: Path, family: Callable[[str], Path]) -> None:
    bert = load_reference_tokenizer(tiny, max_length=16, model_type="bert")
    other = load_reference_tokenizer(family("roberta"), max_length=16, model_type="roberta")
    assert isinstance(bert, BertReference)
    assert isinstance(other, RowAtATime)
    assert "Python" in bert.description
    assert "a row at a time" in other.description
    texts, pairs = makers.CORPUS[:5], ["", None, "good", None, ""]
    assert rows(other.encode(texts, pairs)) == rows(load_tokenizer(family("roberta"), max_length=16).encode(texts, pairs))


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


# ---------------------------------------------------------------------------------------------- faults from the field


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


@pytest.mark.parametrize("stated", [None, int(1e30), 1e30, 512])
def test_tok_02_a_tokenizer_without_a_limit(tmp_path: Path, stated: float | None) -> None:
    folder = tmp_path / "TINY"
    models.save_tokenizer("bert", folder, max_length=stated)  # type: ignore[arg-type]
    assert effective_length(folder, None, 64) == 64
    assert effective_length(folder, 64, 64) == 64
    assert effective_length(folder, 16, 64) == 16
    with pytest.raises(UsageError, match="--seq 128 is more than the 64 positions of TINY"):
        effective_length(folder, 128, 64)
    tokens = load_tokenizer(folder, max_length=64).encode(["good " * 500, "good"])
    assert tokens.lengths.tolist() == [64, 3]
    assert tokens.truncated == 1


def test_tok_02_the_tokenizers_own_limit_counts(tmp_path: Path) -> None:
    models.save_tokenizer("bert", tmp_path, max_length=32)
    assert effective_length(tmp_path, None, 64) == 32
    assert effective_length(tmp_path, 48, 64) == 32
    assert effective_length(tmp_path, 8, 64) == 8
    with pytest.raises(UsageError, match="--seq 0"):
        effective_length(tmp_path, 0, 64)


def test_a_limit_without_room_for_text(tiny: Path) -> None:
    with pytest.raises(UsageError, match="--seq 2 has no room for a text: TINY adds 2 special tokens to it; give at least 3"):
        load_tokenizer(tiny, max_length=2)
    with pytest.raises(UsageError, match="--seq 3 has no room for a pair"):
        load_tokenizer(tiny, max_length=3).encode(["a"], ["b"])
    with pytest.raises(UsageError, match="--seq 3 has no room for a pair"):
        load_reference_tokenizer(tiny, max_length=3, model_type="bert").encode(["a"], ["b"])


def test_tok_04_sixteen_threads_share_one_tokenizer(tiny_fast: Any) -> None:
    by_length = {length: replace(tiny_fast, max_length=length) for length in (16, 64)}
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


@pytest.mark.parametrize("side", ["Right", "Left"])
def test_tok_05_stored_padding_and_truncation_are_put_aside(tmp_path: Path, side: str) -> None:
    models.save_tokenizer("bert", tmp_path)
    padding = {"strategy": {"Fixed": 32}, "direction": side, "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0}
    truncation = {"max_length": 40, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    change_json(tmp_path, "tokenizer.json", lambda j: j.update(padding=padding | {"pad_token": "[PAD]"}, truncation=truncation))
    for tokenizer in (
        load_tokenizer(tmp_path, max_length=64),
        load_reference_tokenizer(tmp_path, max_length=64, model_type="bert"),
    ):
        tokens = tokenizer.encode(["good bad great", "good " * 50])
        assert tokens.lengths.tolist() == [5, 52]
        assert tokens.truncated == 0
        assert tokens.ids[0] == CLS


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


def test_tok_07_the_report_lists_unknown_rows_and_mismatches(tiny: Path, tiny_fast: Any) -> None:
    reference = load_reference_tokenizer(tiny, max_length=16, model_type="bert")
    found = probe_mismatches(tiny_fast, reference, ["good news", *ODD], ["good", *[None] * len(ODD)])
    reasons = {position: [m.reason for m in found if m.position == position] for position in range(len(ODD) + 1)}
    assert reasons[0] == []
    assert reasons[1] == reasons[5] == reasons[6] == ["all content unknown"]
    assert reasons[3] == reasons[4] == reasons[8] == reasons[10] == ["no content"]
    assert reasons[7] == ["special tokens typed in the text"]
    assert reasons[2] == reasons[9] == reasons[11] == []


def test_tok_07_a_vocabulary_that_differs_is_found(tiny: Path, tiny_fast: Any) -> None:
    reference = load_reference_tokenizer(tiny, max_length=16, model_type="bert")
    assert isinstance(reference, BertReference)
    del reference.slow.vocab["good"]
    found = probe_mismatches(tiny_fast, reference, ["bad", "good", "bad good"])
    assert [m.position for m in found] == [1, 2]


def test_surrogates_are_replaced_alike(tiny_fast: Any, family: Callable[[str], Path]) -> None:
    roberta = load_tokenizer(family("roberta"), max_length=16)
    assert rows(roberta.encode(["a\ud800b"])) == rows(roberta.encode(["a\ufffdb"]))
    assert rows(roberta.encode(["\ud83d\ude00"])) == rows(roberta.encode(["\U0001f600"]))  # halves of one character
    assert rows(tiny_fast.encode(["good", "a\udc00"], ["\ud800bad", None])) == rows(
        tiny_fast.encode(["good", "a"], ["bad", None])
    )


def cased(folder: Path, *, json_lowers: bool, **settings: Any) -> Path:
    """ "Apple" and "apple" are tokens 5 and 6, "naive" and "naïve" 7 and 8."""
    pieces = [*makers.SPECIAL, "Apple", "apple", "naive", "naïve"]
    return makers.write("bert", folder, makers.word_pieces(pieces, lowercase=json_lowers), **settings)


@pytest.mark.parametrize("json_lowers", [True, False])
def test_tok_09_files_that_disagree_on_casing_stop(tmp_path: Path, json_lowers: bool) -> None:
    folder = cased(tmp_path, json_lowers=json_lowers, do_lower_case=not json_lowers, tokenizer_class="BertTokenizer")
    with pytest.raises(ModelError, match=r"tokenizer\.json (lower-cases|keeps case), and tokenizer_config\.json"):
        load_tokenizer(folder, max_length=16)
    with pytest.raises(ModelError, match="do_lower_case"):
        load_reference_tokenizer(folder, max_length=16, model_type="bert")


@pytest.mark.parametrize(("lowers", "ids"), [(False, [5, 6, 8]), (True, [6, 6, 7])])
def test_tok_09_files_that_agree_give_one_answer_everywhere(tmp_path: Path, lowers: bool, ids: list[int]) -> None:
    from transformers import AutoTokenizer

    folder = cased(tmp_path, json_lowers=lowers, do_lower_case=lowers, tokenizer_class="BertTokenizer")
    text = "Apple apple naïve"
    fast = load_tokenizer(folder, max_length=16)
    assert fast.notes == ()
    assert fast.encode([text]).ids.tolist() == [CLS, *ids, SEP]
    assert load_reference_tokenizer(folder, max_length=16, model_type="bert").encode([text]).ids.tolist() == [CLS, *ids, SEP]
    assert AutoTokenizer.from_pretrained(str(folder))(text)["input_ids"] == [CLS, *ids, SEP]


def test_tok_09_casing_that_is_not_stated_is_noted(tmp_path: Path) -> None:
    fast = load_tokenizer(cased(tmp_path, json_lowers=False), max_length=16)
    assert fast.encode(["Apple"]).ids.tolist() == [CLS, 5, SEP]
    assert "keeps case" in fast.notes[0]


def test_tok_09_accents_count_too(tmp_path: Path) -> None:
    folder = cased(tmp_path, json_lowers=True, do_lower_case=True, strip_accents=False, tokenizer_class="BertTokenizer")
    with pytest.raises(ModelError, match='"strip_accents": false'):
        load_tokenizer(folder, max_length=16)


def test_tok_09_a_class_that_reads_no_flag_is_left_alone(tmp_path: Path, family: Callable[[str], Path]) -> None:
    folder = cased(tmp_path / "generic", json_lowers=False, do_lower_case=True, tokenizer_class="PreTrainedTokenizerFast")
    assert load_tokenizer(folder, max_length=16).encode(["Apple"]).ids.tolist() == [CLS, 5, SEP]
    makers.save("roberta", tmp_path / "roberta", do_lower_case=True)
    load_tokenizer(tmp_path / "roberta", max_length=16)


def test_tok_09_albert(tmp_path: Path) -> None:
    folder = makers.save("albert", tmp_path, do_lower_case=False)
    with pytest.raises(ModelError, match=r"lower-cases, and tokenizer_config\.json"):
        load_tokenizer(folder, max_length=16)


# ---------------------------------------------------------------------------------------------- other bad input


def test_more_ids_than_the_embedding_table(tiny: Path, tiny_fast: Any, tmp_path: Path) -> None:
    check_vocabulary(tiny_fast, 100)
    with pytest.raises(ModelError, match="TINY has ids up to 99, and the embedding table has 90 rows"):
        check_vocabulary(tiny_fast, 90)
    models.save_tokenizer("bert", tmp_path)
    entry = {"id": 105, "content": "<url>", "single_word": False, "lstrip": False, "rstrip": False}
    change_json(tmp_path, "tokenizer.json", lambda j: j["added_tokens"].append(entry | {"normalized": False, "special": False}))
    with pytest.raises(ModelError, match="ids up to"):
        check_vocabulary(load_tokenizer(tmp_path, max_length=16), 100)


def test_added_tokens_are_the_same_in_both(tmp_path: Path) -> None:
    models.save_tokenizer("bert", tmp_path)
    entry = {"id": 100, "content": "<url>", "single_word": False, "lstrip": False, "rstrip": False}
    change_json(tmp_path, "tokenizer.json", lambda j: j["added_tokens"].append(entry | {"normalized": False, "special": False}))
    fast = load_tokenizer(tmp_path, max_length=16)
    reference = load_reference_tokenizer(tmp_path, max_length=16, model_type="bert")
    assert fast.encode(["good <url> news"]).ids.tolist()[2] == 100
    assert rows(reference.encode(["good <url> news"])) == rows(fast.encode(["good <url> news"]))


def test_folders_without_a_readable_tokenizer(tmp_path: Path, tiny: Path) -> None:
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_tokenizer(tmp_path, max_length=16)
    (tmp_path / "tokenizer.json").write_bytes((tiny / "tokenizer.json").read_bytes()[:200])
    with pytest.raises(ModelError, match=r"tokenizer\.json is no tokenizer"):
        load_tokenizer(tmp_path, max_length=16)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json is no JSON"):
        load_tokenizer(tmp_path, max_length=16)


@pytest.mark.parametrize(
    ("settings", "config", "pad_id"),
    [
        ({"pad_token": "[MASK]"}, {}, 4),
        ({"pad_token": {"content": "[MASK]"}}, {}, 4),
        ({}, {"pad_token_id": 7}, 7),
        ({"pad_token": "never heard of"}, {"pad_token_id": 7}, 7),
        ({}, {}, 0),
    ],
)
def test_pad_id(tmp_path: Path, settings: dict[str, Any], config: dict[str, Any], pad_id: int) -> None:
    models.save_tokenizer("bert", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_tokenizer(tmp_path, max_length=16).pad_id == pad_id
