"""Requests in: texts, second texts and labels from JSON Lines, CSV, TSV, plain text and Parquet.

How a file is read depends on its suffix and its content, never on the locale:

- ``.jsonl``, ``.ndjson``: an object a line; blank lines are skipped. ``.json``: the same, or one array of objects.
- ``.csv``: commas and RFC 4180 quoting (quoted fields may hold commas, doubled quotes and line ends); blank lines are skipped.
- ``.tsv``: tabs, a row a line; quotes are text, as in the GLUE files.
- ``.txt``: a text a line, ended by LF or CRLF. Where the caller names a column, it is read as a ``.tsv`` instead.
- ``.parquet``: through pyarrow. The text formats may be compressed (``.jsonl.gz``).

Empty lines at the end of a ``.txt`` or ``.tsv`` are ignored; elsewhere they are empty texts. Texts are kept as they are.

Columns are found by name, whatever their case: the first entry of TEXT_COLUMNS that the file has whole, then LABEL_COLUMNS and
GROUP_COLUMNS. The first row of a CSV or TSV is a header if it holds one of these names, or one that the caller gives; otherwise
it is data, and the columns are numbered from 1. A single column without a header is the texts.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import itertools
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertopt.errors import BackendUnavailable, DataError, UsageError

_TEXTS = """
text + text_pair, text, text_a + text_b, text1 + text2, sentence1 + sentence2, premise + hypothesis, question1 + question2,
#1 string + #2 string, question + sentence, question + context, question + passage, query + passage,
sentence, question, query, content, review
"""
TEXT_COLUMNS = [[name.strip() for name in entry.split("+")] for entry in _TEXTS.split(",")]  # text, or text and second text
LABEL_COLUMNS = ["label", "labels", "gold_label", "class", "category", "target", "is_duplicate", "quality", "score"]
GROUP_COLUMNS = ["group", "document", "doc_id"]
KNOWN_COLUMNS = {*itertools.chain(*TEXT_COLUMNS), *LABEL_COLUMNS, *GROUP_COLUMNS}

Row = tuple[str, dict[str, Any]]  # how an error names it ("row 3 of x.csv"), and its fields
Reader = Callable[[Path, Iterable[str], list[str]], Iterator[Row]]  # of a file's name, its lines and the columns asked for


@dataclass(frozen=True)
class Requests:
    """N requests in file order.

    `pairs[i]` is None for a single text and "" for a pair whose second side is empty; `pairs` is None where all are single.
    `groups[i]` numbers the document that row i is a part of; only whether two are equal means anything. `fingerprint` is of
    texts, pairs and labels, and computed where none is given.
    """

    texts: list[str]
    pairs: list[str | None] | None = None
    labels: list[str] | None = None
    groups: list[int] | None = None
    name: str = ""
    fingerprint: str = ""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.pairs is not None and all(pair is None for pair in self.pairs):
            object.__setattr__(self, "pairs", None)
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", _fingerprint(self.texts, self.pairs, self.labels))

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, positions: Iterable[int]) -> Requests:
        """The requests at `positions`, in that order, with a fingerprint of their own."""
        chosen = list(positions)
        columns = {"texts": self.texts, "pairs": self.pairs, "labels": self.labels, "groups": self.groups}
        taken: dict[str, Any] = {name: column and [column[p] for p in chosen] for name, column in columns.items()}
        return replace(self, **taken, fingerprint="")


def read(
    path: str | Path,
    *,
    limit: int | None = None,
    encoding: str = "utf-8",
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
) -> Requests:
    """The first `limit` rows of a file, or all; no more of it is read than they need.

    `text`, `text_pair` and `label` each name a column, or give its number from 1. A text column that is named stands alone
    unless `text_pair` is named too; ``""`` for `text_pair` or `label` means that there is none.

    A text that is a list of two is (text, text_pair). A null or absent second text makes a single text, an empty one a pair.
    Labels are the strings found: numbers as the file spells them, booleans as "true" and "false". A null, NaN or empty label is
    missing, and either every row has a label or none. Document ids are numbered from 0 in order of appearance.

    Raises DataError where the file cannot be read so, UsageError for a limit below 1, BackendUnavailable without pyarrow.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit is {limit}, and it must be at least 1")
    path = Path(path)
    try:
        if not path.is_file():
            raise DataError(f"{path} is a folder, not a file of texts" if path.is_dir() else f"there is no file {path}")
        rows = list(itertools.islice(_rows(path, encoding, [name for name in (text, text_pair, label) if name]), limit))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not rows:
        raise DataError(f"{path} is empty: it holds no text")
    return _requests(path, rows, text, text_pair, label)


def split(requests: Requests, calibration_fraction: float = 0.1) -> tuple[Requests, Requests]:
    """(calibration, evaluation): a partition by a hash of each first text, so equal texts share a side, in every file.

    A larger fraction keeps every calibration row of a smaller one. Either side of a short file may be empty.
    """
    if not 0 < calibration_fraction < 1:
        raise UsageError(f"the calibration fraction is {calibration_fraction}, and it must lie between 0 and 1")
    sides: tuple[list[int], list[int]] = ([], [])
    for position, text in enumerate(requests.texts):
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        sides[int.from_bytes(digest[:8], "big") >= calibration_fraction * 2**64].append(position)
    return requests.take(sides[0]), requests.take(sides[1])


def _fingerprint(texts: list[str], pairs: list[str | None] | None, labels: list[str] | None) -> str:
    """Every value goes in behind its length, an absent one as length -1, so that different requests are different bytes."""
    digest = hashlib.sha256()
    for value in itertools.chain.from_iterable(itertools.zip_longest(texts, pairs or (), labels or ())):
        data = b"" if value is None else value.encode("utf-8", "surrogatepass")
        digest.update((-1 if value is None else len(data)).to_bytes(8, "big", signed=True) + data)
    return digest.hexdigest()[:16]


class _Number(str):
    """A number as the file spells it: "4.50" stays "4.50", and can still be told from a text."""


_DECODER = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number)
_TYPES = {_Number: "number", int: "number", bool: "boolean", str: "string", list: "list", dict: "object", type(None): "null"}


def _rows(path: Path, encoding: str, asked: list[str]) -> Iterator[Row]:
    compressed = path.suffix.lower() == ".gz"
    suffix = Path(path.stem if compressed else path.name).suffix.lower()
    reader = _tsv_rows if suffix == ".txt" and asked else _READERS.get(suffix)
    if suffix == ".parquet" and not compressed:
        yield from _parquet_rows(path)
        return
    if reader is None:
        raise DataError(f"{path} has the suffix {path.suffix!r}, and bertopt reads {', '.join(_READERS)} and .parquet")
    with gzip.open(path) if compressed else path.open("rb") as file:
        try:
            lines = io.TextIOWrapper(file, _checked(path, file, encoding), newline="" if suffix == ".csv" else "\n")
            yield from reader(path, lines, asked)
        except UnicodeError as error:  # its object is what the decoder held, which ends where the file has been read to
            bad = file.tell() - len(error.object) + error.start if isinstance(error, UnicodeDecodeError) else 0
            raise DataError(
                f"{path} is not {encoding}: byte {bad} fits no character; name another, such as --encoding latin-1"
            ) from None


def _checked(path: Path, file: Any, encoding: str) -> str:
    """The encoding to read `file` with, once a byte-order mark of UTF-8 has been passed over."""
    try:
        io.TextIOWrapper(io.BytesIO(), encoding)
    except LookupError:
        raise DataError(f"--encoding {encoding} is no text encoding that Python knows (utf-8, utf-16, latin-1, ...)") from None
    if codecs.lookup(encoding).name not in ("utf-8", "utf-8-sig"):
        return encoding
    start = file.peek(4)[:4]
    for mark, name in (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"):
        if start.startswith(mark):
            raise DataError(f"{path} is not utf-8: byte 0 begins the byte-order mark of {name}; say --encoding {name}")
    if start.startswith(codecs.BOM_UTF8):
        file.read(len(codecs.BOM_UTF8))
    return "utf-8"


def _jsonl_rows(path: Path, lines: Iterable[str], asked: list[str]) -> Iterator[Row]:
    filled = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    for row, (number, line) in enumerate(filled, 1):
        yield _object(_where(path, row, number), _parsed(path, line.rstrip(), number))


def _json_rows(path: Path, lines: Iterable[str], asked: list[str]) -> Iterator[Row]:
    lines = iter(lines)
    first = next(lines, "")
    if not first.lstrip().startswith("["):
        yield from _jsonl_rows(path, itertools.chain([first], lines), asked)
        return
    for row, value in enumerate(_parsed(path, first + "".join(lines), 1), 1):
        yield _object(_where(path, row), value)


def _parsed(path: Path, text: str, line: int) -> Any:
    """The JSON value of `text`, which starts at `line`."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        where = f"line {line + error.lineno - 1} of {path}"
        raise DataError(f"{where} is not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise DataError(f"line {line} of {path} is not a row: its JSON is nested too deep") from None


def _object(where: str, value: Any) -> Row:
    if not isinstance(value, dict):
        raise DataError(f'{where} is of type {_TYPES[type(value)]}, and a row is an object such as {{"text": "..."}}')
    return where, value


def _csv_rows(path: Path, lines: Iterable[str], asked: list[str]) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # the module refuses texts beyond 128 KiB unless told
    reader = csv.reader(lines, strict=True)

    def records() -> Iterator[tuple[int, list[str]]]:
        line = 1
        try:
            for cells in reader:
                if cells:
                    yield line, cells
                line = reader.line_num + 1
        except csv.Error as error:
            rule = "a quote inside a quoted field must be doubled; a .tsv is read without quoting"
            raise DataError(f"the row at line {line} of {path} is not CSV: {error} ({rule})") from None

    return _table(path, records(), asked)


def _tsv_rows(path: Path, lines: Iterable[str], asked: list[str]) -> Iterator[Row]:
    return _table(path, ((number, line.split("\t")) for number, line in enumerate(_plain_lines(lines), 1)), asked)


def _txt_rows(path: Path, lines: Iterable[str], asked: list[str]) -> Iterator[Row]:
    return ((_where(path, number), {"text": line}) for number, line in enumerate(_plain_lines(lines), 1))


def _plain_lines(lines: Iterable[str]) -> Iterator[str]:
    """Lines without their ends, and without the empty ones at the end of the file."""
    empty = 0
    for line in lines:
        if content := line.removesuffix("\n").removesuffix("\r"):
            yield from itertools.repeat("", empty)
            yield content
            empty = 0
        else:
            empty += 1


def _table(path: Path, records: Iterator[tuple[int, list[str]]], asked: list[str]) -> Iterator[Row]:
    """Cells (each row's with the line that it starts at) as fields, under the header's names or, without one, under numbers."""
    first = next(records, None)
    if first is None:
        return
    columns = first[1]
    names = KNOWN_COLUMNS | {_folded(name) for name in asked if not name.isdecimal()}
    if not any(_folded(column) in names for column in columns):
        if len(columns) == 1 and sum(_folded(part) in names for part in re.split(r"[,;\t|]", columns[0])) > 1:
            raise DataError(f"{path} has another separator than {path.suffix} says: its first line is {columns[0]!r}")
        columns = ["text"] if len(columns) == 1 else [str(n + 1) for n in range(len(columns))]
        records = itertools.chain([first], records)
    elif len(set(columns)) < len(columns):
        raise DataError(f"{path} has two columns of one name: {', '.join(columns)}")
    for row, (line, cells) in enumerate(records, 1):
        where = _where(path, row, line)
        if len(cells) != len(columns):
            raise DataError(f"{where} has {len(cells)} fields, and the first line of the file has {len(columns)}")
        yield where, dict(zip(columns, cells, strict=True))


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise BackendUnavailable(f"reading {path} needs pyarrow: pip install 'bertopt[parquet]'") from None

    def values(column: Any) -> list[Any]:
        if pyarrow.types.is_floating(column.type):  # numpy prints a float32 as 4.6, where Python would say 4.599999904632568
            return [_Number(value) for value in column.to_numpy(zero_copy_only=False)]
        return column.to_pylist()

    numbers = itertools.count(1)
    try:
        with path.open("rb") as file:
            for batch in parquet.ParquetFile(file).iter_batches(batch_size=1024):
                for cells in zip(*map(values, batch.columns), strict=True):
                    yield _where(path, next(numbers)), dict(zip(batch.schema.names, cells, strict=True))
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is not Parquet that can be read: {str(error).splitlines()[0]}") from None


_READERS: dict[str, Reader] = {
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".tsv": _tsv_rows,
    ".txt": _txt_rows,
}


def _requests(path: Path, rows: list[Row], text: str | None, text_pair: str | None, label: str | None) -> Requests:
    columns = list(dict.fromkeys(itertools.chain.from_iterable(fields for _, fields in rows)))
    numbered = len(columns) > 1 and columns == [str(n + 1) for n in range(len(columns))]
    listed = ", ".join(f"{c} ({str(rows[0][1].get(c))[:24]!r})" if numbered else repr(c) for c in columns)
    by_name = {_folded(column): column for column in reversed(columns)}

    def named(asked: str) -> str:
        if column := asked if asked in columns else by_name.get(_folded(asked)):
            return column
        if asked.isdecimal() and 1 <= int(asked) <= len(columns):
            return columns[int(asked) - 1]
        raise DataError(f"{path} has no column {asked!r}; it has {listed}")

    def known(names: Iterable[str]) -> str | None:
        return next((by_name[name] for name in names if name in by_name), None)

    first, second = text and named(text), text_pair and named(text_pair)
    if not first:
        entry = next((names for names in TEXT_COLUMNS if by_name.keys() >= {*names}), None)
        if entry is None:
            options = "--text-column, --text-pair-column, --label-column"
            raise DataError(f"{path} has no known text column; choose by name or number from {listed} with {options}")
        first = by_name[entry[0]]
        if text_pair is None and len(entry) == 2:
            second = by_name[entry[1]]
    labelled = known(LABEL_COLUMNS) if label is None else label and named(label)
    grouped = known(name for name in GROUP_COLUMNS if by_name.get(name) not in (first, second, labelled))
    both = [_text_and_pair(where, fields, first, second) for where, fields in rows]
    codes: dict[str, int] = {}
    groups = [codes.setdefault(group, len(codes)) for group in _values(rows, grouped, required=False) or []]
    notes = []
    if numbered:
        notes.append(f"{path.name} has no header that names a known column, so its first row was read as data")
    if path.suffix.lower() == ".txt" and columns == ["text"] and all("\t" in one for one, _ in both):
        notes.append(f"every line of {path.name} holds a tab and was read as one text; --text-column reads it as columns")
    return Requests(
        texts=[one for one, _ in both],
        pairs=[two for _, two in both],
        labels=_values(rows, labelled, required=bool(label)),
        groups=groups or None,
        name=path.name,
        notes=notes,
    )


def _text_and_pair(where: str, fields: dict[str, Any], first: str, second: str | None) -> tuple[str, str | None]:
    one, two = fields.get(first), fields.get(second) if second else None
    if isinstance(one, list):
        if len(one) != 2:
            raise DataError(f"{where}: {first!r} is a list of {len(one)}, and a pair has 2")
        if two is not None:
            raise DataError(f"{where} has two second texts: {first!r} is a pair, and there is {second!r} as well")
        one, two = one
    if one is None:
        raise DataError(f"{where} has no text (field {first!r})")
    return _string(where, first, one), None if two is None else _string(where, second or first, two)


def _string(where: str, column: str, value: Any) -> str:
    if type(value) is not str:
        kind = _TYPES.get(type(value), type(value).__name__)
        raise DataError(f"{where}: {column!r} is of type {kind}, and it must be one string")
    if lone := re.search("[\ud800-\udfff]", value):  # JSON can spell half of an emoji, which no tokenizer takes
        raise DataError(f"{where}: character {lone.start()} of {column!r} is half of a surrogate pair, which is no text")
    return value


def _values(rows: list[Row], column: str | None, *, required: bool) -> list[str] | None:
    """A column of labels or groups as strings. All rows have it or, unless it is `required`, none does."""
    values = [_scalar(where, column, fields.get(column)) for where, fields in rows] if column else []
    present = [value for value in values if value is not None]
    if len(present) < len(values) and (present or required):
        first = rows[values.index(None)][0]
        raise DataError(f"{first} has no {column!r}, and {len(present)} of {len(rows)} rows have one: it takes all or none")
    return present or None


def _scalar(where: str, column: str, value: Any) -> str | None:
    if value is None or value == "" or (isinstance(value, _Number) and value.lower() == "nan"):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, _Number | int) else _string(where, column, value)


def _where(path: Path, row: int, line: int | None = None) -> str:
    return f"row {row} of {path}" if line in (None, row) else f"row {row} (line {line}) of {path}"


def _folded(name: str) -> str:
    return name.strip().lower()
