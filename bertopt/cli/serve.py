"""`bertopt serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from bertopt.cli.options import option


def serve(
    bundle: Annotated[Path, typer.Argument(help="A folder that bertopt export wrote.")],
    max_wait_ms: Annotated[float, typer.Option(help="The longest that a text waits for a fuller batch.")] = 5.0,
    max_batch_tokens: Annotated[
        Optional[int], option("--max-batch-tokens", help="Padded tokens of a batch (default: where a launch costs 5 %).")
    ] = None,
    max_queue: Annotated[
        Optional[int], option("--max-queue", help="Texts that may wait; beyond it 429 (default: a second of work).")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any free one.")] = 8000,
    instances: Annotated[int, typer.Option(help="Engines, a process each; on a CPU they share out the cores.")] = 1,
    batching: Annotated[str, typer.Option(help="bundle (as the rung was measured), bucketed, dynamic or alone.")] = "bundle",
    max_body_kib: Annotated[int, typer.Option(help="Largest body of a request, in KiB.")] = 1024,
    timeout_s: Annotated[float, typer.Option(help="Longest that a request may take.")] = 30.0,
    drain_s: Annotated[float, typer.Option(help="Longest that requests are finished after SIGTERM.")] = 30.0,
) -> int:
    """Serve a bundle over HTTP until SIGTERM or Ctrl-C, which finish what was taken on."""
    from bertopt.serve.run import Listen, serve_bundle
    from bertopt.serve.setup import Settings

    settings = Settings(max_wait_ms, max_batch_tokens, max_queue, instances, batching)
    return serve_bundle(bundle, settings, Listen(host, port, max_body_kib * 1024, timeout_s, drain_s))
