"""What a model or plan answered to every row of a file, as JSON Lines.

Reference and candidate may be made in different environments: this file is all that the gate reads.

The first line says what ran; then a line for each row, in the order of the data file. A logit that is not finite is ``null``.

    {"bertopt_predictions": 1, "name": "engines/minilm-int8.plan", "precision": "int8", "task": "single_label", ...}
    {"index": 0, "text": "5f0c...", "label": "World", "logits": [-1.25, 0.5, 3.0, 0.125]}
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.errors import DataError
from bertopt.files import replacing

FORMAT = 1
CLASSIFYING = ("single_label", "multi_label")
TASKS = (*CLASSIFYING, "regression", "embedding")
SEPARATOR = "|"  # between the labels of one row of a multi-label task


@dataclass(frozen=True, eq=False)
class Predictions:
    """Answers to N rows in the order of the data file."""

    name: str  # the folder, hub name or plan that ran
    backend: str  # "eager", "OpenVINO 2026.4.1, 2 threads"
    precision: str  # what really ran: "fp32", "bf16", "fp16", "fp8", "int8"
    task: str  # one of TASKS
    labels: list[str] | None  # in logit order; None for regression and embeddings
    logits: NDArray[np.float32]  # [N, labels], or [N, hidden] of an embedding
    text_hashes: list[str]  # `text_hash` of each row
    fingerprint: str | None = None  # of the model or plan
    data: str | None = None  # name of the file that was answered
    data_fingerprint: str | None = None
    device: str | None = None
    evidence: str = "plan"  # "plan": this very artifact ran; "proxy": the CPU stood in for it
    weights: str = "trained"  # "trained", "random" or "random head"
    max_length: int | None = None  # tokens beyond which texts were truncated
    throughput_seq_s: float | None = None  # end to end at the served shapes: median, and the ends of the spread
    throughput_low_seq_s: float | None = None
    throughput_high_seq_s: float | None = None

    def __len__(self) -> int:
        return len(self.text_hashes)

    def take(self, positions: Sequence[int], data_fingerprint: str | None) -> Predictions:
        """The answers to some rows, which together have that fingerprint."""
        return replace(
            self,
            logits=self.logits[np.asarray(positions, dtype=np.int64)],
            text_hashes=[self.text_hashes[position] for position in positions],
            data_fingerprint=data_fingerprint,
        )

    def predicted(self) -> list[str | None]:
        """The label of each row; None for regression, embeddings, and rows whose logits are not finite."""
        chosen = decisions(self.task, self.logits)
        if chosen is None:
            return [None] * len(self)
        names = label_sets(chosen, self.label_names())
        return [name if ok else None for name, ok in zip(names, _whole(self.logits).tolist(), strict=True)]

    def label_names(self) -> list[str]:
        return self.labels or [str(index) for index in range(self.logits.shape[1])]


def text_hash(text: str, pair: str | None = None) -> str:
    """24 hexadecimal digits that tell one request from another."""
    whole = text if pair is None else f"{text}\x1f{pair}"
    return hashlib.blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def text_hashes(texts: Iterable[str], pairs: Iterable[str | None] | None = None) -> list[str]:
    return [text_hash(t) for t in texts] if pairs is None else [text_hash(t, p) for t, p in zip(texts, pairs, strict=True)]


def decisions(task: str, logits: NDArray[np.float32]) -> NDArray[np.bool_] | None:
    """[N, labels]: which labels each row is given. None for a task without labels; a row that is not finite is given none."""
    if task not in CLASSIFYING:
        return None
    if task == "multi_label":
        return logits > 0  # a probability above one half
    chosen = np.zeros(logits.shape, dtype=bool)
    chosen[np.arange(len(logits)), np.argmax(logits, axis=1)] = True
    return chosen & _whole(logits)[:, None]


def _whole(logits: NDArray[np.float32]) -> NDArray[np.bool_]:
    """[N]: whether all logits of the row are finite."""
    return np.asarray(np.isfinite(logits).all(axis=1))


def label_sets(chosen: NDArray[np.bool_], names: list[str]) -> list[str]:
    """The labels of each row by name; "" for none."""
    if len(chosen) and (chosen.sum(axis=1) == 1).all():
        return [names[index] for index in chosen.argmax(axis=1)]
    return [SEPARATOR.join(names[index] for index in np.flatnonzero(row)) for row in chosen]


_HEADER = [f.name for f in fields(Predictions) if f.name not in ("logits", "text_hashes")]


def save_predictions(predictions: Predictions, path: os.PathLike[str] | str) -> None:
    """`predictions` at `path`, whole or not at all. Logits are written to 9 digits, which gives back the same float32."""
    header = {"bertopt_predictions": FORMAT, **{name: getattr(predictions, name) for name in _HEADER}, "rows": len(predictions)}
    finite = _whole(predictions.logits).tolist()
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(header, ensure_ascii=False) + "\n")
        rows = zip(predictions.text_hashes, predictions.predicted(), predictions.logits.tolist(), finite, strict=True)
        for index, (digest, label, logits, whole) in enumerate(rows):
            values = ",".join(f"{v:.9g}" if whole or np.isfinite(v) else "null" for v in logits)
            label_json = json.dumps(label, ensure_ascii=False)
            file.write(f'{{"index":{index},"text":"{digest}","label":{label_json},"logits":[{values}]}}\n')


def load_predictions(path: os.PathLike[str] | str) -> Predictions:
    """The predictions in a file. Raises DataError naming the file and the line where it is not one."""
    try:
        lines = Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")  # splitlines would cut at U+2028 as well
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as predictions: {error}") from None
    header = _object(path, 1, lines[0])
    if header.get("bertopt_predictions") != FORMAT:
        raise DataError(f'{path}, line 1: not predictions that this version reads: it must say "bertopt_predictions": {FORMAT}')
    known = {name: header[name] for name in _HEADER if name in header}
    missing = [name for name in ("name", "backend", "precision", "task", "labels") if name not in known]
    if missing:
        raise DataError(f"{path}, line 1: the header has no {missing[0]!r}")
    if header["task"] not in TASKS:
        raise DataError(f"{path}, line 1: the task {header['task']!r} has no gate; there is one for {', '.join(TASKS)}")

    digests: list[str] = []
    labels: list[str | None] = []
    logits: list[list[float | None]] = []
    for line, text in enumerate(lines[1:], 2):
        row = _object(path, line, text)
        try:
            index, digest, label, values = row["index"], row["text"], row["label"], row["logits"]
        except KeyError as error:
            raise DataError(f"{path}, line {line}: the row has no {error.args[0]!r}") from None
        if index != line - 2:
            raise DataError(f"{path}, line {line}: the row has index {index}, and {line - 2} comes next")
        if not isinstance(values, list) or not values or (logits and len(values) != len(logits[0])):
            expected = f"{len(logits[0])} numbers" if logits else "a list of numbers"
            raise DataError(f"{path}, line {line}: the logits are not {expected}")
        digests.append(digest)
        labels.append(label)
        logits.append(values)
    if header.get("rows") not in (None, len(digests)):
        raise DataError(f"{path} ends after {len(digests)} of {header['rows']} rows: it is not whole")
    if logits and header["labels"] and len(header["labels"]) != len(logits[0]):
        raise DataError(f"{path}: {len(header['labels'])} labels and {len(logits[0])} logits a row")
    loaded = Predictions(**known, logits=_matrix(path, logits), text_hashes=digests)
    for line, (written, said) in enumerate(zip(labels, loaded.predicted(), strict=True), 2):
        if written != said:
            raise DataError(f"{path}, line {line}: the label is {written!r} and the logits say {said!r}")
    return loaded


def _object(path: os.PathLike[str] | str, line: int, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {line}: not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}, line {line}: not an object")
    return value


def _matrix(path: os.PathLike[str] | str, logits: list[list[float | None]]) -> NDArray[np.float32]:
    if not logits:
        return np.zeros((0, 1), dtype=np.float32)
    try:
        return np.array(logits, dtype=np.float64).astype(np.float32)  # null becomes NaN
    except (TypeError, ValueError):
        line = next(i for i, row in enumerate(logits, 2) if not all(isinstance(v, int | float | None) for v in row))
        raise DataError(f"{path}, line {line}: a logit is not a number") from None
