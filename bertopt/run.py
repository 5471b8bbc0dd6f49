"""Opens rungs, warms them up, and measures them in turn on the same texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bertopt import feed, ladder
from bertopt.backends.base import Artifact, Options, Session, backend
from bertopt.batching import Batch, Policy, batches, policy
from bertopt.errors import BackendUnavailable, BertoptError, UsageError
from bertopt.ladder import Pipeline, Rung
from bertopt.measure import arithmetic
from bertopt.measure.cores import usable_cores
from bertopt.measure.gpu import GpuProbe
from bertopt.measure.loop import Answers, Pass, replay, run_pass
from bertopt.measure.process import ProcessProbe
from bertopt.measure.summary import Repeat
from bertopt.records import Parity
from bertopt.text import Requests
from bertopt.tokenization import Tokens
from bertopt.tokens import DEFAULT_LENGTH
from bertopt.workspace import Workspace

HEADROOM = 2.0  # together workers took 1.3 times what one takes alone, and one that is just in time is late at every hiccup
COUNTER_SECONDS = 0.5  # a window in which the card's counters tick often enough to mean something


class Progress(Protocol):
    """What the run tells whoever is waiting. Work is in seconds, estimated."""

    def stage(self, text: str) -> None: ...
    def total(self, seconds: float) -> None: ...
    def advance(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class Settings:
    """What the user asked for."""

    batch_size: int = 32
    sequence_length: int = DEFAULT_LENGTH
    repeats: int = 3
    window: int = 1024
    workers: int | None = None  # None: chosen from the times of the first batches
    device: str = "cpu"
    in_flight: int = 2  # from prefetch on


@dataclass
class Opened:
    """A rung that is ready to be measured, and what was seen of it so far."""

    rung: Rung
    pipeline: Pipeline
    session: Session
    policy: Policy
    tokenizer: feed.Tokenizer
    artifact: Artifact
    batches: list[Batch]  # of all requests; the texts are the same in every pass
    workers: int | None
    in_flight: int
    prepare_s: float
    warmup_s: float
    first_batch_ms: float
    parity: Parity | None = None
    broken: str | None = None  # what a library said when it could not go on; the rung is not measured further
    repeats: list[Repeat] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Missing:
    """A rung that did not get as far as being measured."""

    rung: Rung
    pipeline: Pipeline
    status: str  # "skipped" or "failed"
    reason: str
    remedy: str | None = None  # the command that would make it run


class Runner:
    """Opens and measures rungs. Sessions are shared by rungs that differ only in what feeds them, and closed together."""

    def __init__(
        self,
        settings: Settings,
        workspace: Workspace,
        requests: Requests,
        tokens: Tokens,
        tokenizers: dict[str, feed.Tokenizer],
        edges: tuple[int, ...],
        progress: Progress,
    ) -> None:
        self.settings, self.workspace, self.requests, self.tokens = settings, workspace, requests, tokens
        self.tokenizers, self.edges, self.progress = tokenizers, edges, progress
        self._pools: dict[tuple[int, int], feed.Workers] = {}  # by tokenizer and number of workers
        self._sessions: dict[tuple[Any, ...], tuple[Session, Artifact, float]] = {}  # by back end, precision, pinning

    def close(self) -> None:
        for session, _, _ in self._sessions.values():
            session.close()
        self._sessions.clear()
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def open(self, rung: Rung, table: Iterable[Rung], judge: Callable[[Opened], Parity]) -> Opened | Missing:
        """Prepare, open, warm up and judge a rung. One that cannot run here is Missing, with the reason."""
        device = self.settings.device
        choice = ladder.pipeline(rung, device, tuple(table))
        try:
            self._check_available(choice)
            opened = self._open(rung, choice)
            opened.parity = judge(opened)
            return opened
        except (BackendUnavailable, ModuleNotFoundError) as error:
            reason, colon, remedy = str(error).rpartition(": ")
            return Missing(rung, choice, "skipped", reason if colon else remedy, remedy if colon else None)
        except UsageError:
            raise
        except BertoptError as error:
            return Missing(rung, choice, "failed", str(error))
        except Exception as error:  # whatever a library raises: this rung fails, and the others are measured
            return Missing(rung, choice, "failed", _words(error))

    def _check_available(self, choice: Pipeline) -> None:
        try:
            module = backend(choice.backend)
        except ModuleNotFoundError:
            raise BackendUnavailable(f"this version of bertopt has no {choice.backend} back end") from None
        reason = module.available(self.settings.device)
        if reason is not None:
            raise BackendUnavailable(reason)

    def _open(self, rung: Rung, choice: Pipeline) -> Opened:
        start = time.perf_counter()
        ahead = choice.feed == "workers"
        options = Options(
            device=self.settings.device,
            in_flight=self.settings.in_flight if ahead else 1,
            pinned=ahead and self.settings.device == "cuda",
            pad_id=self.workspace.checkpoint.pad_id,
        )
        key = (choice.backend, choice.precision, options.pinned)
        if key not in self._sessions:
            module = backend(choice.backend)
            artifact = module.prepare(self.workspace, choice.precision)
            self._sessions[key] = (module.open(artifact, options), artifact, time.perf_counter() - start)
        session, artifact, prepare_s = self._sessions[key]
        grouping = self.policy(choice)
        grouped = list(batches([self.tokens], grouping, first_window=self._first_window))
        # A session that captures CUDA graphs does so when it meets a shape again
        first_ms, warmup_s = warm_up(session, grouped, rounds=2 if self.settings.device == "cuda" else 1)
        opened = Opened(
            rung=rung,
            pipeline=choice,
            session=session,
            policy=grouping,
            tokenizer=self.tokenizers[choice.tokenizer],
            artifact=artifact,
            batches=grouped,
            workers=None,
            in_flight=options.in_flight,
            prepare_s=prepare_s,
            warmup_s=warmup_s,
            first_batch_ms=first_ms,
            notes=list(artifact.notes),
        )
        if ahead:
            opened.workers = self._workers(opened)
            self._pool(opened.tokenizer, opened.workers)
        return opened

    def policy(self, choice: Pipeline) -> Policy:
        asked = self.settings
        return policy(
            choice.batching,
            batch_size=asked.batch_size,
            length=asked.sequence_length,
            edges=self.edges,
            window=asked.window,
        )

    def _workers(self, opened: Opened) -> int:
        """As asked, or as many as the first batches want: ceil(T_h / T_d), and never more than the cores."""
        cores = usable_cores()
        if self.settings.workers is not None:
            if self.settings.workers > cores:
                opened.notes.append(f"{self.settings.workers} workers were asked for; {cores} run, one a core")
            return min(self.settings.workers, cores)
        few = opened.batches[:: max(1, len(opened.batches) // 4)][:4]
        rows = sum(b.rows for b in few)
        device_ms = replay(opened.session, few, opened.in_flight) / len(few) * 1e3
        with feed.rust_threads(False):
            start = time.perf_counter()
            opened.tokenizer.encode(self.requests.texts[:rows], self.requests.pairs[:rows] if self.requests.pairs else None)
        host_ms = (time.perf_counter() - start) / len(few) * 1e3
        wanted = arithmetic.workers_needed(host_ms * (HEADROOM if self.settings.device == "cuda" else 1.0), device_ms)
        # Computation has the cores of a CPU. Beside a GPU the loop that launches wants one of its own.
        chosen = max(1, min(wanted, cores if self.settings.device == "cpu" else cores - 1))
        opened.notes.append(
            f"workers: {host_ms:.2f} ms of tokenizing over {device_ms:.2f} ms on the device wants {wanted}; {chosen} run"
        )
        return chosen

    def measure(self, opened: Opened, ceilings: dict[Any, float]) -> None:
        """One repeat: the timed pass, and beside it the two ceilings. `ceilings` is shared by the rungs of one repeat."""
        if opened.broken is not None:
            return
        try:
            self._measure(opened, ceilings)
        except BertoptError:
            raise
        except Exception as error:  # as in open
            opened.broken = _words(error)

    def _measure(self, opened: Opened, ceilings: dict[Any, float]) -> None:
        with ProcessProbe() as process, GpuProbe(self.settings.device) as gpu:
            done = self.run_pass(opened)
        if not done.batches:
            opened.broken = f"every batch failed: {done.failures[0]}"
            return
        device_key = (id(opened.session), opened.policy)
        if device_key not in ceilings:
            seconds = replay(opened.session, opened.batches, opened.in_flight)
            ceilings[device_key] = len(self.requests) / seconds
        tokenizer_key = (id(opened.tokenizer), opened.workers)
        if tokenizer_key not in ceilings:
            start = time.perf_counter()
            for _ in self._chunks(opened):
                pass
            ceilings[tokenizer_key] = len(self.requests) / (time.perf_counter() - start)

        if self.settings.device == "cuda" and done.seconds < COUNTER_SECONDS:
            gpu = self._longer_probe(opened)
        opened.repeats.append(Repeat(done, process, gpu, ceilings[device_key], ceilings[tokenizer_key]))

    def _longer_probe(self, opened: Opened) -> GpuProbe:
        """The card's counters over passes enough for them to tick; outside the timed one."""
        end = time.perf_counter() + COUNTER_SECONDS
        with GpuProbe(self.settings.device) as gpu:
            while time.perf_counter() < end:
                self.run_pass(opened)
        return gpu

    def run_pass(self, opened: Opened) -> Pass:
        """One pass over all requests as the rung does it, from raw texts to answers."""
        return run_pass(
            self._chunks(opened),
            opened.policy,
            opened.session,
            len(self.requests),
            opened.in_flight,
            first_window=self._first_window,
        )

    @property
    def _first_window(self) -> int | None:
        """A GPU is fast enough to notice the wait for a first whole window; a CPU has the padding to lose."""
        return self.settings.window // 4 if self.settings.device == "cuda" else None

    def _chunks(self, opened: Opened) -> Iterable[feed.Chunk]:
        if opened.workers is None:
            return feed.serial(self.requests, opened.tokenizer, rows=opened.policy.window)
        # A whole window is taken at once, so the workers must be allowed to have the next one ready.
        depth = opened.policy.window // feed.CHUNK_ROWS + 2 * opened.workers
        first_rows = feed.CHUNK_ROWS // 8 if self._first_window else None
        return self._pool(opened.tokenizer, opened.workers).ahead(self.requests, depth=depth, first_rows=first_rows)

    def _pool(self, tokenizer: feed.Tokenizer, workers: int) -> feed.Workers:
        key = (id(tokenizer), workers)
        if key not in self._pools:
            self._pools[key] = feed.Workers(tokenizer, workers, processes=self.settings.device == "cuda")
        return self._pools[key]


def _words(error: Exception) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def warm_up(session: Session, grouped: list[Batch], rounds: int = 1) -> tuple[float, float]:
    """Every shape `rounds` times, outside the clock, since libraries compile at the first sight: (first batch ms, seconds)."""
    start = time.perf_counter()
    first_ms = 0.0
    shapes = list({b.layout: b for b in reversed(grouped)}.values())
    for batch in shapes * rounds:
        session.launch(session.stage(batch)).result()
        first_ms = first_ms or (time.perf_counter() - start) * 1e3
    return first_ms, time.perf_counter() - start


def logits_of(session: Session, grouped: Iterable[Batch], requests: int) -> NDArray[np.float32]:
    """Logits of these batches by position; [requests, labels], or [tokens, labels] for per-token heads."""
    answers = Answers(requests)
    for batch in grouped:
        answers.put(batch, session.launch(session.stage(batch)).result())
    return answers.stacked()
