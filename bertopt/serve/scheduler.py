"""A queue that knows lengths, waits and deadlines, and says which requests make the next batch and when.

It holds no lock and reads no clock: times are given to it, so what it does can be tested without waiting.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from bertopt.batching import Layout
from bertopt.serve.grouping import Alone, Grouping


class Waiting(Protocol):
    """What the queue must know of a request. Times are seconds on one clock."""

    @property
    def length(self) -> int: ...
    @property
    def arrived_s(self) -> float: ...
    @property
    def deadline_s(self) -> float: ...
    @property
    def gone(self) -> bool:
        """Nobody waits for it any more."""

    @property
    def alone(self) -> bool:
        """It was in a batch that failed, and must not fail others again."""


Item = TypeVar("Item", bound=Waiting)


@dataclass(frozen=True)
class Decision(Generic[Item]):
    """What to do now: a batch to run, or until when to wait (infinity: until something comes). `late` will not be computed."""

    batch: list[Item]
    layout: Layout | None
    wake_s: float
    late: list[Item]


class Queue(Generic[Item]):
    """Requests in the order of their arrival.

    A batch that is not full waits for more until its oldest request has waited `max_wait_s` since it arrived, or until its
    deadline could be missed. A backend that is busy is not waited for: the queue is asked when it is free.
    """

    def __init__(
        self, grouping: Grouping, max_wait_s: float, seconds: Callable[[int, int], float] = lambda rows, length: 0.0
    ) -> None:
        self.grouping, self.max_wait_s, self._seconds = grouping, max_wait_s, seconds
        self._items: list[Item] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Item) -> None:
        self._items.append(item)

    def put_back(self, items: list[Item]) -> None:
        """What was taken and not answered, in front of all others."""
        self._items[:0] = items

    def drain(self) -> list[Item]:
        """Everything, in order; the queue is empty then."""
        items, self._items = self._items, []
        return items

    def next(self, now_s: float, *, hurry: bool = False, full: bool = False) -> Decision[Item]:
        """The next batch, taken out of the queue. With `hurry` nothing waits for more; with `full` all else does."""
        late = self._clean(now_s)
        if not self._items:
            return Decision([], None, math.inf, late)
        if self._items[0].alone:
            item = self._items.pop(0)
            return Decision([item], Alone().pick(np.array([item.length])).layout, now_s, late)
        seen = self._items[: self.grouping.window]
        pick = self.grouping.pick(np.fromiter((item.length for item in seen), np.int64, len(seen)))
        chosen = [seen[position] for position in pick.positions.tolist()]
        wake = self._until(chosen)
        if not (pick.full or (not full and (hurry or wake <= now_s))):
            return Decision([], None, wake, late)
        taken = set(pick.positions.tolist())
        self._items[: len(seen)] = [item for position, item in enumerate(seen) if position not in taken]
        return Decision(chosen, pick.layout, now_s, late)

    def _until(self, chosen: list[Item]) -> float:
        """How long this batch may wait for more."""
        longest = max(item.length for item in chosen)
        needed = self._seconds(len(chosen), longest)
        return min(min(item.arrived_s + self.max_wait_s, item.deadline_s - needed) for item in chosen)

    def _clean(self, now_s: float) -> list[Item]:
        """Drop what nobody waits for; what is past its deadline is given back."""
        late = [item for item in self._items if item.deadline_s <= now_s and not item.gone]
        if late or any(item.gone for item in self._items):
            self._items = [item for item in self._items if not item.gone and item.deadline_s > now_s]
        return late
