"""`bertopt export`: from a run, or from a plan, to a bundle: the best rung's model with everything that answers texts."""

from __future__ import annotations

import dataclasses
import datetime
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bertopt
from bertopt import plan as plans
from bertopt import records
from bertopt.backends.base import Artifact, backend
from bertopt.bundle import MANIFEST, RECORD, TOKENIZER, Bundle, File, Manifest, open_bundle
from bertopt.errors import BackendUnavailable, ModelError, PlanError, UsageError
from bertopt.files import digest, write_bytes, write_text
from bertopt.heads import SERVED
from bertopt.model import Checkpoint, open_checkpoint
from bertopt.plan import Plan
from bertopt.records import LadderRecord, RungRecord
from bertopt.workspace import Workspace

Say = Callable[[str], None]
WEIGHTS = ("config.json", "modules.json", "1_Pooling/config.json")  # beside the weights' own files and the tokenizer


@dataclass(frozen=True)
class Wanted:
    """Everything that `bertopt export` can be told."""

    source: Path  # a run's folder or ladder.json, or a plan
    out: Path = Path("bundle")
    rung: str | None = None  # None: the run's best
    model: str | None = None  # None: the one that the run names
    calibration: Path | None = None  # cache for INT8; None: the one that the rung was made with


def export(wanted: Wanted, say: Say = lambda text: None) -> Bundle:
    """Write the bundle at `wanted.out`, whole or not at all; a bundle that lies there is replaced.

    Raises UsageError for a rung that cannot be served, ModelError for another model or a task without answers, and what
    the rung's back end raises where its model has to be made again and cannot be.
    """
    _check_out(wanted.out)
    if plans.manifest_path(wanted.source).is_file():
        return _from_plan(wanted)
    record = records.load_ladder(wanted.source)
    rung = _rung(record, wanted)
    say(f"{record.model.name}, rung {rung.name}")
    checkpoint = _checkpoint(record, wanted)
    about = _manifest(record, rung, checkpoint)
    module = backend(about.backend)
    if reason := module.available(about.device):
        raise BackendUnavailable(reason)
    say("preparing the model")
    artifact: Artifact = module.prepare(_workspace(record, rung, checkpoint, wanted), rung.stages["precision"])
    with beside(wanted.out) as fresh:
        kind, name = _keep(artifact.content, fresh)
        _keep_tokenizer(checkpoint, about.max_length, fresh)
        write_text(fresh / RECORD, records.to_json(record))
        about = dataclasses.replace(
            about,
            kind=kind,
            artifact=name,
            # A checkpoint is prepared again when it is opened, by the precision that the ladder asked for
            precision=rung.stages["precision"] if kind == "checkpoint" else artifact.precision,
            info={} if kind == "checkpoint" else _plain(artifact.info),
            notes=[*about.notes, *artifact.notes],
            files=_hashes(fresh),
        )
        write_text(fresh / MANIFEST, records.to_json(about))
    return open_bundle(wanted.out)


def _rung(record: LadderRecord, wanted: Wanted) -> RungRecord:
    name = wanted.rung or record.best
    if name is None:
        raise UsageError(f"{wanted.source} has no best rung, since none passed its checks: name one with --rung")
    rung = record.rung(name)
    if rung is None:
        raise UsageError(f"{wanted.source} has no rung {name!r}; it has {', '.join(r.name for r in record.rungs)}")
    if rung.status != "measured":
        raise UsageError(f"the rung {name} of {wanted.source} was {rung.status} and cannot be exported: {rung.reason}")
    if rung.gate == "failed":
        raise UsageError(f"the rung {name} of {wanted.source} failed its accuracy gate, so it is not exported")
    return rung


def _checkpoint(record: LadderRecord, wanted: Wanted) -> Checkpoint:
    random = record.model.weights == "random"
    checkpoint = open_checkpoint(wanted.model or record.model.source, random_weights=random)
    if checkpoint.fingerprint != record.model.fingerprint:
        raise ModelError(
            f"the run was made with {record.model.name} {record.model.fingerprint}, and {checkpoint.source} is "
            f"{checkpoint.fingerprint}: give the same --model"
        )
    if checkpoint.task not in SERVED:
        raise ModelError(f"{checkpoint.name} is for {checkpoint.task}, which is not served: {', '.join(SERVED)} are")
    return checkpoint


def _workspace(record: LadderRecord, rung: RungRecord, checkpoint: Checkpoint, wanted: Wanted) -> Workspace:
    """What the rung was prepared from: the run's own graph where it still lies there, its edges and its calibration."""
    known = record.environment.get("canonical_graph")
    canonical = Path(known) if known and Path(known).exists() else None
    workspace: Any = Workspace(checkpoint, canonical=canonical, device=record.device)
    workspace.bucket_edges, workspace.batch_size = tuple(rung.bucket_edges or ()), record.batch_size
    if rung.stages["precision"] == "int8":
        workspace.calibration = _calibration(rung, workspace, wanted)
    return workspace


def _calibration(rung: RungRecord, workspace: Workspace, wanted: Wanted) -> Any:
    """The calibration that the rung was measured with, from the cache of the workspace or the file that is given."""
    from bertopt import calibration

    if wanted.calibration is not None:
        return calibration.load(wanted.calibration)
    used = (rung.graph or {}).get("calibration")
    for file in sorted(workspace.folder.glob("calibration-*.json")):
        found = calibration.load(file)
        if found.sha256 == used:
            return found
    raise UsageError(
        f"the calibration {str(used)[:12]} of the rung {rung.name} is not in the cache any more: give --calibration"
    )


def _manifest(record: LadderRecord, rung: RungRecord, checkpoint: Checkpoint) -> Manifest:
    """All that is known before the model is prepared."""
    from bertopt.plan import tokenizer_fingerprint

    notes = [] if rung.gate in (None, "passed") else [f"its accuracy is {rung.gate}"]
    if checkpoint.weights != "trained":
        notes.append(f"weights: {checkpoint.weights}, so that its answers mean nothing")
    return Manifest(
        name=checkpoint.name,
        rung=rung.name,
        device=record.device,
        backend=rung.stages["backend"],
        kind="",
        artifact="",
        precision=str(rung.precision),
        task=checkpoint.task,
        labels=checkpoint.labels,
        outputs=checkpoint.outputs,
        model_type=checkpoint.model_type,
        pad_id=checkpoint.pad_id,
        uses_type_ids=checkpoint.uses_type_ids,
        max_length=record.sequence_length,
        batching=rung.stages["batching"],
        batch_size=record.batch_size,
        bucket_edges=list(rung.bucket_edges or ()),
        window=rung.window or 1024,
        created=_now(),
        bertopt_version=bertopt.__version__,
        model_fingerprint=checkpoint.fingerprint,
        tokenizer_fingerprint=tokenizer_fingerprint(checkpoint.folder),
        weights=checkpoint.weights,
        offline_seq_s=rung.throughput_seq_s,
        gate=rung.gate,
        notes=notes,
    )


def _from_plan(wanted: Wanted) -> Bundle:
    """A plan that knows its tokenizer and labels is served as it is."""
    if wanted.rung or wanted.model or wanted.calibration:
        raise UsageError(f"{wanted.source} is a plan: --rung, --model and --calibration are for runs")
    from bertopt.predict import BACKENDS, served_by

    plan = plans.open_plan(wanted.source)
    m, folder = plan.manifest, plans.tokenizer_folder(wanted.source)
    if m.task is None or not folder.is_dir():
        raise PlanError(f"{wanted.source} does not keep its task and tokenizer, as older plans do not: build it again")
    if m.task not in SERVED:
        raise ModelError(f"{wanted.source} is for {m.task}, which is not served: {', '.join(SERVED)} are")
    if m.library not in BACKENDS:
        raise BackendUnavailable(f"{wanted.source} is for {m.library}, which no back end runs")
    served = served_by(plan)
    with beside(wanted.out) as fresh:
        kind, name = _keep(plan, fresh)
        for file in folder.iterdir():
            write_bytes(fresh / TOKENIZER / file.name, file.read_bytes())
        about = Manifest(
            name=m.model_name or wanted.source.stem,
            rung="plan",
            device="cpu" if m.compute_capability is None else "cuda",
            backend=BACKENDS[m.library],
            kind=kind,
            artifact=name,
            precision=m.precision,
            task=m.task,
            labels=m.labels,
            outputs=len(m.labels) if m.labels else None,
            model_type=m.model_type,
            pad_id=m.pad_id,
            uses_type_ids="token_type_ids" in m.inputs,
            max_length=served.max_length,
            batching="bucketed",
            batch_size=served.batch_size,
            bucket_edges=list(served.edges),
            window=served.window,
            created=_now(),
            bertopt_version=bertopt.__version__,
            model_fingerprint=m.model_fingerprint,
            tokenizer_fingerprint=m.tokenizer_fingerprint,
            weights=m.weights,
            gate=m.gate.get("verdict") if m.gate else None,
            notes=[] if m.gate else ["its accuracy is not gated"],
            files=_hashes(fresh),
        )
        write_text(fresh / MANIFEST, records.to_json(about))
    return open_bundle(wanted.out)


def _keep(content: Any, folder: Path) -> tuple[str, str]:
    """Copy what a back end opens into the bundle: its kind and its name there."""
    if isinstance(content, Plan):
        shutil.copyfile(content.path, folder / "model.plan")
        shutil.copyfile(plans.manifest_path(content.path), plans.manifest_path(folder / "model.plan"))
        return "plan", "model.plan"
    if isinstance(content, Checkpoint):
        home = folder / "checkpoint"
        for file in [*(content.folder / name for name in WEIGHTS), *content.files, *_tokenizer_files(content.folder)]:
            if file.is_file():
                target = home / file.relative_to(content.folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
        if not content.files:
            raise UsageError(f"{content.name} has random weights, which a bundle of {content.architecture} cannot keep")
        return "checkpoint", "checkpoint"
    from bertopt.graph import storage

    graph = Path(content)
    _, *weights = storage.files(graph)
    shutil.copyfile(graph, folder / "model.onnx")
    for file in weights:  # named in the graph
        shutil.copyfile(file, folder / file.name)
    return "graph", "model.onnx"


def _keep_tokenizer(checkpoint: Checkpoint, max_length: int, folder: Path) -> None:
    home = folder / TOKENIZER
    for file in _tokenizer_files(checkpoint.folder):
        write_bytes(home / file.name, file.read_bytes())
    if not (home / "tokenizer.json").exists():  # a vocabulary alone wants transformers; this does not
        write_text(home / "tokenizer.json", checkpoint.tokenizer(max_length).rust.to_str())


def _tokenizer_files(folder: Path) -> list[Path]:
    return sorted({file for pattern in plans.TOKENIZER_FILES for file in folder.glob(pattern)})


def _plain(info: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if isinstance(value, (str, int, float, bool))}


def _hashes(folder: Path) -> dict[str, File]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): File(path.stat().st_size, digest([path])) for path in files}


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _check_out(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"cannot write to {out}: it is no folder")
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file():
        raise UsageError(f"cannot write to {out}: it holds something else than a bundle, which is not overwritten")


@contextmanager
def beside(out: Path) -> Iterator[Path]:
    """A folder beside `out` that is moved onto it when the block ends well, and removed when it does not."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror or error}") from None
    try:
        yield fresh
        fresh.chmod(0o755)
        if out.exists():
            old = fresh.with_suffix(".old")
            os.replace(out, old)
            shutil.rmtree(old)
        os.replace(fresh, out)
    except OSError as error:
        raise UsageError(f"cannot write to {out}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
