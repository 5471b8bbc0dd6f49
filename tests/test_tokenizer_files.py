"""What a folder's tokenizer files state: vocabulary, limit, padding, casing, added tokens; where they contradict each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertopt.errors import ModelError, UsageError
from bertopt.tokenization import check_vocabulary, effective_length, load_reference_tokenizer, load_tokenizer
from tests import helpers_tokenizers as makers
from tests import models
from tests.helpers_tokenizers import CLS, SEP, WORDS20, rows


def change_json(folder: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    read = json.loads((folder / name).read_text())
    change(read)
    (folder / name).write_text(json.dumps(read))


@pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta"])
def test_a_folder_with_only_a_vocabulary(family_folder: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    whole = load_tokenizer(family_folder(kind), max_length=16)
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((family_folder(kind) / name).read_bytes())
    if kind == "roberta":
        whole.rust.model.save(str(tmp_path))
    else:
        pieces = sorted(whole.rust.get_vocab(), key=whole.rust.token_to_id)
        (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    fast = load_tokenizer(tmp_path, max_length=16, model_type=kind)
    texts, pairs = makers.CORPUS[:4], ["", "good music", None, WORDS20]
    assert rows(fast.encode(texts, pairs)) == rows(whole.encode(texts, pairs))
    assert fast.pad_id == whole.pad_id


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


def test_tok_09_a_class_that_reads_no_flag_is_left_alone(tmp_path: Path, family_folder: Callable[[str], Path]) -> None:
    folder = cased(tmp_path / "generic", json_lowers=False, do_lower_case=True, tokenizer_class="PreTrainedTokenizerFast")
    assert load_tokenizer(folder, max_length=16).encode(["Apple"]).ids.tolist() == [CLS, 5, SEP]
    makers.save("roberta", tmp_path / "roberta", do_lower_case=True)
    load_tokenizer(tmp_path / "roberta", max_length=16)


def test_tok_09_albert(tmp_path: Path) -> None:
    folder = makers.save("albert", tmp_path, do_lower_case=False)
    with pytest.raises(ModelError, match=r"lower-cases, and tokenizer_config\.json"):
        load_tokenizer(folder, max_length=16)


def test_more_ids_than_the_embedding_table(tokenizer_folder: Path, fast_tokenizer: Any, tmp_path: Path) -> None:
    check_vocabulary(fast_tokenizer, 100)
    with pytest.raises(ModelError, match="TINY has ids up to 99, and the embedding table has 90 rows"):
        check_vocabulary(fast_tokenizer, 90)
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


def test_folders_without_a_readable_tokenizer(tmp_path: Path, tokenizer_folder: Path) -> None:
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_tokenizer(tmp_path, max_length=16)
    (tmp_path / "tokenizer.json").write_bytes((tokenizer_folder / "tokenizer.json").read_bytes()[:200])
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
