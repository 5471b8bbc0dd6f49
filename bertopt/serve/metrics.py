"""What a server counts, for Prometheus. No text is ever a label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
PHASES = ("tokenize", "queue", "compute", "total")


class Metrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self, waiting: Callable[[], int], engines: Callable[[], int]) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        about: dict[str, Any] = {"registry": self.registry}
        self._requests = Counter("bertopt_requests", "Requests by endpoint and status.", ("endpoint", "status"), **about)
        seconds = Histogram("bertopt_request_seconds", "Time of a text, by phase.", ("phase",), buckets=SECONDS, **about)
        self.phases = {phase: seconds.labels(phase) for phase in PHASES}
        self.texts = Counter("bertopt_texts", "Texts that were answered.", **about)
        self.rows = Histogram("bertopt_batch_rows", "Texts of a batch.", buckets=(1, 2, 4, 8, 16, 32, 64, 128), **about)
        self.padding = Histogram(
            "bertopt_batch_padding_fraction", "Padding over computed tokens.", buckets=[n / 10 for n in range(11)], **about
        )
        tokens = Counter("bertopt_tokens", "Tokens, real ones and those that were computed.", ("kind",), **about)
        self.real_tokens, self.computed_tokens = tokens.labels("real"), tokens.labels("computed")
        dropped = Counter("bertopt_dropped", "Texts that were not computed, by reason.", ("reason",), **about)
        self.dropped = {reason: dropped.labels(reason) for reason in ("client gone", "deadline", "queue full")}
        self.failures = Counter("bertopt_batch_failures", "Batches on which the back end raised or died.", **about)
        self.restarts = Counter("bertopt_engine_restarts", "Engines that were started again.", **about)
        Gauge("bertopt_queue_texts", "Texts that wait.", **about).set_function(waiting)
        Gauge("bertopt_engines_ready", "Engines that answer.", **about).set_function(engines)
        self._by_status: dict[tuple[str, int], Any] = {}

    def request(self, endpoint: str, status: int) -> None:
        """Count one request. Endpoints are those of the application; others are counted together."""
        key = endpoint, status
        if key not in self._by_status:
            self._by_status[key] = self._requests.labels(endpoint, str(status))
        self._by_status[key].inc()

    def text(self) -> bytes:
        """The exposition format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
