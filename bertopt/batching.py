"""Tokens -> batches. A policy is a pure function of lengths: lengths of the pending requests in, groups of positions out.

No policy sees more than its window of pending requests, so what is measured offline can also be served. Bucket edges
are chosen once (`choose_edges`) and stay fixed, so that a plan's profiles and captured graphs are the same few shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bertopt.errors import UsageError
from bertopt.tokenization import Tokens

MAX_EDGES = 24
# Tokens of a packed batch: the last one is often small, and steps of 512 waste less than powers of two
BUDGETS = (256, 512, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192)
SHORTEST = 8  # tokens; no more rows are packed than a budget holds of these, since the buffers for rows are planned


@dataclass(frozen=True)
class Padded:
    """`rows` sequences, each padded on the right to `length` tokens."""

    rows: int
    length: int

    @property
    def computed_tokens(self) -> int:
        return self.rows * self.length

    def computed_pairs(self, lengths: NDArray[np.int64]) -> int:
        """Query-key pairs that attention computes: its FLOPs are a constant times this."""
        return self.rows * self.length**2


@dataclass(frozen=True)
class Packed:
    """Sequences end to end in one row of `budget` tokens; what is left over is filled with sequences that nobody reads."""

    budget: int
    max_length: int

    @property
    def computed_tokens(self) -> int:
        return self.budget

    def computed_pairs(self, lengths: NDArray[np.int64]) -> int:
        whole, rest = divmod(self.budget - int(lengths.sum()), self.max_length)
        return int((lengths**2).sum()) + whole * self.max_length**2 + rest**2


Layout = Padded | Packed


@dataclass(frozen=True)
class Batch:
    """What batching hands on: the rows' positions among all requests, their tokens, and how they are laid out."""

    positions: NDArray[np.int64]
    tokens: Tokens
    layout: Layout

    @property
    def rows(self) -> int:
        return len(self.positions)

    @property
    def real_tokens(self) -> int:
        return int(self.tokens.offsets[-1])

    @property
    def computed_tokens(self) -> int:
        return self.layout.computed_tokens

    @property
    def padding_fraction(self) -> float:
        """Wasted tokens over computed tokens."""
        return 1.0 - self.real_tokens / self.computed_tokens

    def fill(
        self, ids: NDArray[np.integer], mask: NDArray[np.integer], types: NDArray[np.integer] | None, *, pad_id: int = 0
    ) -> None:
        """Write the padded rows into arrays of shape [rows, length], every element of them."""
        real = np.arange(ids.shape[1]) < self.tokens.lengths[:, None]
        ids.fill(pad_id)
        ids[real] = self.tokens.ids
        np.copyto(mask, real)
        if types is not None:
            types.fill(0)
            if self.tokens.type_ids is not None:
                types[real] = self.tokens.type_ids


@dataclass(frozen=True)
class Group:
    """Positions within the window that make one batch, and their layout."""

    members: NDArray[np.int64]
    layout: Layout


class Policy(Protocol):
    """Lengths in, groups of positions out."""

    @property
    def name(self) -> str: ...
    @property
    def window(self) -> int:
        """The most pending requests that it looks at."""

    @property
    def least(self) -> int:
        """The fewest pending requests that it groups while more are to come."""

    def group(self, lengths: NDArray[np.int64], *, more: bool = False) -> list[Group]:
        """Groups of all these requests; while `more` are to come, of the first ones that need not wait for those."""


@dataclass(frozen=True)
class Fixed:
    """In the order of arrival, every row padded to one length: the naive service."""

    batch_size: int
    length: int
    name: str = "padded to --seq"

    @property
    def window(self) -> int:
        return self.batch_size

    least = window

    def group(self, lengths: NDArray[np.int64], *, more: bool = False) -> list[Group]:
        return [Group(m, Padded(len(m), self.length)) for m in _slices(np.arange(len(lengths)), self.batch_size)]


@dataclass(frozen=True)
class Dynamic:
    """In the order of arrival, padded to the longest row of the batch."""

    batch_size: int
    name: str = "longest in batch"

    @property
    def window(self) -> int:
        return self.batch_size

    least = window

    def group(self, lengths: NDArray[np.int64], *, more: bool = False) -> list[Group]:
        return [Group(m, Padded(len(m), int(lengths[m].max()))) for m in _slices(np.arange(len(lengths)), self.batch_size)]


@dataclass(frozen=True)
class Bucketed:
    """The window sorted by length and cut into batches, each padded to the smallest edge that holds it."""

    batch_size: int
    edges: tuple[int, ...]
    window: int
    name: str = "bucketed"
    _edges: NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.window < self.batch_size or not self.edges:
            raise ValueError("a bucketed policy wants an edge, and a window of at least one batch")
        # Whole batches in every window but the last: partial ones would add shapes.
        object.__setattr__(self, "window", self.window // self.batch_size * self.batch_size)
        object.__setattr__(self, "_edges", np.asarray(sorted(self.edges), dtype=np.int64))

    @property
    def least(self) -> int:
        return self.window

    def group(self, lengths: NDArray[np.int64], *, more: bool = False) -> list[Group]:
        order = np.argsort(lengths, kind="stable")
        groups = []
        for members in _slices(order, self.batch_size):
            edge = self._edges[np.searchsorted(self._edges, lengths[members[-1]])]
            groups.append(Group(members, Padded(len(members), int(edge))))
        return groups


@dataclass(frozen=True)
class TokenBudget:
    """In the order of arrival, packed end to end until the largest budget is full; no row is padded.

    A batch is full when the next row does not fit, so it can go as soon as that row is known: there is no window to wait for.
    """

    budgets: tuple[int, ...]
    max_length: int
    max_rows: int
    name: str = "packed"
    least: int = field(default=1, init=False, repr=False)

    @property
    def window(self) -> int:
        return self.max_rows

    def group(self, lengths: NDArray[np.int64], *, more: bool = False) -> list[Group]:
        budgets, groups, start = sorted(self.budgets), [], 0
        ends = np.cumsum(lengths)
        while start < len(lengths):
            before = ends[start - 1] if start else 0
            stop = int(np.searchsorted(ends, before + budgets[-1], side="right"))
            stop = min(stop, start + self.max_rows)
            if more and stop == len(lengths) < start + self.max_rows:
                break
            used = int(ends[stop - 1] - before)
            budget = next(b for b in budgets if b >= used)
            groups.append(Group(np.arange(start, stop), Packed(budget, self.max_length)))
            start = stop
        return groups


def policy(batching: str, *, batch_size: int, length: int, edges: tuple[int, ...] = (), window: int = 0) -> Policy:
    """The policy of a rung's `batching`; `length` is the most tokens of a row."""
    if batching == "fixed":
        return Fixed(batch_size, length)
    if batching == "dynamic":
        return Dynamic(batch_size)
    if batching == "bucketed":
        return Bucketed(batch_size, edges, max(window, batch_size))
    if batching == "packed":
        budgets = tuple(b for b in BUDGETS if b <= max(batch_size * length, BUDGETS[0]))
        return TokenBudget(budgets, length, max_rows=budgets[-1] // SHORTEST)
    raise UsageError(f"there is no batching policy {batching!r}")


def _slices(order: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [order[i : i + size] for i in range(0, len(order), size)]


def batches(chunks: Iterable[Tokens], policy: Policy, *, first_window: int | None = None) -> Iterator[Batch]:
    """Batches of consecutive chunks of tokens; every request is in exactly one of them, however the chunks are cut.

    With `first_window` the windows start that small and double up to the policy's, as they would in a service that
    starts: a fast device would otherwise stand idle until the first whole window is tokenized.
    """
    pending: list[Tokens] = []
    count = start = 0
    window = min(first_window or policy.window, policy.window)
    for chunk in chunks:
        pending.append(chunk)
        count += len(chunk)
        while count >= min(window, policy.least):
            tokens = Tokens.concat(pending)
            made = list(_grouped(tokens.slice(0, min(window, count)), start, policy, more=True))
            yield from made
            taken = sum(batch.rows for batch in made)
            rest = tokens.slice(taken, count)
            pending, count, start = [rest] if len(rest) else [], len(rest), start + taken
            window = min(2 * window, policy.window)
            if not taken:
                break
    if count:
        yield from _grouped(Tokens.concat(pending), start, policy)


def _grouped(tokens: Tokens, start: int, policy: Policy, *, more: bool = False) -> Iterator[Batch]:
    groups = policy.group(tokens.lengths, more=more)
    if not groups:
        return
    ordered = tokens.take(np.concatenate([group.members for group in groups]))  # once a window, not once a batch
    taken = 0
    for group in groups:
        rows = len(group.members)
        yield Batch(group.members + start, ordered.slice(taken, taken + rows), group.layout)
        taken += rows


def choose_edges(
    lengths: NDArray[np.int64],
    longest: int,
    *,
    max_edges: int = MAX_EDGES,
    batch_size: int = 1,
    window: int = 1,
    multiple: int = 1,
) -> tuple[int, ...]:
    """At most `max_edges` padded lengths that waste the fewest tokens on these `lengths`, found exactly.

    A batch that was cut out of a sorted window is padded to its longest row, so the histogram counts those rows: with
    `batch_size` and `window` of 1 that is every request. The programme over (edges used, last edge) is the classic
    one-dimensional quantizer (Bruce, 1964): best[k][e] = min over d < e of best[k-1][d] + e * count(d < n <= e).
    Edges are multiples of `multiple` but for the last, which is `longest`, so that every request has a bucket.
    """
    tops = _batch_maxima(np.minimum(lengths, longest), batch_size, window)
    candidates = np.unique(np.append(np.arange(multiple, longest, multiple), longest))
    below = np.append(0, np.searchsorted(np.sort(tops), candidates, side="right"))  # tops that each candidate holds
    cost = candidates[None, :] * (below[None, 1:] - below[:, None])  # [previous edge or none, next edge]
    cost = np.where(np.arange(len(below))[:, None] <= np.arange(len(candidates))[None, :], cost.astype(np.float64), np.inf)
    best, choices = cost[0], []
    for _ in range(min(max_edges, len(candidates)) - 1):
        through = best[:, None] + cost[1:, :]
        choice = through.argmin(axis=0)
        improved = through[choice, np.arange(len(candidates))]
        choices.append(np.where(improved < best, choice, -1))
        best = np.minimum(best, improved)
    edges, at = [len(candidates) - 1], len(candidates) - 1
    for choice in reversed(choices):
        if choice[at] >= 0:
            at = int(choice[at])
            edges.append(at)
    return tuple(int(candidates[e]) for e in reversed(edges))


def _batch_maxima(lengths: NDArray[np.int64], batch_size: int, window: int) -> NDArray[np.int64]:
    maxima: list[np.int64] = []
    for pending in _slices(lengths, max(window // batch_size, 1) * batch_size):
        ordered = np.sort(pending)
        maxima.extend(part[-1] for part in _slices(ordered, batch_size))
    return np.asarray(maxima, dtype=np.int64)


def waste(lengths: NDArray[np.int64], policy: Policy) -> tuple[float, float]:
    """(padding fraction, attention waste) of a policy on these lengths, from arithmetic alone."""
    computed = pairs = start = 0
    while start < len(lengths):
        pending = lengths[start : start + policy.window]
        for group in policy.group(pending, more=start + len(pending) < len(lengths)):
            computed += group.layout.computed_tokens
            pairs += group.layout.computed_pairs(pending[group.members])
            start += len(group.members)
    return 1.0 - float(lengths.sum()) / computed, 1.0 - float((lengths**2).sum()) / pairs
