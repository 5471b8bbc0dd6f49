"""A checkpoint folder's tokenizer files: which are read, what they state, and where they contradict each other."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertopt.errors import ModelError, UsageError

if TYPE_CHECKING:
    import tokenizers

CASE_PROBE = "Apple naïve Ünï 的人"
DEFAULT_CASING = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}  # transformers' for a BERT
GENERIC_CLASSES = {"PreTrainedTokenizerFast", "TokenizersBackend"}  # they take tokenizer.json as it is


@dataclass(frozen=True)
class Stored:
    """The Rust tokenizer of a folder, without the padding and truncation that were stored with it."""

    rust: tokenizers.Tokenizer
    pad_id: int
    cut_left: bool
    notes: tuple[str, ...]


def read(folder: Path, model_type: str | None = None) -> Stored:
    """See `bertopt.tokenization.load_tokenizer`."""
    settings = _json(folder / "tokenizer_config.json")
    whole = folder / "tokenizer.json"
    if whole.exists():
        rust = _from_json(whole)
        notes = _check_casing(rust, whole, settings)
    else:
        rust = _through_transformers(folder, model_type)
        notes = ()
    side = settings.get("truncation_side") or (rust.truncation or {}).get("direction")
    pad_id = _pad_id(rust, folder, settings)
    rust.no_padding()
    rust.no_truncation()
    return Stored(rust, pad_id, side == "left", notes)


def special_tokens(folder: Path) -> dict[str, str]:
    """The special tokens that tokenizer_config.json names, by role: cls_token, sep_token, pad_token, mask_token."""
    settings = _json(folder / "tokenizer_config.json")
    roles = ("cls_token", "sep_token", "pad_token", "mask_token")
    return {role: _content(settings[role]) for role in roles if settings.get(role)}


def effective_length(folder: Path | str, requested: int | None, max_positions: int, *, name: str | None = None) -> int:
    """Tokens that a row may have: the smallest of the tokenizer's own limit, usable positions and `--seq`.

    Many tokenizers state no limit, or 1e30 for none. UsageError where --seq is no length or beyond the positions.
    """
    if requested is not None and requested < 1:
        raise UsageError(f"--seq {requested} is no length: give 1 to {max_positions}")
    if requested is not None and requested > max_positions:
        raise UsageError(
            f"--seq {requested} is more than the {max_positions} positions of {name or Path(folder).name}: "
            f"give --seq {max_positions} or less"
        )
    stated = _json(Path(folder) / "tokenizer_config.json").get("model_max_length")
    own = stated if isinstance(stated, (int, float)) and stated >= 1 else max_positions
    return int(min(own, max_positions, requested or max_positions))


def _from_json(path: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the only class that the library raises
        raise ModelError(f"{path} is no tokenizer: {error}") from None


def _through_transformers(folder: Path, model_type: str | None) -> tokenizers.Tokenizer:
    if not any(path for pattern in ("vocab.*", "*.model") for path in folder.glob(pattern)):
        raise ModelError(f"{folder} has no tokenizer: neither tokenizer.json nor a vocabulary (vocab.txt, vocab.json, *.model)")
    from transformers import AutoTokenizer

    named = {} if (folder / "config.json").exists() or model_type is None else {"tokenizer_type": model_type}
    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, **named)
        backend = loaded.backend_tokenizer
    except (AttributeError, ImportError, KeyError, OSError, TypeError, ValueError) as error:
        raise ModelError(f"{folder}: transformers makes no Rust tokenizer of its vocabulary: {error}") from error
    return backend


def _check_casing(rust: tokenizers.Tokenizer, whole: Path, settings: dict[str, Any]) -> tuple[str, ...]:
    """Notes on casing; ModelError where tokenizer.json and tokenizer_config.json say opposite things.

    transformers builds the normalizer of these classes anew from tokenizer_config.json, with its own defaults where that
    says nothing, and drops tokenizer.json's: the ids would depend on who reads the folder. Other classes ignore the flags.
    """
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer

    kind = settings.get("tokenizer_class") or ""
    if kind in GENERIC_CLASSES or not (isinstance(rust.model, WordPiece) or kind.startswith(("Albert", "DebertaV2"))):
        return ()
    normalizer = rust.normalizer
    lowers = normalizer is not None and normalizer.normalize_str("A").endswith("a")
    stated = {flag: settings[flag] for flag in DEFAULT_CASING if settings.get(flag) is not None}
    if isinstance(normalizer, BertNormalizer):
        own = {
            "do_lower_case": normalizer.lowercase,
            "strip_accents": normalizer.strip_accents,
            "tokenize_chinese_chars": normalizer.handle_chinese_chars,
        }
        followed = _normalized(own)
        contradicted = _normalized(own | stated) != followed
        unsaid = _normalized(DEFAULT_CASING | stated) != followed
    else:
        contradicted = stated.get("do_lower_case", lowers) != lowers
        unsaid = False
    does = "lower-cases" if lowers else "keeps case"
    if contradicted:
        raise ModelError(
            f"{whole} {does}, and tokenizer_config.json beside it says {json.dumps(stated)}: "
            "make the two agree on how the model was trained, or its ids depend on which of them is read"
        )
    if unsaid:
        return (
            f"tokenizer: tokenizer.json {does} and is followed; transformers would treat "
            "case, accents or Chinese characters otherwise, since tokenizer_config.json does not state them",
        )
    return ()


def _normalized(casing: dict[str, Any]) -> str:
    from tokenizers.normalizers import BertNormalizer

    return BertNormalizer(
        lowercase=casing["do_lower_case"],
        strip_accents=casing["strip_accents"],
        handle_chinese_chars=casing["tokenize_chinese_chars"],
    ).normalize_str(CASE_PROBE)


def _pad_id(rust: tokenizers.Tokenizer, folder: Path, settings: dict[str, Any]) -> int:
    stated = settings.get("pad_token") or _json(folder / "special_tokens_map.json").get("pad_token")
    named = rust.token_to_id(_content(stated)) if stated else None
    stored = (rust.padding or {}).get("pad_id")
    configured = _json(folder / "config.json").get("pad_token_id")
    return next((pad_id for pad_id in (named, stored, configured) if pad_id is not None), 0)


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def _json(path: Path) -> dict[str, Any]:
    """A JSON object, empty where there is no such file."""
    if not path.exists():
        return {}
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is no JSON: {error}") from None
    if not isinstance(read, dict):
        raise ModelError(f"{path} is no JSON object")
    return read
