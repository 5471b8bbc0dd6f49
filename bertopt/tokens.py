"""Ragged token arrays: the rows of N requests end to end, never a list of lists and never padded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

DEFAULT_LENGTH = 128  # of the longest row, where nothing says how long texts are served


@dataclass(frozen=True, eq=False)
class Tokens:
    """N tokenized requests; row n is `ids[offsets[n]:offsets[n + 1]]`, special tokens included.

    ids [T] int32, offsets [N + 1] int64 starting at 0, type_ids [T] uint8 or None where all are 0 (no pairs, or a
    tokenizer without segments), cut [N] bool or None where no row was truncated.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    type_ids: NDArray[np.uint8] | None = None
    cut: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row, [N]."""
        return np.diff(self.offsets)

    @property
    def truncated(self) -> int:
        """Rows that were longer than the tokenizer's max_length."""
        return 0 if self.cut is None else int(np.count_nonzero(self.cut))

    def row(self, position: int) -> NDArray[np.int32]:
        """The ids of one row, a view."""
        return self.ids[self.offsets[position] : self.offsets[position + 1]]

    def take(self, positions: ArrayLike) -> Tokens:
        """The rows at these positions, in this order, repeats allowed; a copy."""
        picked = np.asarray(positions, dtype=np.int64)
        lengths = self.lengths[picked]
        offsets = _ends(lengths)
        source = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][picked] - offsets[:-1], lengths)
        return Tokens(
            self.ids[source],
            offsets,
            None if self.type_ids is None else self.type_ids[source],
            None if self.cut is None else self.cut[picked],
        )

    def slice(self, start: int, stop: int) -> Tokens:
        """The rows from `start` up to `stop`; views, but for the offsets."""
        offsets = self.offsets[start : stop + 1]
        ids = slice(offsets[0], offsets[-1])
        return Tokens(
            self.ids[ids],
            offsets - offsets[0],
            None if self.type_ids is None else self.type_ids[ids],
            None if self.cut is None else self.cut[start:stop],
        )

    @staticmethod
    def concat(parts: Sequence[Tokens]) -> Tokens:
        """The rows of all parts, one part after the other; no parts make no rows."""
        if len(parts) == 1:
            return parts[0]
        type_ids = cut = None
        if any(part.type_ids is not None for part in parts):
            type_ids = np.concatenate([_or_zeros(part.type_ids, len(part.ids), np.uint8) for part in parts])
        if any(part.cut is not None for part in parts):
            cut = np.concatenate([_or_zeros(part.cut, len(part), np.bool_) for part in parts])
        ids = np.concatenate([np.empty(0, np.int32), *(part.ids for part in parts)])
        lengths = np.concatenate([np.empty(0, np.int64), *(part.lengths for part in parts)])
        return Tokens(ids, _ends(lengths), type_ids, cut)

    @staticmethod
    def from_rows(
        rows: Sequence[Sequence[int]],
        type_rows: Sequence[Sequence[int]] | None = None,
        cut: NDArray[np.bool_] | None = None,
    ) -> Tokens:
        """Tokens of one list of ids per row, and where there are segments one list of type ids of the same lengths."""
        offsets = _ends(np.fromiter(map(len, rows), np.int64, len(rows)))
        total = int(offsets[-1])
        type_ids = None
        if type_rows is not None:
            type_ids = np.fromiter(chain.from_iterable(type_rows), np.uint8, total)
        return Tokens(
            np.fromiter(chain.from_iterable(rows), np.int32, total),
            offsets,
            type_ids if type_ids is not None and type_ids.any() else None,
            cut if cut is not None and cut.any() else None,
        )


def _ends(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _or_zeros(values: NDArray | None, count: int, dtype: type[np.generic]) -> NDArray:
    return np.zeros(count, dtype) if values is None else values
