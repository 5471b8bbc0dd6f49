"""Shape profiles: the ranges of batch shapes that a plan is built for, and which of them a batch runs in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bertopt.errors import PlanError, UsageError

MOST = 4  # profiles made from bucket edges: each adds about a third to the time that a plan takes to build

Shape = tuple[int, int]  # rows, length


@dataclass(frozen=True)
class Profile:
    """Smallest, most common and largest shape, each (rows, length); the kernels are chosen for `opt`."""

    min: Shape
    opt: Shape
    max: Shape

    def __post_init__(self) -> None:
        if not all(1 <= low <= best <= high for low, best, high in zip(self.min, self.opt, self.max, strict=True)):
            raise UsageError(f"profile {self}: each of rows and length must grow from MIN over OPT to MAX, from at least 1")

    def __str__(self) -> str:
        return ":".join(f"{rows}x{length}" for rows, length in (self.min, self.opt, self.max))

    def holds(self, rows: int, length: int) -> bool:
        """Whether a batch fits, after it has been filled up to `min` where it is smaller."""
        return rows <= self.max[0] and length <= self.max[1]

    def shape(self, rows: int, length: int) -> Shape:
        """The shape that such a batch runs in: its own, but at least `min`."""
        return max(rows, self.min[0]), max(length, self.min[1])


@dataclass(frozen=True)
class Part:
    """Rows `start` to `stop` of a batch, run in profile `index` at `shape`."""

    index: int
    start: int
    stop: int
    shape: Shape


def parse_shape(text: str, option: str = "--profile") -> Shape:
    """`32x128` as (32, 128). Raises UsageError."""
    found = re.fullmatch(r"(\d+)x(\d+)", text.strip())
    if not found:
        raise UsageError(f"{option} {text}: a shape is ROWSxLENGTH, such as 32x128")
    return int(found[1]), int(found[2])


def parse(text: str) -> Profile:
    """`1x16:32x128:64x256` as a profile. Raises UsageError."""
    parts = text.split(":")
    if len(parts) != 3:
        raise UsageError(f"--profile {text}: a profile is MIN:OPT:MAX, such as 1x16:32x128:64x256")
    low, best, high = (parse_shape(part) for part in parts)
    return Profile(low, best, high)


def from_options(low: str | None, best: str | None, high: str | None, more: Sequence[str] = ()) -> tuple[Profile, ...]:
    """The profiles of `--min`, `--opt`, `--max` and of every `--profile`. Raises UsageError where one of the three lacks."""
    given = {"--min": low, "--opt": best, "--max": high}
    missing = [option for option, text in given.items() if text is None]
    if 0 < len(missing) < 3:
        raise UsageError(f"{' and '.join(missing)} missing: a profile has a smallest, a most common and a largest shape")
    first = [] if missing else [Profile(*(parse_shape(str(text), option) for option, text in given.items()))]
    return (*first, *map(parse, more))


def from_edges(edges: Sequence[int], batch_size: int, most: int = MOST) -> tuple[Profile, ...]:
    """At most `most` profiles that cover batches of up to `batch_size` rows at every bucket edge.

    The longest lengths get profiles of their own, each half as long as the one above: time goes by length, and kernels that
    suit 128 tokens suit 96 too. Each is tuned for its longest batch, which is the one that hurts.
    """
    ordered = sorted(set(edges))
    tops: list[int] = []
    while ordered:
        top = ordered[-1]
        tops.append(top)
        last = len(tops) == most
        ordered = [] if last else [edge for edge in ordered if 2 * edge <= top]
    tops.reverse()
    lows = [1, *(top + 1 for top in tops[:-1])]
    return tuple(Profile((1, low), (batch_size, top), (batch_size, top)) for low, top in zip(lows, tops, strict=True))


def split(profiles: Sequence[Profile], rows: int, length: int) -> list[Part]:
    """The parts that a batch of `rows` x `length` runs in: one where a profile holds it, else pieces of its rows.

    Raises PlanError, with every profile's limits, where no profile is long enough.
    """
    fitting = [i for i, profile in enumerate(profiles) if profile.max[1] >= length]
    if not fitting:
        limits = ", ".join(f"{p.max[0]} x {p.max[1]}" for p in profiles)
        raise PlanError(f"a batch of {rows} x {length} is longer than every profile of the plan, which end at {limits}")
    whole = [i for i in fitting if profiles[i].holds(rows, length)]
    if whole:
        index = min(whole, key=lambda i: _cost(profiles[i], rows, length))
        return [Part(index, 0, rows, profiles[index].shape(rows, length))]
    index = max(fitting, key=lambda i: (profiles[i].max[0], -profiles[i].max[1]))
    size = profiles[index].max[0]
    pieces = [(start, min(start + size, rows)) for start in range(0, rows, size)]
    return [
        Part(part.index, start, stop, part.shape) for start, stop in pieces for part in split(profiles, stop - start, length)
    ]


def _cost(profile: Profile, rows: int, length: int) -> tuple[int, int]:
    """Tokens that it computes, then how far its kernels were chosen from here."""
    shape = profile.shape(rows, length)
    return shape[0] * shape[1], abs(profile.opt[0] * profile.opt[1] - rows * length)
