"""HTTP/1.1 for load: as little of the processor as a client can take, since it often runs beside the server that it judges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from bertopt.errors import UsageError

MOST_CONNECTIONS = 1024


@dataclass(frozen=True)
class Target:
    """Where requests go."""

    host: str
    port: int
    path: str

    @staticmethod
    def parse(url: str, path: str | None = None) -> Target:
        """`http://host:port[/path]`; `path` where the URL has none. Raises UsageError."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port or 80
        except ValueError:
            raise UsageError(f"--url {url}: that is no port") from None
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(f"--url {url}: http://HOST:PORT is wanted")
        return Target(parts.hostname, port, parts.path if parts.path.strip("/") else path or "/")

    def request(self, body: bytes) -> bytes:
        """A whole POST request."""
        head = f"POST {self.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Connection(asyncio.Protocol):
    """One request at a time. `told` gets the status, 0 where the connection broke, and the body."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.told: Callable[[int, bytes], None] | None = None
        self.open = False
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.open = transport, True  # type: ignore[assignment]  # uvloop's is of no class of asyncio

    def send(self, request: bytes, told: Callable[[int, bytes], None]) -> None:
        assert self.transport is not None
        self.told, self._data = told, b""
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), None)
        if length is None:
            self._end(0, b"")  # an answer without a length is no answer of a service
        elif len(body) >= length:
            if b"connection: close" in lines:
                self.open = False
            self._end(int(lines[0].split()[1]), body)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self._end(0, b"")

    def _end(self, status: int, body: bytes) -> None:
        told, self.told = self.told, None
        if told is not None:
            told(status, body)

    def close(self) -> None:
        self.told = None
        if self.transport is not None:
            self.transport.close()


class Pool:
    """Connections that are kept alive and opened as they are needed."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._idle: list[Connection] = []
        self._all: list[Connection] = []
        self._opening: set[asyncio.Task[None]] = set()

    def send(self, request: bytes, told: Callable[[int, bytes], None]) -> None:
        """Send on an idle connection, or on a new one. `told` is called once."""
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                self._on(connection, request, told)
                return
        one = asyncio.ensure_future(self._on_new(request, told))
        self._opening.add(one)
        one.add_done_callback(self._opening.discard)

    async def _on_new(self, request: bytes, told: Callable[[int, bytes], None]) -> None:
        connection = await self._open()
        if connection is None:
            told(0, b"")
        else:
            self._on(connection, request, told)

    def _on(self, connection: Connection, request: bytes, told: Callable[[int, bytes], None]) -> None:
        def done(status: int, body: bytes) -> None:
            if connection.open:
                self._idle.append(connection)
            told(status, body)

        connection.send(request, done)

    async def _open(self) -> Connection | None:
        self._all = [one for one in self._all if one.open]
        if len(self._all) >= MOST_CONNECTIONS:
            return None
        try:
            _, made = await asyncio.get_running_loop().create_connection(Connection, self.target.host, self.target.port)
        except OSError:
            return None
        self._all.append(made)
        return made

    def close(self) -> None:
        for connection in self._all:
            connection.close()
