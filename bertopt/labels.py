"""The labels of a file and the labels of a model, matched by name."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from bertopt.errors import DataError

GENERIC = re.compile(r"LABEL_\d+")


def match(found: list[str], names: list[str], source: str) -> tuple[NDArray[np.int64], list[str]]:
    """Class index of each row's label, and notes on how they were matched.

    Names match as they are, and then without regard to case. Numbers are taken for indices only where the model has no such
    names, which a note says: whether the order agrees, nobody can tell from the files.

    Raises DataError naming the row and the label that the model does not know.
    """
    exact = {name: index for index, name in enumerate(names)}
    folded = {name.casefold(): index for index, name in enumerate(names)}
    by_name = {label: exact.get(label, folded.get(label.casefold())) for label in dict.fromkeys(found)}
    if all(index is not None for index in by_name.values()):
        return np.array([by_name[label] for label in found], dtype=np.int64), []
    by_id = {label: int(label) for label in by_name if re.fullmatch(r"\d+", label) and int(label) < len(names)}
    if len(by_id) == len(by_name):
        kind = "has no names for its labels" if all(GENERIC.fullmatch(n) for n in names) else f"calls them {', '.join(names)}"
        note = f"labels are numbers in {source} and were taken for indices; the model {kind}: check that the order agrees"
        return np.array([by_id[label] for label in found], dtype=np.int64), [note]
    unknown = [label for label, index in by_name.items() if index is None]
    label = next((label for label in unknown if label not in by_id), unknown[0])  # some may be names and others numbers
    row = found.index(label) + 1
    raise DataError(f"{source}, row {row}: the model has no label {label!r}; it knows {', '.join(names)}")
