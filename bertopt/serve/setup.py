"""From a bundle and what the user asked for to a service that is ready to start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bertopt.batching import Dynamic, Packed, TokenBudget
from bertopt.bundle import Bundle
from bertopt.errors import UsageError
from bertopt.measure.cores import usable_cores
from bertopt.serve.cost import Cost
from bertopt.serve.engine import Engine, Opener, Probe, bundle_opener
from bertopt.serve.grouping import STEPS, Alone, Bucketed, FirstCome, Grouping
from bertopt.serve.scheduler import Queue
from bertopt.serve.service import Head, Service
from bertopt.serve.tickets import Item, Ticket

BATCHING = ("bundle", "bucketed", "dynamic", "alone")
QUEUE_S = 1.0  # work that may wait where --max-queue is left to us
PROBED_ROWS = (1, 4, 16)
IN_FLIGHT = 2
WARM_SHARE = 2  # of the largest batch: what is larger comes when a server is busy, and is met soon


@dataclass(frozen=True)
class Settings:
    """What `bertopt serve` can be told about batches."""

    max_wait_ms: float = 5.0
    max_batch_tokens: int | None = None  # None: as many as make the launch a small part of the time
    max_queue: int | None = None  # None: QUEUE_S of work
    instances: int = 1
    batching: str = "bundle"
    threads: int | None = None  # of an engine; None: the usable cores shared out

    def check(self) -> None:
        """UsageError for what no bundle can do."""
        if self.max_wait_ms < 0:
            raise UsageError(f"--max-wait-ms {self.max_wait_ms:g} is negative")
        for option, value in {"--max-batch-tokens": self.max_batch_tokens, "--max-queue": self.max_queue}.items():
            if value is not None and value < 1:
                raise UsageError(f"{option} {value} is too small: at least 1")
        if self.instances < 1:
            raise UsageError(f"--instances {self.instances} is too small: at least 1")
        if self.batching not in BATCHING:
            raise UsageError(f"--batching {self.batching}: one of {', '.join(BATCHING)}")


def make_service(
    bundle: Bundle, settings: Settings, finish: Callable[[list[Ticket]], None], *, opener: Opener | None = None
) -> Service:
    """The service of a bundle, not started. Raises UsageError for settings that do not fit it."""
    settings.check()
    m = bundle.manifest
    if settings.max_batch_tokens is not None and settings.max_batch_tokens < m.max_length:
        raise UsageError(
            f"--max-batch-tokens {settings.max_batch_tokens} has no room for one text of {m.max_length} tokens, "
            "the longest that this bundle takes"
        )
    if settings.batching == "bucketed" and not m.bucket_edges:
        raise UsageError(f"--batching bucketed: the rung {m.rung} of this bundle has no bucket edges")
    cores = usable_cores()
    if m.device == "cpu" and settings.instances > cores:
        raise UsageError(f"--instances {settings.instances} is more than the {cores} cores that may be used")
    threads = settings.threads or (max(1, cores // settings.instances) if m.device == "cpu" else None)
    opener = opener or bundle_opener(bundle.folder, threads, IN_FLIGHT)
    probe = _probe(bundle, settings)
    engines = [Engine(opener, probe, f"bertopt engine {number}") for number in range(settings.instances)]

    def make_queue(cost: Cost) -> tuple[Queue[Item], int]:
        chosen = grouping(bundle, settings, cost)
        row_s = cost.batch_s / 8 + cost.row(m.max_length // 2)
        room = int(QUEUE_S * settings.instances / max(row_s, 1e-6))
        limit = settings.max_queue or min(8192, max(2 * m.batch_size, room))
        return Queue(chosen, settings.max_wait_ms / 1e3, cost.of), limit

    return Service(bundle.tokenizer(), Head(m.task, m.labels, m.max_length), engines, finish, make_queue=make_queue)


def grouping(bundle: Bundle, settings: Settings, cost: Cost) -> Grouping:
    """How requests make batches: as the bundle's rung did it, or as asked."""
    m, asked = bundle.manifest, settings.batching
    policy: Any = bundle.policy()
    if asked == "bundle":
        asked = m.batching
    if asked == "alone":
        return Alone()
    if asked == "dynamic":
        return FirstCome(Dynamic(m.batch_size), m.batch_size)
    if asked == "bucketed":
        most = settings.max_batch_tokens or min(cost.efficient_tokens(m.max_length), m.batch_size * m.max_length)
        return Bucketed(tuple(m.bucket_edges), m.batch_size, most, cost, window=max(m.window, m.batch_size))
    return FirstCome(policy, policy.max_rows if isinstance(policy, TokenBudget) else m.batch_size)


def _probe(bundle: Bundle, settings: Settings) -> Probe:
    """Batches that tell the cost: few lengths, and few rows of each."""
    m = bundle.manifest
    edges: Sequence[int] = m.bucket_edges or [max(4, m.max_length // 8), m.max_length // 2, m.max_length]
    lengths = tuple(sorted({edges[0], edges[len(edges) // 2], edges[-1]}))
    layout = bundle.policy().group(_one(m.max_length))[0].layout
    rows = tuple(row for row in PROBED_ROWS if row <= m.batch_size)
    if isinstance(layout, Packed):
        return Probe(lengths, (1,), (layout.budget, m.max_length))
    if m.batching != "bucketed" or settings.batching not in ("bundle", "bucketed"):
        return Probe(lengths, rows)
    most = settings.max_batch_tokens or max(m.max_length, m.batch_size * m.max_length // WARM_SHARE)
    warm = [(row, edge) for row in STEPS for edge in m.bucket_edges if row <= m.batch_size and row * edge <= most]
    return Probe(lengths, rows, warm=tuple(warm))


def _one(length: int) -> Any:
    import numpy as np

    return np.array([length], dtype=np.int64)
