"""`bertopt load`: from a URL and a file of texts to a record."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import bertopt
from bertopt.errors import UsageError
from bertopt.loadtest.client import Target
from bertopt.loadtest.openloop import find, highest, hold
from bertopt.loadtest.records import Curve, LoadRecord, Point
from bertopt.text import Requests, read

LATE_MS = 10.0  # beyond it the client was busier than the server, and the figures are its own


@dataclass(frozen=True)
class Wanted:
    """Everything that `bertopt load` can be told."""

    urls: Sequence[str]  # each with a name before "=", or not
    data: Path | None = None
    columns: dict[str, Any] = field(default_factory=dict)  # text, text_pair: names or numbers
    rate: float = 50.0
    seconds: float = 30.0
    slo_ms: float = 200.0
    find: bool = False
    texts: int = 1  # a request
    limit: int | None = None
    seed: int = 0
    command: str = "bertopt load"

    def check(self) -> None:
        for option, value in {"--rate": self.rate, "--seconds": self.seconds, "--slo-ms": self.slo_ms}.items():
            if not 0 < value < float("inf"):
                raise UsageError(f"{option} {value:g} is no positive number")
        if self.texts < 1:
            raise UsageError(f"--texts {self.texts} is too small: at least 1")


def load_test(wanted: Wanted, say: Callable[[str], None] = lambda text: None) -> LoadRecord:
    """Ask each server in turn. Raises UsageError where one does not answer at all."""
    wanted.check()
    targets = [_named(url) for url in wanted.urls]
    requests = _requests(wanted)
    curves = []
    for name, target in targets:
        sent = bodies(requests, wanted.texts)
        _greet(target, sent[0])

        def measure(rate: float, target: Target = target, sent: list[bytes] = sent, name: str = name) -> Point:
            say(f"{name}: {rate:.1f} requests a second for {wanted.seconds:g} s")
            point = hold(target, sent, rate, wanted.seconds, wanted.slo_ms, seed=wanted.seed)
            time.sleep(0.5)  # what an overloaded server still has in its queue
            return point

        points = find(measure, wanted.rate) if wanted.find else [measure(wanted.rate)]
        late = max(point.late_ms for point in points if point.within_slo or len(points) == 1) if points else 0.0
        notes = [f"requests were sent up to {late:.0f} ms late: the client has too few cores"] if late > LATE_MS else []
        curves.append(Curve(name, points, highest(points) if wanted.find else None, notes))
    return LoadRecord(
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=wanted.command,
        bertopt_version=bertopt.__version__,
        data=f"{len(requests)} texts of {requests.name}",
        texts_a_request=wanted.texts,
        slo_ms=wanted.slo_ms,
        curves=curves,
    )


def bodies(requests: Requests, texts: int) -> list[bytes]:
    """Bodies of `texts` texts each; one text is sent as such."""
    pairs = requests.pairs or [None] * len(requests)
    found = []
    for start in range(0, max(1, len(requests) - texts + 1), texts):
        some, seconds = requests.texts[start : start + texts], pairs[start : start + texts]
        body: dict[str, Any] = {"text": some[0]} if texts == 1 else {"texts": some}
        if any(second is not None for second in seconds):
            body |= {"text_pair": seconds[0]} if texts == 1 else {"text_pairs": seconds}
        found.append(json.dumps(body).encode())
    return found


def _requests(wanted: Wanted) -> Requests:
    if wanted.data is not None:
        return read(wanted.data, limit=wanted.limit, **wanted.columns)
    from bertopt import demo

    found = demo.texts()
    return found.take(range(min(wanted.limit or len(found), len(found))))


def _named(url: str) -> tuple[str, Target]:
    name, equals, rest = url.partition("=")
    if not equals or "/" in name:
        name, rest = url, url
    return name, Target.parse(rest, "/predict")


def _greet(target: Target, body: bytes) -> None:
    """One request, so that a wrong address or a wrong model is a sentence and not a table of failures."""
    where, connection = f"http://{target.host}:{target.port}{target.path}", HTTPConnection(target.host, target.port, timeout=60)
    try:
        connection.request("POST", target.path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, HTTPException) as error:
        raise UsageError(f"--url {where}: nobody answers there ({error})") from None
    finally:
        connection.close()
    if answer.status not in (200, 429):
        raise UsageError(f"--url {where} answers {answer.status}: {content[:200].decode(errors='replace')}")
