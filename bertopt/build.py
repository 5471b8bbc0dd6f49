"""A graph -> a plan with its manifest: rewrite, build in a child process, judge its answers, put everything in place.

`engines` finds model, texts and shapes for `bertopt build-engine` and ends here; so does the ladder's fp16 rung.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib
import os
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bertopt
from bertopt import calibration as caches
from bertopt import plan as plans
from bertopt.answers import feeds_of, judge, text_batches
from bertopt.builders import BUILDERS, process, versions
from bertopt.builders.process import Built, Job, Progress
from bertopt.errors import BackendUnavailable, UsageError
from bertopt.files import digest
from bertopt.plan import Manifest, Plan, tokenizer_fingerprint
from bertopt.profiles import Profile

if TYPE_CHECKING:
    from bertopt.calibration import Calibration
    from bertopt.graph.emit import Emitted, Int8
    from bertopt.model import Checkpoint
    from bertopt.records import Parity
    from bertopt.tokens import Tokens

TARGETS = ("auto", "tensorrt", "tensorrt-rtx", "openvino")
JUDGED_EVERY = 4  # of those batches, the share whose answers are compared
TACTICS = ("all", "internal")
TACTICS_VARIABLE = "BERTOPT_TENSORRT_TACTICS"  # for whom no option reaches: "internal" where cuBLAS is absent


@dataclass(frozen=True)
class Identity:
    """Whose graph it is; all of it ends in the manifest."""

    model_name: str | None = None
    model_fingerprint: str | None = None
    tokenizer_fingerprint: str | None = None
    task: str | None = None
    labels: list[str] | None = None
    weights: str | None = None
    model_type: str | None = None
    tokenizer: Path | None = None  # the folder whose files are copied beside the plan, and not in the manifest


@dataclass(frozen=True)
class Result:
    """A plan that was built, and everything worth telling about how."""

    plan: Plan
    target: str
    emitted: Emitted
    parity: Parity | None  # of its answers with the graph in FP32; None where it could not run here
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people: which target and why, what FP16 left out, whether answers held, then the manifest."""
        said = self.emitted.report.lines() if self.emitted.report else []
        return [*self.notes, *said, *plans.describe(self.plan.manifest)]


def choose_target(wanted: str) -> tuple[str, str]:
    """A target that can build here, and one sentence that says which and why.

    Raises UsageError for an unknown one and BackendUnavailable, with the reason, where it cannot build.
    """
    if wanted not in TARGETS:
        raise UsageError(f"--target {wanted}: one of {', '.join(TARGETS)}")
    if wanted != "auto":
        reason = _unavailable(wanted)
        if reason:
            raise BackendUnavailable(f"--target {wanted} cannot build here: {reason}")
        return wanted, f"target {wanted}, as asked for"
    reason = _unavailable("tensorrt")
    if reason is None:
        return "tensorrt", "target tensorrt"
    fallback = _unavailable("openvino")
    if fallback:
        raise BackendUnavailable(f"no plan can be built here: {reason}; {fallback}")
    return "openvino", f"target openvino: {reason}"


@dataclass(frozen=True)
class Made:
    """A plan that was built and judged, beside everything that belongs to it, in a folder that goes unless it is kept."""

    plan: Plan
    target: str
    emitted: Emitted
    parity: Parity | None
    notes: list[str]
    out: Path  # where it is to go
    cache: Path  # likewise its kernels' timings
    tokenizer: Path | None
    calibration: Calibration | None

    def keep(self, **changes: Any) -> Result:
        """Put it in place; `changes` are fields of its manifest. An older plan there is replaced."""
        manifest = dataclasses.replace(self.plan.manifest, **changes)
        _put_in_place(self.plan.path, self.out, self.cache, keep_graph=self.target != "openvino")
        _put_beside(self.out, self.tokenizer, self.calibration)
        plans.save(self.out, manifest)
        emitted = dataclasses.replace(self.emitted, path=_graph_path(self.out))
        return Result(Plan(self.out, manifest), self.target, emitted, self.parity, self.notes)


def build_plan(graph: Path, out: Path, **how: Any) -> Result:
    """As `building`, whose arguments it takes, and keep the plan, with its manifest beside it."""
    with building(graph, out, **how) as made:
        return made.keep()


@contextlib.contextmanager
def building(
    graph: Path,
    out: Path,
    *,
    target: str = "auto",
    precision: str = "fp16",
    profiles: Sequence[Profile] = (),
    tokens: Tokens | None = None,
    pad_id: int = 0,
    identity: Identity | None = None,
    bucket_edges: Sequence[int] = (),
    tactics: str | None = None,
    int8: Int8 | None = None,
    judged: bool = True,
    rebuild: str = "bertopt build-engine",
    progress: Progress | None = None,
) -> Iterator[Made]:
    """Build `graph` (canonical FP32, or emitted before) into a plan that can be put at `out`.

    `profiles` are what a TensorRT plan is built for; an OpenVINO plan takes any shape. `tokens` are real texts, by which
    FP16 is judged before and after; without them only a graph that is FP16 already can be built. `tactics` is "all" or
    "internal"; None takes it from the environment. `int8` is what precision "int8" is placed by. `judged` is False where
    the caller judges its answers. `progress` is called a few times a second with the seconds that passed and what is being
    done. Raises GraphError where the plan's answers are not
    the graph's, or less is in INT8 than was placed. An error or Ctrl-C leaves nothing behind.
    """
    from bertopt.graph import storage
    from bertopt.graph.emit import emit

    chosen, why = choose_target(target)
    key, library = _library(chosen)
    who = identity or Identity()
    if chosen != "openvino" and not profiles:
        raise UsageError(f"a {library} plan is built for shapes: give --profile MIN:OPT:MAX")
    set_apart, start = options(chosen, tactics), time.monotonic()
    batches = list(text_batches(tokens)) if tokens is not None else []
    with _beside(out) as folder:
        if progress is not None:
            progress(0.0, "rewriting the graph")
        feeds = feeds_of(graph, batches, pad_id) if batches else None
        emitted = emit(graph, folder / f"{out.name}.onnx", key, precision=precision, feeds=feeds, int8=int8)
        job = Job(
            builder=BUILDERS[chosen],
            target=key,
            onnx=str(emitted.path),
            out=str(folder / out.name),
            precision=precision,
            fp32_nodes=emitted.fp32_nodes,
            quantized=emitted.products,
            profiles=[str(p) for p in profiles] if chosen != "openvino" else [],
            tactics="internal" if set_apart else "all",
            timing_cache=str(folder / "timing"),
            layers=str(folder / f"{out.name}.layers.json"),
        )
        device, capability = _device(chosen)
        cache = timing_cache(out, library, capability)
        with contextlib.suppress(FileNotFoundError):
            (folder / "timing").write_bytes(cache.read_bytes())
        built = process.run(job, progress)
        manifest = Manifest(
            library=library,
            library_version=str(versions.installed(library)),
            device_name=device,
            compute_capability=capability,
            precision=built.precision,
            graph_sha256=storage.digest(graph),
            plan_bytes=Path(job.out).stat().st_size,
            plan_sha256=digest([Path(job.out)]),
            created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            bertopt_version=bertopt.__version__,
            rebuild=rebuild,
            options=set_apart,
            calibration_sha256=int8.calibration.sha256 if int8 is not None else None,
            groups=emitted.groups,
            fp32_nodes=emitted.fp32_nodes,
            profiles=job.profiles,
            bucket_edges=list(bucket_edges),
            inputs=built.inputs,
            outputs=built.outputs,
            build_s=round(time.monotonic() - start, 1),
            layers=built.layers,
            equivalent=_equivalent(job, out, built),
            notes=[*(emitted.placement.lines() if emitted.placement else []), *built.notes],
            pad_id=pad_id,
            **{name: value for name, value in vars(who).items() if name != "tokenizer"},
        )
        if progress is not None:
            progress(time.monotonic() - start, "judging its answers")
        plan = Plan(Path(job.out), manifest)
        verdict, said = None, "its answers are the gate's to judge"
        if judged:
            verdict, said = judge(plan, chosen, graph, emitted.path, batches[::JUDGED_EVERY], pad_id)
        plans.save(plan.path, manifest)
        calibration = int8.calibration if int8 is not None else None
        _put_beside(plan.path, who.tokenizer, calibration)
        yield Made(plan, chosen, emitted, verdict, [why, said], out, cache, who.tokenizer, calibration)


def identify(checkpoint: Checkpoint) -> Identity:
    """A checkpoint's name and fingerprints, for a manifest."""
    return Identity(
        checkpoint.name,
        checkpoint.fingerprint,
        tokenizer_fingerprint(checkpoint.folder),
        checkpoint.task,
        checkpoint.labels,
        checkpoint.weights,
        checkpoint.model_type,
        checkpoint.folder,
    )


def options(target: str, tactics: str | None = None) -> str:
    """What sets a build apart from an ordinary one, in the words of its results. Raises UsageError for unknown tactics."""
    tactics = tactics or os.environ.get(TACTICS_VARIABLE, "all")
    if tactics not in TACTICS:
        raise UsageError(f"tactics {tactics!r}: one of {', '.join(TACTICS)}")
    return "cuBLAS tactics off" if tactics == "internal" and target != "openvino" else ""


def timing_cache(out: Path, library: str, capability: str | None) -> Path:
    """Where kernel timings are kept: beside the plan, shared by the plans of one library and kind of card."""
    version = versions.installed(library)
    return out.with_name(f"{library.replace(' ', '-').lower()}-{version}-{capability}.timing")


def _unavailable(target: str) -> str | None:
    return importlib.import_module(f"bertopt.builders.{BUILDERS[target]}").unavailable(target)


def _library(target: str) -> tuple[str, str]:
    """Key of graph.emit.TARGETS, and the library's name."""
    if target == "openvino":
        return "openvino", "OpenVINO"
    from bertopt.builders.tensorrt import row

    chosen = row(target)
    return chosen.target, chosen.library


def _device(target: str) -> tuple[str | None, str | None]:
    """What the plan will be bound to: this processor, this card, or (TensorRT for RTX) nothing."""
    if target == "openvino":
        return plans.processor(), None
    from bertopt.backends.driver import device

    card = device() if target == "tensorrt" else None
    return (card.name, card.compute_capability) if card else (None, None)


def _equivalent(job: Job, out: Path, built: Built) -> str | None:
    if job.builder != "tensorrt":
        return None
    from bertopt.builders.tensorrt import equivalent

    return equivalent(job, shlex.quote(str(_graph_path(out))), shlex.quote(str(out)), list(built.inputs))


def _graph_path(out: Path) -> Path:
    """Where the graph that a TensorRT plan was built from stays, for the library's own tools."""
    return out.with_name(f"{out.name}.onnx")


def _put_in_place(made: Path, out: Path, cache: Path, *, keep_graph: bool) -> None:
    for file in (f for f in made.parent.iterdir() if f.is_file()):
        if file.name == "timing":
            os.replace(file, cache)
        elif keep_graph or not file.name.startswith(f"{out.name}.onnx"):
            os.replace(file, out.with_name(file.name))


def _put_beside(plan: Path, tokenizer: Path | None, calibration: Calibration | None) -> None:
    """What a plan is served and judged with, and needs no library of its own to read."""
    if tokenizer is not None:
        plans.keep_tokenizer(tokenizer, plan)
    if calibration is not None:
        caches.save(calibration, plans.calibration_path(plan))


@contextlib.contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A folder beside `out` for everything half-finished; removed in any case. Raises UsageError where none can be made."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror or error}") from None
    with folder as name:
        yield Path(name)
