"""Lengths of what waits, the oldest first -> the batch that holds the oldest. Pure functions, as the ladder's policies are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bertopt.batching import Layout, Padded, Policy
from bertopt.serve.cost import Cost

Lengths = NDArray[np.int64]
BACKLOG = 0.25  # of what waits may go at once: whoever waits so long anyway hardly feels the larger batch, which costs less
# Rows of a bucketed batch: libraries compile at the first sight of a shape (some 10 ms), so few shapes are soon all warm
STEPS = (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128)


@dataclass(frozen=True)
class Pick:
    """Positions among those that wait, the oldest (0) always one of them."""

    positions: NDArray[np.int64]
    layout: Layout
    full: bool  # nothing that comes later could join it


def step(rows: int) -> int:
    """The largest of STEPS that is no more."""
    return max((number for number in STEPS if number <= rows), default=1)


class Grouping(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def window(self) -> int:
        """The most requests that it looks at."""

    def pick(self, lengths: Lengths) -> Pick: ...


@dataclass(frozen=True)
class Alone:
    """Each request by itself."""

    name: str = "alone"
    window: int = 1

    def pick(self, lengths: Lengths) -> Pick:
        return Pick(np.zeros(1, np.int64), Padded(1, int(lengths[0])), True)


@dataclass(frozen=True)
class FirstCome:
    """A policy of the ladder on the first requests that fit its batch: plain dynamic batching, or packing."""

    policy: Policy
    rows: int

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def window(self) -> int:
        return self.policy.window

    def pick(self, lengths: Lengths) -> Pick:
        first, *more = self.policy.group(lengths)
        return Pick(first.members, first.layout, bool(more) or len(first.members) >= self.rows)


@dataclass(frozen=True)
class Bucketed:
    """Neighbouring buckets share a batch where that is cheaper than a batch each; padded to the ladder's edges.

    What waits is counted by bucket. The programme over cuts between buckets finds the cheapest way to run all of it, and the
    part that holds the oldest request runs: at most `rows` of it and `tokens` padded tokens, or BACKLOG of what waits where
    that is more, in the order of arrival, and as many of those as the largest of STEPS.
    """

    edges: tuple[int, ...]
    rows: int
    tokens: int
    cost: Cost
    window: int = 1024
    name: str = "bucketed"
    _edges: NDArray[np.int64] = field(init=False, repr=False, compare=False)
    _row_s: NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        edges = np.asarray(sorted(self.edges), dtype=np.int64)
        object.__setattr__(self, "_edges", edges)
        object.__setattr__(self, "_row_s", self.cost.token_s * edges + self.cost.pair_s * edges.astype(np.float64) ** 2)

    def pick(self, lengths: Lengths) -> Pick:
        buckets = np.searchsorted(self._edges, lengths)
        tokens = max(self.tokens, int(BACKLOG * self._edges[buckets].sum()))
        most = np.clip(tokens // self._edges, 1, self.rows)
        low, high = self._part(buckets, most)
        inside = np.flatnonzero((buckets >= low) & (buckets <= high))
        # Of a part that does not fit, no more than fits at its own top; the top of those chosen may then be lower
        members = inside[: step(min(len(inside), int(most[high])))]
        top = int(self._edges[buckets[members].max()])
        return Pick(members, Padded(len(members), top), len(inside) >= most[high])

    def _part(self, buckets: NDArray[np.int64], most: NDArray[np.int64]) -> tuple[int, int]:
        """The lowest and the highest bucket of the part that holds the oldest request, in the cheapest cut of all."""
        counts = np.bincount(buckets, minlength=len(self._edges))
        used = np.flatnonzero(counts)
        ends = np.append(0, np.cumsum(counts[used]))
        number = ends[None, 1:] - ends[:-1, None]  # [first, last] of the used buckets: requests between them
        batches = -(-number // most[used][None, :])
        cost = np.where(number > 0, batches * self.cost.batch_s + number * self._row_s[used][None, :], np.inf)
        best, start = np.zeros(len(used) + 1), np.zeros(len(used), np.int64)
        for last in range(len(used)):
            through = best[: last + 1] + cost[: last + 1, last]
            start[last] = through.argmin()
            best[last + 1] = through[start[last]]
        mine, last = int(np.searchsorted(used, buckets[0])), len(used) - 1
        while start[last] > mine:
            last = int(start[last]) - 1
        return int(used[start[last]]), int(used[last])
