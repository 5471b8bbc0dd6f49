"""HTTP: POST /predict and /embed, GET /healthz, /readyz, /metrics and the OpenAPI document. No text is ever logged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from bertopt.bundle import Bundle
from bertopt.serve.parse import Wish, parse
from bertopt.serve.service import Service
from bertopt.serve.setup import Settings, make_service
from bertopt.serve.tickets import Refusal, Ticket

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
JSON = b"application/json"

log = logging.getLogger("bertopt.serve")


class TooLarge(Exception):
    """The body has more bytes than are taken."""


class ClientGone(Exception):
    """Nobody waits for the answer."""


class Application:
    """The ASGI application of one bundle. Its lifespan starts the engines, and drains them at the end."""

    def __init__(
        self,
        bundle: Bundle,
        settings: Settings,
        *,
        max_body_bytes: int = 1 << 20,
        timeout_s: float = 30.0,
        drain_s: float = 30.0,
        make: Callable[..., Service] = make_service,
    ) -> None:
        from starlette.applications import Starlette
        from starlette.routing import Route

        from bertopt.serve import pages

        self.bundle, self.max_body_bytes, self.timeout_s, self.drain_s = bundle, max_body_bytes, timeout_s, drain_s
        self.service = make(bundle, settings, self._finish)
        self.failure: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answering = {path: Answering(self, path) for path in ("/predict", "/embed")}
        routes = [Route(path, answer, methods=["POST"]) for path, answer in self._answering.items()]
        self._pages = Starlette(routes=[*routes, *pages.routes(self)], lifespan=self._lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI. Texts come straight to what answers them: a router costs a request more than the queue does."""
        answering = self._answering.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (answering or self._pages)(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Any) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        starting = asyncio.create_task(self._start())
        try:
            yield
        finally:
            await asyncio.to_thread(self.service.drain, self.drain_s)
            await asyncio.to_thread(self.service.close)
            await starting

    async def _start(self) -> None:
        """Beside the requests, which are told to come back, and the health checks, which say so."""
        try:
            await asyncio.to_thread(self.service.start)
        except Exception as error:
            self.failure = error
            log.error("the server cannot start: %s", error)
            self.on_failure()

    def on_failure(self) -> None:
        """Called where the model cannot be opened; the command line ends the server."""

    def _finish(self, tickets: list[Ticket]) -> None:
        """From any thread: wake whoever waits for these."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(_wake, tickets)


def _wake(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        if not ticket.owner.done():
            ticket.owner.set_result(None)


class Answering:
    """The endpoint that answers texts."""

    def __init__(self, app: Application, path: str) -> None:
        self.app, self.path = app, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = self.app.service.metrics
        try:
            status, body, headers = await self._answer(scope, receive)
        except ClientGone:
            metrics.request(self.path, 499)  # as nginx calls it; nothing is sent
            return
        metrics.request(self.path, status)
        start = [(b"content-type", JSON), (b"content-length", str(len(body)).encode()), *headers]
        await send({"type": "http.response.start", "status": status, "headers": start})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
        embedding = self.app.bundle.manifest.task == "embedding"
        if embedding != (self.path == "/embed"):
            other, what = ("/embed", "an encoder") if embedding else ("/predict", "no encoder")
            return _refused(Refusal(404, "wrong_endpoint", f"this model is {what}: POST {other}"))
        if (full := self.app.service.full()) is not None:
            return _refused(full)
        try:
            raw = await self._body(scope, receive)
        except TooLarge:
            return _refused(Refusal(413, "body_too_large", f"the body has more than {self.app.max_body_bytes} bytes"))
        wish = parse(raw, self.app.timeout_s)
        if isinstance(wish, Refusal):
            return _refused(wish)
        ticket, refusal = await self._wait(wish, receive)
        if refusal is not None:
            return _refused(refusal)
        return 200, json.dumps(self._shape(ticket), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"), []

    def _shape(self, ticket: Ticket) -> dict[str, Any]:
        rows = [answer.as_json() for answer in ticket.answers if answer is not None]
        if self.path == "/embed":
            about = [{"tokens": row["tokens"], "truncated": row["truncated"]} for row in rows]
            return {"embeddings": [row["embedding"] for row in rows], "texts": about}
        return {"results": rows}

    async def _wait(self, wish: Wish, receive: Receive) -> tuple[Ticket, Refusal | None]:
        service, loop = self.app.service, asyncio.get_running_loop()
        now = service.clock()
        owner: asyncio.Future[None] = loop.create_future()
        ticket = Ticket(len(wish.texts), now, now + wish.timeout_s, wish.truncate, owner)
        if (refusal := service.submit(ticket, wish.texts, wish.pairs)) is not None:
            return ticket, refusal
        timer = loop.call_later(wish.timeout_s, service.expire, ticket)
        leaving = asyncio.ensure_future(_disconnected(receive))
        leaving.add_done_callback(lambda _: owner.cancel())
        try:
            await owner
        except asyncio.CancelledError:
            service.forget(ticket)
            if leaving.done() and not leaving.cancelled():
                raise ClientGone from None
            raise
        finally:
            timer.cancel()
            leaving.cancel()
        return ticket, ticket.refusal

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        limit = self.app.max_body_bytes
        stated = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if stated.isdigit() and int(stated) > limit:
            raise TooLarge
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise TooLarge
            if not message.get("more_body", False):
                return b"".join(parts)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refused(refusal: Refusal) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    headers = [] if refusal.retry_after_s is None else [(b"retry-after", str(refusal.retry_after_s).encode())]
    return refusal.status, json.dumps(refusal.as_json()).encode(), headers
