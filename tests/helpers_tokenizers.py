"""Tiny tokenizer folders of every family, made by the `tokenizers` library itself: config.json and tokenizer files only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertopt.tokens import Tokens

CORPUS = [
    "the team won the game in the last minute",
    "stock prices fell as the market closed",
    "a great film with a poor ending, and good music",
    "Apple sells phones; an apple is a fruit",
    "naïve café owners in São Paulo",
] * 4
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
FAMILIES = ["bert", "distilbert", "electra", "roberta", "albert", "xlm-roberta"]
CLS, SEP, UNK = 2, 3, 1  # of a BERT made here or by models
WORDS20 = "good " * 20


def save(kind: str, folder: Path, **settings: Any) -> Path:
    """A folder whose tokenizer is the family's usual kind; `settings` go to tokenizer_config.json, None leaves a key out."""
    if kind == "roberta":
        tokenizer, stated = _byte_level_bpe()
    elif kind in {"albert", "xlm-roberta"}:
        tokenizer, stated = _unigram(kind)
    else:
        tokenizer, stated = word_pieces(trained_pieces()), {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    return write(kind, folder, tokenizer, **(stated | settings))


def rows(tokens: Tokens) -> list[list[int]]:
    return [tokens.row(i).tolist() for i in range(len(tokens))]


def write(kind: str, folder: Path, tokenizer: Any, **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    stated = {key: value for key, value in settings.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")
    return folder


def word_pieces(pieces: list[str], *, lowercase: bool = True) -> Any:
    """A BERT's tokenizer with these pieces, the special tokens first."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(
        models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = _bert_template(tokenizer)
    return tokenizer


def trained_pieces() -> list[str]:
    """A vocabulary learnt from CORPUS in lower case; what it has no letters for is unknown."""
    from tokenizers import trainers

    tokenizer = word_pieces(SPECIAL)
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return sorted(tokenizer.get_vocab(), key=tokenizer.token_to_id)


def _bert_template(tokenizer: Any) -> Any:
    from tokenizers import processors

    return processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )


def _byte_level_bpe() -> tuple[Any, dict[str, Any]]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=ROBERTA_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer, {"tokenizer_class": "RobertaTokenizer"} | _roberta_names()


def _unigram(kind: str) -> tuple[Any, dict[str, Any]]:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    albert = kind == "albert"
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"] if albert else ROBERTA_SPECIAL
    tokenizer = Tokenizer(models.Unigram())
    if albert:
        tokenizer.normalizer = normalizers.Sequence(
            [
                normalizers.Replace("``", '"'),
                normalizers.Replace("''", '"'),
                normalizers.NFKD(),
                normalizers.StripAccents(),
                normalizers.Lowercase(),
            ]
        )
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if albert:
        tokenizer.post_processor = _bert_template(tokenizer)
        return tokenizer, {"do_lower_case": True, "tokenizer_class": "AlbertTokenizer", "pad_token": "<pad>"}
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer, {"tokenizer_class": "XLMRobertaTokenizer"} | _roberta_names()


def _roberta_names() -> dict[str, str]:
    return {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
