"""The Ray Serve deployment that `bertopt export --target ray` writes an application of."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from bertopt.bundle import open_bundle
from bertopt.serve.parse import parse
from bertopt.serve.setup import Settings, make_service
from bertopt.serve.tickets import Refusal, Ticket

LONGEST_S = 30.0
PAUSES_S = (0.05, 0.2, 0.5, 1.0, 2.0)  # before a request is sent again


class Replica:
    """One replica: bertopt's service with engines of its own. A request is a JSON body, as for POST /predict."""

    def __init__(self, folder: str, threads: int | None = None) -> None:
        bundle = open_bundle(Path(folder))
        self.embedding = bundle.manifest.task == "embedding"
        self.service = make_service(bundle, Settings(threads=threads), self._finish)
        self.service.start()

    def _finish(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            loop, owner = ticket.owner
            loop.call_soon_threadsafe(_wake, owner)

    async def answer(self, raw: bytes) -> tuple[int, dict[str, Any]]:
        """Status and answer of one body."""
        wish = parse(raw, LONGEST_S)
        if isinstance(wish, Refusal):
            return wish.status, wish.as_json()
        loop = asyncio.get_running_loop()
        owner: asyncio.Future[None] = loop.create_future()
        now = self.service.clock()
        ticket = Ticket(len(wish.texts), now, now + wish.timeout_s, wish.truncate, (loop, owner))
        refusal = self.service.submit(ticket, wish.texts, wish.pairs)
        if refusal is None:
            try:
                await owner
            except asyncio.CancelledError:
                self.service.forget(ticket)
                raise
            refusal = ticket.refusal
        if refusal is not None:
            return refusal.status, refusal.as_json()
        rows = [answer.as_json() for answer in ticket.answers if answer is not None]
        if self.embedding:
            return 200, {"embeddings": [row["embedding"] for row in rows]}
        return 200, {"results": rows}

    def pid(self) -> int:
        return os.getpid()

    def check_health(self) -> None:
        """Ray asks now and then, and replaces a replica that raises."""
        if all(dispatcher.failed for dispatcher in self.service.dispatchers):
            raise RuntimeError("no engine of this replica can be started")

    def __del__(self) -> None:
        self.service.drain(5.0)
        self.service.close()


class Front:
    """HTTP to replicas. A request whose replica dies, or is going to, is sent again: answering twice changes nothing."""

    def __init__(self, replicas: Any) -> None:
        self.replicas = replicas

    async def answer(self, raw: bytes) -> tuple[int, dict[str, Any]]:
        from ray.exceptions import RayActorError

        for pause_s in (*PAUSES_S, None):
            try:
                status, body = await self.replicas.answer.remote(raw)
            except RayActorError:
                status, body = 503, Refusal(503, "replica_died", "the replicas that had the request died").as_json()
            if status != 503 or pause_s is None:
                break
            await asyncio.sleep(pause_s)
        return status, body

    async def __call__(self, request: Any) -> Any:
        """POST, with a body as for /predict of `bertopt serve`."""
        from starlette.responses import JSONResponse

        status, body = await self.answer(await request.body())
        return JSONResponse(body, status)


def _wake(owner: asyncio.Future[None]) -> None:
    if not owner.done():
        owner.set_result(None)


def build(folder: Path, *, num_replicas: int | None = None, threads: int | None = None, **options: Any) -> Any:
    """The application. `num_replicas` fixes their number; without it Ray scales by the requests that are under way.

    `options` go to the deployment, such as `ray_actor_options={"num_gpus": 0.5}`.
    """
    from ray import serve

    scaling = {"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 64}
    number: dict[str, Any] = {"autoscaling_config": scaling} if num_replicas is None else {"num_replicas": num_replicas}
    settings = {"max_ongoing_requests": 256, "health_check_period_s": 5} | number | options
    deployment: Any = serve.deployment
    replicas = deployment(Replica, name="Bert", **settings).bind(str(Path(folder).resolve()), threads)
    front = deployment(Front, name="Front", max_ongoing_requests=1024, ray_actor_options={"num_cpus": 0})
    return front.bind(replicas)
