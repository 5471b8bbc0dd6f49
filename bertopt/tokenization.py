"""Texts -> Tokens: the Rust tokenizer for serving, and the deliberately naive one that the ladder starts from.

Whatever padding and truncation are stored with a tokenizer, side and length, are put aside when it is loaded: rows come
out ragged, bertopt pads on the right in its own batches, and the only limit is `max_length`. Special tokens typed in a
text ("[SEP]") become those special tokens, as in transformers; they never change a pair's segments, and
`probe_mismatches` lists the rows that hold them. Lone surrogates, which JSON can spell and UTF-8 cannot, are read as U+FFFD.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from bertopt import tokenizer_files
from bertopt.errors import ModelError, UsageError
from bertopt.tokenizer_files import effective_length
from bertopt.tokens import Tokens

if TYPE_CHECKING:
    import tokenizers

__all__ = [
    "BertReference",
    "FastTokenizer",
    "Mismatch",
    "RowAtATime",
    "Tokens",
    "check_vocabulary",
    "effective_length",
    "load_reference_tokenizer",
    "load_tokenizer",
    "probe_mismatches",
]

SLICE_ROWS = 512  # a call's Rust results take about 170 bytes a token until they are arrays: keep few of them alive


@dataclass(frozen=True, eq=False)
class FastTokenizer:
    """The Rust tokenizer with settings that never change after loading: threads share it, processes unpickle it.

    Thread-safe because nothing is ever set on `rust` again. Its pickle is tokenizer.json's text: 0.5 MB for a BERT.
    """

    rust: tokenizers.Tokenizer
    max_length: int
    pad_id: int
    name: str
    cut_left: bool = False  # truncation_side "left"
    notes: tuple[str, ...] = ()

    description: ClassVar[str] = "Rust tokenizer, whole batches"

    @property
    def vocab_size(self) -> int:
        """One more than the largest id that can come out; ids may have holes, so this is not the number of tokens."""
        return 1 + max(self.rust.get_vocab(with_added_tokens=True).values())

    def encode(self, texts: Sequence[str], pairs: Sequence[str | None] | None = None) -> Tokens:
        """Tokenize texts, or texts with second texts (None: none for that row; "" is a second text like any other).

        Rows of more than `max_length` tokens are truncated, pairs on their longer side first. UsageError where
        max_length has no room for a pair.
        """
        if pairs is not None:
            _check_room(self.rust.num_special_tokens_to_add(True), self.max_length, self.name, "a pair")
        parts = [
            self._slice(texts[start : start + SLICE_ROWS], pairs and pairs[start : start + SLICE_ROWS])
            for start in range(0, len(texts), SLICE_ROWS)
        ]
        return Tokens.concat(parts)

    def _slice(self, texts: Sequence[str], pairs: Sequence[str | None] | None) -> Tokens:
        inputs: list[Any] = list(texts)
        if pairs is not None:
            inputs = [text if pair is None else (text, pair) for text, pair in zip(texts, pairs, strict=True)]
        try:
            encodings = self.rust.encode_batch_fast(inputs)
        except TypeError:  # what lone surrogates raise
            inputs = [_well_formed(i) if isinstance(i, str) else (_well_formed(i[0]), _well_formed(i[1])) for i in inputs]
            encodings = self.rust.encode_batch_fast(inputs)
        # All that holds the interpreter lock is here. Of the ways from lists to int32, np.fromiter over the chained rows
        # (in Tokens.from_rows) is the fastest: python benchmarks/tokenizing.py --conversions
        rows = [encoding.ids for encoding in encodings]
        type_rows = None if pairs is None else [encoding.type_ids for encoding in encodings]
        cut = np.fromiter(map(len, rows), np.int64, len(rows)) > self.max_length
        for position in np.flatnonzero(cut):
            for surplus in self._surplus(encodings[position]):
                del rows[position][surplus]
                if type_rows is not None:
                    del type_rows[position][surplus]
        return Tokens.from_rows(rows, type_rows, cut)

    def _surplus(self, encoding: Any) -> list[slice]:
        """What truncation takes out of one row, the last first.

        Not left to Rust, whose truncation also builds every overflowing window, for pairs every combination of them:
        100 pairs of 500 and 500 tokens cut to 16 took 30 s there, and 0.2 s so.
        """
        sequences = encoding.sequence_ids  # 0, 1, or None for the special tokens that were added
        counts = sequences.count(0), sequences.count(1)
        kept = longest_first(*counts, self.max_length - (len(sequences) - sum(counts)))
        found = []
        for sequence in (1, 0):
            if counts[sequence] > kept[sequence]:
                start = sequences.index(sequence)
                end = start + counts[sequence]
                found.append(slice(start, end - kept[sequence]) if self.cut_left else slice(start + kept[sequence], end))
        return found


class RowAtATime(FastTokenizer):
    """The Rust tokenizer called once per row: the naive service of models that have no pure-Python tokenizer here."""

    description: ClassVar[str] = "Rust tokenizer, a row at a time"

    def encode(self, texts: Sequence[str], pairs: Sequence[str | None] | None = None) -> Tokens:
        """As FastTokenizer.encode."""
        encode = super().encode
        rows = zip(texts, pairs or [None] * len(texts), strict=True)
        return Tokens.concat([encode([text], None if pair is None else [pair]) for text, pair in rows])


@dataclass(frozen=True, eq=False)
class BertReference:
    """transformers' pure-Python BERT tokenizer, a row at a time: slow on purpose, and the ids that others are held to.

    Pairs are truncated as the Rust tokenizer does it, which is what transformers 5 serves; the pure-Python class itself
    gives an odd budget's last token to the first text, Rust to the second.
    """

    slow: Any
    max_length: int
    pad_id: int
    name: str
    cut_left: bool = False
    notes: tuple[str, ...] = ()

    description: ClassVar[str] = "pure-Python tokenizer, a row at a time"

    def encode(self, texts: Sequence[str], pairs: Sequence[str | None] | None = None) -> Tokens:
        """As FastTokenizer.encode."""
        if pairs is not None:
            _check_room(3, self.max_length, self.name, "a pair")
        rows, type_rows, cut = [], [], []
        for text, pair in zip(texts, pairs or [None] * len(texts), strict=True):
            first, second = self._ids(text), [] if pair is None else self._ids(pair)
            kept = longest_first(len(first), len(second), self.max_length - (2 if pair is None else 3))
            cut.append(len(first) + len(second) > sum(kept))
            first, second = self._end(first, kept[0]), self._end(second, kept[1])
            rows.append(self.slow.build_inputs_with_special_tokens(first, None if pair is None else second))
            type_rows.append([0] * (len(first) + 2) + ([] if pair is None else [1] * (len(second) + 1)))
        return Tokens.from_rows(rows, type_rows, np.array(cut, np.bool_))

    def _ids(self, text: str) -> list[int]:
        return self.slow.convert_tokens_to_ids(self.slow.tokenize(_well_formed(text)))

    def _end(self, ids: list[int], kept: int) -> list[int]:
        return ids[len(ids) - kept :] if self.cut_left else ids[:kept]


class Mismatch(NamedTuple):
    """Something about one row's tokens that the report should name; `position` counts from 0."""

    position: int
    reason: str


def load_tokenizer(
    folder: Path | str, *, max_length: int, model_type: str | None = None, name: str | None = None
) -> FastTokenizer:
    """The Rust tokenizer of a checkpoint folder; rows will have at most `max_length` tokens.

    tokenizer.json is read with `tokenizers` alone; a folder with only a vocabulary goes through transformers, which
    looks at config.json for its class, and at `model_type` where there is none.

    Raises ModelError where there is no tokenizer, or two files that disagree on casing, and UsageError where
    max_length has no room for a text. `name` is what the sentences call the model: the folder's name by default.
    """
    folder = Path(folder)
    name = name or folder.name
    stored = tokenizer_files.read(folder, model_type)
    _check_room(stored.rust.num_special_tokens_to_add(False), max_length, name, "a text")
    return FastTokenizer(stored.rust, max_length, stored.pad_id, name, stored.cut_left, stored.notes)


def load_reference_tokenizer(
    folder: Path | str, *, max_length: int, model_type: str | None, name: str | None = None
) -> BertReference | RowAtATime:
    """The naive tokenizer: pure Python for a BERT, else the Rust one a row at a time; `.description` says which.

    Vocabulary, special tokens and casing are those of `load_tokenizer`'s, whose errors it raises.
    """
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer

    fast = load_tokenizer(folder, max_length=max_length, model_type=model_type, name=name)
    model, normalizer = fast.rust.model, fast.rust.normalizer
    if model_type != "bert" or not isinstance(model, WordPiece) or not isinstance(normalizer, BertNormalizer):
        return RowAtATime(fast.rust, max_length, fast.pad_id, fast.name, fast.cut_left, fast.notes)

    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    pieces = {i: piece for piece, i in fast.rust.get_vocab(with_added_tokens=False).items()}
    with tempfile.TemporaryDirectory() as scratch:
        vocabulary = Path(scratch, "vocab.txt")
        lines = [pieces.get(i, f"[no token {i}]") for i in range(max(pieces) + 1)]
        vocabulary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        slow: Any = BertTokenizerLegacy(
            str(vocabulary),
            do_lower_case=normalizer.lowercase,
            strip_accents=normalizer.strip_accents,
            tokenize_chinese_chars=normalizer.handle_chinese_chars,
            unk_token=model.unk_token,
            added_tokens_decoder=fast.rust.get_added_tokens_decoder(),
            **tokenizer_files.special_tokens(Path(folder)),
        )
    slow.wordpiece_tokenizer.max_input_chars_per_word = model.max_input_chars_per_word
    return BertReference(slow, max_length, fast.pad_id, fast.name, fast.cut_left, fast.notes)


def check_vocabulary(tokenizer: FastTokenizer, vocab_size: int) -> None:
    """ModelError where the tokenizer can give ids that the embedding table of `vocab_size` rows does not have."""
    if tokenizer.vocab_size > vocab_size:
        raise ModelError(
            f"the tokenizer of {tokenizer.name} has ids up to {tokenizer.vocab_size - 1}, "
            f"and the embedding table has {vocab_size} rows: one of them belongs to another model"
        )


def probe_mismatches(
    fast: FastTokenizer,
    reference: BertReference | RowAtATime,
    texts: Sequence[str],
    pairs: Sequence[str | None] | None = None,
) -> list[Mismatch]:
    """Rows whose ids differ between the two tokenizers, hold nothing known, or hold special tokens that were typed."""
    tokens, expected = fast.encode(texts, pairs), reference.encode(texts, pairs)
    unknown = _unknown_id(fast.rust)
    added = [i for i, token in fast.rust.get_added_tokens_decoder().items() if token.special and i != unknown]
    found = []
    for position in range(len(tokens)):
        ids = tokens.row(position)
        special = np.isin(ids, added)
        paired = pairs is not None and pairs[position] is not None
        content = ids[~special]
        if not np.array_equal(ids, expected.row(position)):
            found.append(Mismatch(position, f"tokenized otherwise by the {reference.description}"))
        if len(content) == 0:
            found.append(Mismatch(position, "no content"))
        elif unknown is not None and (content == unknown).all():
            found.append(Mismatch(position, "all content unknown"))
        if special.sum() > fast.rust.num_special_tokens_to_add(paired):
            found.append(Mismatch(position, "special tokens typed in the text"))
    return found


def longest_first(first: int, second: int, budget: int) -> tuple[int, int]:
    """Tokens kept of two texts of these many tokens in a row with room for `budget`; a single text has `second` 0.

    The longer one is cut to the shorter, then both alike; of an odd budget the second text gets the last token
    (truncate_encodings in the Rust library).
    """
    if first + second <= budget:
        return first, second
    short = min(first, second, budget // 2)
    return (budget - short, short) if first > second else (short, budget - short)


def _check_room(special: int, max_length: int, name: str, what: str) -> None:
    if max_length <= special:
        raise UsageError(
            f"--seq {max_length} has no room for {what}: {name} adds {special} special tokens to it; "
            f"give at least {special + 1}"
        )


def _unknown_id(rust: tokenizers.Tokenizer) -> int | None:
    model: Any = rust.model
    token = getattr(model, "unk_token", None)
    if token is not None:
        return rust.token_to_id(token)
    return json.loads(rust.to_str())["model"].get("unk_id")  # a unigram model keeps a number, and shows it nowhere else


def _well_formed(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
