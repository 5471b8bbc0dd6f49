"""What a load test writes down; plain JSON by `bertopt.records`."""

from __future__ import annotations

from dataclasses import dataclass, field

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Point:
    """One rate, held for a while. Latencies run from when a request was due, not from when it could be sent."""

    rate_asked: float  # requests a second, Poisson
    seconds: float
    sent: int
    answered: int  # with status 200
    refused: int  # with status 429
    failed: dict[str, int]  # status, or "no answer" -> requests
    rate_answered: float  # requests a second until the last answer
    goodput: float  # answered within the SLO, a second
    p50_ms: float | None  # of the answered ones
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    late_ms: float  # 99 % of the requests were sent within this of when they were due
    within_slo: bool  # 99 % of all that were sent were answered within the SLO


@dataclass(frozen=True)
class Curve:
    """One server at several rates."""

    name: str
    points: list[Point]
    highest_rate: float | None = None  # asked, of the points within the SLO
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LoadRecord:
    created: str
    command: str
    bertopt_version: str
    data: str
    texts_a_request: int
    slo_ms: float
    curves: list[Curve]
    notes: list[str] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION
