"""The body of a request -> what is wished for, or why it cannot be."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from bertopt.serve.tickets import Refusal

ONE, MANY = ("text", "text_pair"), ("texts", "text_pairs")
FIELDS = {*ONE, *MANY, "truncate", "timeout_ms"}
SHORT = 'send {"text": "..."}, or {"texts": ["...", "..."]} for many'


@dataclass(frozen=True)
class Wish:
    texts: list[str]
    pairs: list[str | None] | None
    truncate: bool
    timeout_s: float


def parse(raw: bytes, longest_s: float) -> Wish | Refusal:
    """One text or many, with second texts or without. `timeout_ms` is at most `longest_s`.

    A list is always many texts, never a pair: a pair is `text` with `text_pair`, or `texts` with `text_pairs`, where null
    is no second text and "" is an empty one.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):  # of no JSON, of no UTF-8, of brackets without end
        return Refusal(400, "no_json", f"the body is no JSON: {SHORT}")
    if not isinstance(body, dict):
        return _wrong(f"the body is a {_kind(body)}, and an object is wanted: {SHORT}")
    if unknown := sorted(body.keys() - FIELDS):
        return _wrong(f"there is no field {unknown[0][:40]!r}; there are {', '.join(sorted(FIELDS))}")
    truncate, timeout = body.get("truncate", True), body.get("timeout_ms", longest_s * 1e3)
    if not isinstance(truncate, bool):
        return _wrong(f"truncate is a {_kind(truncate)}, and true or false is wanted")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        return _wrong("timeout_ms is no positive number of milliseconds")
    texts = _texts(body)
    if isinstance(texts, Refusal):
        return texts
    return Wish(*texts, truncate, min(timeout / 1e3, longest_s))


def _texts(body: dict[str, Any]) -> tuple[list[str], list[str | None] | None] | Refusal:
    one, many = [name for name in ONE if name in body], [name for name in MANY if name in body]
    if one and many:
        return _wrong(f"{one[0]} and {many[0]} exclude each other")
    if one:
        text, pair = body.get("text"), body.get("text_pair")
        if not isinstance(text, str):
            return _wrong(f"text is a {_kind(text)}, and a string is wanted: {SHORT}")
        if pair is not None and not isinstance(pair, str):
            return _wrong(f"text_pair is a {_kind(pair)}, and a string or null is wanted")
        return [text], None if pair is None else [pair]
    texts, pairs = body.get("texts"), body.get("text_pairs")
    if not isinstance(texts, list) or not texts:
        return _wrong(f"texts is {'an empty list' if texts == [] else f'a {_kind(texts)}'}, and texts are wanted: {SHORT}")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            hint = ": pairs are given as text_pairs beside texts" if isinstance(text, list) else ""
            return _wrong(f"text {position + 1} is a {_kind(text)}, and a string is wanted{hint}", position)
    if pairs is None:
        return texts, None
    if not isinstance(pairs, list) or len(pairs) != len(texts):
        return _wrong(f"text_pairs is no list of {len(texts)}, one for each of the texts")
    for position, pair in enumerate(pairs):
        if pair is not None and not isinstance(pair, str):
            return _wrong(f"text_pair {position + 1} is a {_kind(pair)}, and a string or null is wanted", position)
    return texts, pairs


def _wrong(message: str, *positions: int) -> Refusal:
    return Refusal(422, "wrong_request", message, positions)


def _kind(value: Any) -> str:
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "list", dict: "object"}
    return kinds.get(type(value), "null")
