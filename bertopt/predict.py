"""Requests answered by a plan or by a checkpoint in eager FP32, batched as they will be served -> what the gate judges.

    candidate = predict_plan("engines/model.plan", requests)
    reference = predict_checkpoint("demo", requests, served_by(open_plan("engines/model.plan")))

Torch is imported for a checkpoint only. Both sides see the same rows in the same shapes; speed is end to end, from text to
logits on the host, with tokenizing ahead of compute.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bertopt import feed, profiles
from bertopt import plan as plans
from bertopt.backends.base import Artifact, Options, Session, backend
from bertopt.batching import Bucketed, batches, choose_edges
from bertopt.errors import BackendUnavailable, DataError, ModelError, PlanError, UsageError
from bertopt.gate import Predictions, text_hashes
from bertopt.gate.predictions import TASKS
from bertopt.measure.cores import usable_cores
from bertopt.measure.loop import Pass, run_pass
from bertopt.model import Checkpoint
from bertopt.plan import Manifest, Plan, open_plan
from bertopt.run import Progress, warm_up
from bertopt.text import Requests
from bertopt.tokenization import FastTokenizer, Tokens, effective_length, load_tokenizer
from bertopt.tokens import DEFAULT_LENGTH

TIMED_ROWS = 1024  # the first requests of a file: one window, the same for both sides
PASSES, MOST_PASSES = 3, 25
ENOUGH_S, TOO_LONG_S = 1.0, 15.0  # of timed passes: as many more as fill the first, and no more than two beyond the second
IN_FLIGHT = 2
BACKENDS = {"OpenVINO": "openvino", "TensorRT": "tensorrt"}  # library of a plan -> back end that runs it


@dataclass(frozen=True)
class Served:
    """The shapes that requests are served in: bucketed, at most `batch_size` rows padded to one of `edges` tokens."""

    batch_size: int = 32
    edges: tuple[int, ...] = (DEFAULT_LENGTH,)
    window: int = 1024

    @property
    def max_length(self) -> int:
        """Tokens beyond which a text is truncated."""
        return max(self.edges)

    @property
    def policy(self) -> Bucketed:
        return Bucketed(self.batch_size, self.edges, max(self.window, self.batch_size))


def served_by(plan: Plan | Manifest, *, max_length: int | None = None, batch_size: int | None = None) -> Served:
    """How a plan was built to be served: its bucket edges, or the ends of its profiles, and their rows.

    Raises UsageError for a length that the plan does not take.
    """
    manifest = plan.manifest if isinstance(plan, Plan) else plan
    shapes = [profiles.parse(text) for text in manifest.profiles]
    edges = manifest.bucket_edges or sorted({p.max[1] for p in shapes}) or [max_length or DEFAULT_LENGTH]
    if max_length is not None:
        if max_length > max(edges) and (shapes or manifest.bucket_edges):
            raise UsageError(f"--seq {max_length} is more than the {max(edges)} tokens that the plan was built for")
        edges = [*(e for e in edges if e < max_length), max_length]
    rows = batch_size or max((p.max[0] for p in shapes), default=Served.batch_size)
    return Served(rows, tuple(edges))


def served_for(tokens: Tokens, max_length: int, *, batch_size: int = 32, window: int = 1024) -> Served:
    """The shapes that suit these rows, where no plan prescribes any."""
    window = max(window, batch_size)
    return Served(batch_size, choose_edges(tokens.lengths, max_length, batch_size=batch_size, window=window), window)


def predict_plan(
    path: os.PathLike[str] | str,
    requests: Requests,
    *,
    served: Served | None = None,
    model: Checkpoint | None = None,
    proxy: bool = False,
    threads: int | None = None,
    passes: int = PASSES,
    progress: Progress | None = None,
) -> Predictions:
    """A plan's answers to every request, in order. Needs no torch where the plan keeps its tokenizer and labels itself.

    `model` stands in for what an older plan lacks. `proxy` answers with the graph that the plan was built from, on the CPU,
    where the plan's own device is missing. Raises PlanError for a plan that does not fit this machine or the model,
    BackendUnavailable where its device is missing. Speed is the median of `passes` over the first window; 0 leaves it out.
    """
    path = Path(path)
    manifest = plans.read_manifest(path)
    task, labels, trained = _described(path, manifest, model)
    served = served or served_by(manifest)
    tokenizer = _plan_tokenizer(path, manifest, served.max_length, model)
    artifact, name = (_proxy(path, manifest), "openvino") if proxy else _own(path, manifest)
    device = "cuda" if name == "tensorrt" else "cpu"
    who = _Who(
        name=str(path),
        fingerprint=manifest.plan_sha256[:16],
        task=task,
        labels=labels,
        weights=trained,
        evidence="proxy" if proxy else "plan",
        precision=manifest.precision if proxy else None,
    )
    options = Options(device, IN_FLIGHT, pinned=device == "cuda", threads=threads, pad_id=manifest.pad_id)
    with backend(name).open(artifact, options) as session:
        return _answer(session, tokenizer, requests, served, device, who, passes, progress)


def predict_checkpoint(
    model: Checkpoint | str,
    requests: Requests,
    served: Served | None = None,
    *,
    max_length: int | None = None,
    batch_size: int | None = None,
    device: str = "cpu",
    threads: int | None = None,
    passes: int = PASSES,
    progress: Progress | None = None,
) -> Predictions:
    """A checkpoint's answers in eager FP32. `served` are the shapes of the plan that it is compared with; without any, those
    that suit the requests, `batch_size` (32) of them cut at `max_length` tokens (128, or as many as the model has).

    Raises ModelError for a task without a gate, UsageError for a length beyond the model's positions.
    """
    from bertopt.model import open_checkpoint
    from bertopt.workspace import Workspace

    checkpoint = open_checkpoint(model) if isinstance(model, str) else model
    _check_task(checkpoint.task, checkpoint.name)
    longest = checkpoint.max_positions
    length = (served.max_length if served else max_length) or min(DEFAULT_LENGTH, longest)
    length = effective_length(checkpoint.folder, length, longest)
    tokenizer = checkpoint.tokenizer(length)
    if served is None:
        tokens = tokenizer.encode(requests.texts, requests.pairs)
        served = served_for(tokens, length, batch_size=batch_size or Served.batch_size)
    module = backend("eager")
    if reason := module.available(device):
        raise BackendUnavailable(reason)
    who = _Who(checkpoint.name, checkpoint.fingerprint, checkpoint.task, checkpoint.labels, checkpoint.weights)
    options = Options(device, IN_FLIGHT, pinned=device == "cuda", threads=threads, pad_id=checkpoint.pad_id)
    with module.open(module.prepare(Workspace(checkpoint, device=device), "fp32"), options) as session:
        return _answer(session, tokenizer, requests, served, device, who, passes, progress)


@dataclass(frozen=True)
class _Who:
    """What answers."""

    name: str
    fingerprint: str
    task: str
    labels: list[str] | None
    weights: str
    evidence: str = "plan"
    precision: str | None = None  # None: what the session says


def _answer(
    session: Session,
    tokenizer: FastTokenizer,
    requests: Requests,
    served: Served,
    device: str,
    who: _Who,
    passes: int,
    progress: Progress | None,
) -> Predictions:
    """Every request once, then `passes` or more timed ones over the first window, all shapes warm; 0 measures no speed."""
    policy, short = served.policy, Path(who.name).name
    say = progress.stage if progress else lambda text: None
    say(f"{short}: warming up")
    warm_up(session, list(batches([tokenizer.encode(requests.texts, requests.pairs)], policy)), 2 if device == "cuda" else 1)
    # Computation has the cores of a CPU; on a GPU one core is left for the loop.
    count = 1 if device == "cpu" else max(1, usable_cores() - 1)
    with feed.Workers(tokenizer, count, processes=device == "cuda") as workers:

        def answer(of: Requests) -> Pass:
            depth = policy.window // feed.CHUNK_ROWS + 2 * count
            done = run_pass(_told(workers.ahead(of, depth=depth), progress), policy, session, len(of), IN_FLIGHT)
            if done.failures:
                raise PlanError(f"{who.name} fails on {len(done.failures)} of its batches, first with: {done.failures[0]}")
            return done

        if progress:
            progress.total(float(len(requests)))
        say(f"{short}: answering {len(requests):,} rows")
        logits = answer(requests).answers.stacked()
        timed, start = requests.take(range(min(TIMED_ROWS, len(requests)))), time.perf_counter()
        speeds: list[float] = []
        while passes and (len(speeds) < passes or (time.perf_counter() - start < ENOUGH_S and len(speeds) < MOST_PASSES)):
            if time.perf_counter() - start > TOO_LONG_S and len(speeds) > 1:
                break
            say(f"{short}: timing, pass {len(speeds) + 1}")
            speeds.append(answer(timed).throughput_seq_s)
    return Predictions(
        name=who.name,
        backend=session.version,
        precision=who.precision or session.precision,
        task=who.task,
        labels=who.labels,
        logits=logits,
        text_hashes=text_hashes(requests.texts, requests.pairs),
        fingerprint=who.fingerprint,
        data=requests.name,
        data_fingerprint=requests.fingerprint,
        device=_device(device),
        evidence=who.evidence,
        weights=who.weights,
        max_length=served.max_length,
        throughput_seq_s=median(speeds) if speeds else None,
        throughput_low_seq_s=min(speeds, default=None),
        throughput_high_seq_s=max(speeds, default=None),
    )


def _told(chunks: Iterable[feed.Chunk], progress: Progress | None) -> Iterator[feed.Chunk]:
    for chunk in chunks:
        yield chunk
        if progress:
            progress.advance(float(len(chunk.tokens)))


def _own(path: Path, manifest: Manifest) -> tuple[Artifact, str]:
    """The plan for its own library, and the back end."""
    name = BACKENDS.get(manifest.library)
    if name is None:
        raise BackendUnavailable(f"{path} is for {manifest.library}, whose plans do not run here: --proxy judges its graph")
    if name == "tensorrt" and (reason := backend(name).available("cuda")):
        what, colon, remedy = reason.partition(": ")
        raise BackendUnavailable(f"{path} cannot run here, {what} (--proxy judges its graph on the CPU){colon}{remedy}")
    plan = open_plan(path)
    return Artifact(plan, manifest.precision, "token_type_ids" in manifest.inputs), name


def _proxy(path: Path, manifest: Manifest) -> Artifact:
    """The graph that lies beside a TensorRT plan, for OpenVINO."""
    from bertopt.graph.emit import describe, inputs

    if reason := backend("openvino").available("cpu"):
        raise BackendUnavailable(reason)
    graph = path.with_name(f"{path.name}.onnx")
    if not graph.exists():
        own = "an OpenVINO plan is judged itself" if manifest.library == "OpenVINO" else "it was built from another place"
        raise PlanError(f"there is no graph {graph} to stand in for {path}: {own}")
    placement = describe(graph).placement
    info = {} if placement is None else {"linears": placement.linears, "int8_linears": placement.quantized_linears}
    return Artifact(graph, manifest.precision, "token_type_ids" in inputs(graph), info)


def _described(path: Path, manifest: Manifest, model: Checkpoint | None) -> tuple[str, list[str] | None, str]:
    """Task, labels and kind of weights: the manifest's own, or the model's that it is said to be of."""
    if model is not None:
        if manifest.model_fingerprint not in (None, model.fingerprint):
            raise PlanError(
                f"{path} was built of {manifest.model_name} {manifest.model_fingerprint}, and --model is {model.name} "
                f"{model.fingerprint}"
            )
        _check_task(model.task, str(path))
        return model.task, model.labels, model.weights
    if manifest.task is None:
        raise PlanError(f"{path} does not say what its answers mean, as older plans do not: give --model, or build it again")
    _check_task(manifest.task, str(path))
    return manifest.task, manifest.labels, manifest.weights or "trained"


def _plan_tokenizer(path: Path, manifest: Manifest, max_length: int, model: Checkpoint | None) -> FastTokenizer:
    from bertopt.plan import tokenizer_fingerprint

    folder = model.folder if model is not None else plans.tokenizer_folder(path)
    if not folder.is_dir():
        raise PlanError(f"{path} has no tokenizer beside it ({folder.name}): give --model, or build it again")
    found = tokenizer_fingerprint(folder)
    if manifest.tokenizer_fingerprint not in (None, found):
        raise PlanError(f"{path} was built for tokenizer {manifest.tokenizer_fingerprint}, and {folder} is {found}")
    kind = manifest.model_type if model is None else model.model_type
    return load_tokenizer(folder, max_length=max_length, model_type=kind)


def _check_task(task: str, name: str) -> None:
    if task not in TASKS:
        raise ModelError(f"{name} is for {task}, which has no gate: there is one for {', '.join(TASKS)}")


def _device(device: str) -> str:
    if device == "cpu":
        return plans.processor()
    from bertopt.backends.driver import device as card

    found = card()
    if found is None:
        raise DataError("the CUDA device is gone")
    return found.name
