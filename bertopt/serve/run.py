"""`bertopt serve`: the application behind uvicorn, from the command line to the exit code."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bertopt.bundle import described, open_bundle
from bertopt.errors import BackendUnavailable, UsageError
from bertopt.serve.setup import Settings

BACKLOG = 2048
SWITCH_S = 0.001  # the event loop gets the interpreter back from the tokenizing thread so soon, not after 5 ms


@dataclass(frozen=True)
class Listen:
    """Where to listen, and what a connection may ask."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_body_bytes: int = 1 << 20
    timeout_s: float = 30.0
    drain_s: float = 30.0

    def check(self) -> None:
        for option, value in {
            "--max-body-kib": self.max_body_bytes,
            "--timeout-s": self.timeout_s,
            "--drain-s": self.drain_s,
        }.items():
            if value <= 0:
                raise UsageError(f"{option} {value:g} is too small")
        if not 0 <= self.port <= 65535:
            raise UsageError(f"--port {self.port} is no port")


def serve_bundle(folder: Path, settings: Settings, listen: Listen) -> int:
    """Serve until a signal; 0 when what was taken on is done, 1 where the model could not be opened."""
    listen.check()
    settings.check()
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise BackendUnavailable(f"serving wants {error.name}: pip install 'bertopt[serve]'") from None

    from bertopt.feed import rust_threads
    from bertopt.serve.app import Application

    bundle = open_bundle(folder)
    application = Application(
        bundle, settings, max_body_bytes=listen.max_body_bytes, timeout_s=listen.timeout_s, drain_s=listen.drain_s
    )
    with _listening(listen) as sock:
        host, port = sock.getsockname()[:2]
        config = uvicorn.Config(
            application,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=int(listen.drain_s) + 1,
        )
        server = uvicorn.Server(config)

        def give_up() -> None:
            server.should_exit = True

        application.on_failure = give_up  # type: ignore[method-assign]
        for line in described(bundle.manifest):
            print(line)
        print(f"listening at http://{host}:{port} (docs at /docs)", flush=True)
        sys.setswitchinterval(SWITCH_S)
        # Beside a computation on the same cores, one call of the tokenizer spread over them costs half as much again
        with rust_threads(bundle.manifest.device != "cpu"), _own_signals():
            server.run([sock])
    if application.failure is not None:
        print(f"bertopt: {application.failure}", file=sys.stderr)
        return 1
    print("drained, and stopped", flush=True)
    return 0


@contextlib.contextmanager
def _listening(listen: Listen) -> Iterator[socket.socket]:
    """Bound before the model is loaded, so that a port that is taken is said at once."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((listen.host, listen.port))
        except OSError as error:
            raise UsageError(f"cannot listen at {listen.host}:{listen.port}: {error.strerror or error}") from None
        sock.listen(BACKLOG)
        yield sock


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Uvicorn answers signals by draining, and raises them again when it has: here that is the end, and no failure."""
    signal.set_wakeup_fd(-1)  # the command line's own, which would end the process within a second
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
