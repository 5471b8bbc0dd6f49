"""A bundle: one folder with everything that answers texts, and the manifest that says what it is.

bundle.json     the manifest: task, labels, back end, bucket edges, and the hash of every other file
model.onnx      the graph (or model.plan with its own manifest, or checkpoint/ for a back end that runs the weights)
tokenizer/      the tokenizer's files, the very ones that were measured
record.json     the run that it came from

with bertopt.load("bundle/") as model:
    for answer in model.predict(["one text", "another"]):
        print(answer.label, answer.score)
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertopt.backends.base import Artifact, Options, Session, backend
from bertopt.batching import Policy, batches, policy
from bertopt.errors import BackendUnavailable, DataError, PlanError, UsageError
from bertopt.files import digest
from bertopt.heads import Answer, interpret
from bertopt.plan import open_plan
from bertopt.run import logits_of
from bertopt.tokenization import FastTokenizer, load_tokenizer

SCHEMA_VERSION = 1
MANIFEST, TOKENIZER, RECORD = "bundle.json", "tokenizer", "record.json"
CHUNK_ROWS = 1024  # texts tokenized at a time: what is held in memory beside the answers


@dataclass(frozen=True)
class File:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a bundle is."""

    name: str  # of the model
    rung: str  # of the ladder, or "plan" where it was made from a plan alone
    device: str  # "cpu" or "cuda"
    backend: str  # a module of bertopt.backends
    kind: str  # "graph", "plan" or "checkpoint"
    artifact: str  # its file or folder
    precision: str  # "fp32", "bf16", "fp16", "int8"
    task: str
    labels: list[str] | None  # in logit order
    outputs: int | None
    model_type: str | None
    pad_id: int
    uses_type_ids: bool
    max_length: int  # tokens beyond which a text is truncated
    batching: str  # "fixed", "dynamic", "bucketed" or "packed"
    batch_size: int
    bucket_edges: list[int]
    window: int
    created: str  # ISO 8601, UTC
    bertopt_version: str
    model_fingerprint: str | None = None
    tokenizer_fingerprint: str | None = None
    weights: str | None = None  # "trained", "random" or "random head"
    offline_seq_s: float | None = None  # what the ladder measured
    gate: str | None = None
    info: dict[str, Any] = field(default_factory=dict)  # of the artifact: products in INT8 and the like
    notes: list[str] = field(default_factory=list)
    files: dict[str, File] = field(default_factory=dict)  # path within the bundle -> size and hash
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Bundle:
    """A bundle that is whole. Nothing of it is loaded yet."""

    folder: Path
    manifest: Manifest

    def tokenizer(self) -> FastTokenizer:
        """The tokenizer that was measured, with the same limit."""
        m = self.manifest
        return load_tokenizer(self.folder / TOKENIZER, max_length=m.max_length, model_type=m.model_type, name=m.name)

    def policy(self) -> Policy:
        """How the rung grouped its requests."""
        m, edges = self.manifest, tuple(self.manifest.bucket_edges)
        return policy(m.batching, batch_size=m.batch_size, length=m.max_length, edges=edges, window=m.window)

    def open(self, *, threads: int | None = None, in_flight: int = 1) -> Session:
        """A session on the model. Raises BackendUnavailable, PlanError or GraphError where it cannot run here."""
        m = self.manifest
        module = backend(m.backend)
        if reason := module.available(m.device):
            raise BackendUnavailable(reason)
        options = Options(m.device, in_flight, pinned=m.device == "cuda", threads=threads, pad_id=m.pad_id)
        return module.open(self._artifact(module), options)

    def _artifact(self, module: Any) -> Artifact:
        m, path = self.manifest, self.folder / self.manifest.artifact
        if m.kind == "checkpoint":
            from bertopt.model import open_checkpoint
            from bertopt.workspace import Workspace

            return module.prepare(Workspace(open_checkpoint(str(path)), device=m.device), m.precision)
        content = open_plan(path) if m.kind == "plan" else path
        if m.kind == "graph" and m.precision == "int8":
            _check_levels(m)
        return Artifact(content, m.precision, m.uses_type_ids, dict(m.info))


class Predictor:
    """A bundle that answers. Not for several threads at once; `close` it, or use it in a `with`."""

    def __init__(self, bundle: Bundle, *, threads: int | None = None) -> None:
        self.bundle = bundle
        self.tokenizer = bundle.tokenizer()
        self.session = bundle.open(threads=threads)
        self._policy = bundle.policy()

    @property
    def labels(self) -> list[str] | None:
        return self.bundle.manifest.labels

    def predict(self, texts: Iterable[str], pairs: Iterable[str | None] | None = None) -> list[Answer]:
        """An answer a text, in order; `pairs` are second texts, None for a row that has none.

        Raises DataError for what is no text, GraphError where the model gives NaN.
        """
        rows, seconds = checked(texts, pairs)
        found: list[Answer] = []
        for start in range(0, len(rows), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            tokens = self.tokenizer.encode(rows[part], None if seconds is None else seconds[part])
            logits = logits_of(self.session, batches([tokens], self._policy), len(tokens))
            found += interpret(self.bundle.manifest.task, self.labels, logits, tokens.lengths, tokens.cut)
        return found

    def embed(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """[N, hidden] vectors of an encoder. Raises UsageError where the bundle is none."""
        if self.bundle.manifest.task != "embedding":
            raise UsageError(f"{self.bundle.folder} is for {self.bundle.manifest.task}, and gives no embeddings")
        answers = self.predict(texts)
        hidden = self.bundle.manifest.outputs or 0
        return (
            np.stack([a.embedding for a in answers if a.embedding is not None])
            if answers
            else np.empty((0, hidden), np.float32)
        )

    def close(self) -> None:
        self.session.close()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def load(folder: os.PathLike[str] | str, *, threads: int | None = None) -> Predictor:
    """A bundle ready to answer. Needs no torch where its back end needs none.

    Raises PlanError where the folder is no whole bundle, BackendUnavailable where its library or device is missing.
    """
    return Predictor(open_bundle(folder), threads=threads)


def checked(texts: Iterable[str], pairs: Iterable[str | None] | None) -> tuple[list[str], list[str | None] | None]:
    """Texts and second texts as lists of the same length. Raises DataError that names the row which is no text."""
    if isinstance(texts, str):
        raise DataError("one text was given where a list of texts is wanted: put it in a list")
    rows, seconds = list(texts), None if pairs is None else list(pairs)
    for position, text in enumerate(rows, 1):
        if not isinstance(text, str):
            raise DataError(f"text {position} is no text but a {type(text).__name__}")
    if seconds is not None and len(seconds) != len(rows):
        raise DataError(f"there are {len(rows)} texts and {len(seconds)} second texts")
    for position, second in enumerate(seconds or (), 1):
        if second is not None and not isinstance(second, str):
            raise DataError(f"second text {position} is no text but a {type(second).__name__}")
    return rows, seconds


def open_bundle(folder: os.PathLike[str] | str) -> Bundle:
    """The bundle in a folder, every file of it there and as it was written. Raises PlanError with what is not."""
    home = Path(folder)
    manifest = read_manifest(home)
    for name, file in manifest.files.items():
        path = home / name
        if not path.is_file():
            raise PlanError(f"{home} is no whole bundle: there is no {name} in it")
        size = path.stat().st_size
        if size != file.bytes:
            raise PlanError(
                f"{path} is another file than was exported: it has {size} bytes, and the manifest says {file.bytes}"
            )
        if (found := digest([path])) != file.sha256:
            raise PlanError(
                f"{path} is another file than was exported: SHA-256 {found[:12]}, and the manifest says {file.sha256[:12]}"
            )
    return Bundle(home, manifest)


def read_manifest(folder: Path) -> Manifest:
    """A bundle's manifest alone. Raises PlanError where there is none that this version reads."""
    file = folder / MANIFEST
    if not file.is_file():
        raise PlanError(f"{folder} is no bundle: there is no {MANIFEST} in it (bertopt export makes one)")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["schema_version"] > SCHEMA_VERSION:
            raise PlanError(
                f"{file} has schema {data['schema_version']}, and this bertopt reads up to {SCHEMA_VERSION}: "
                "install a newer one"
            )
        known = {f.name for f in dataclasses.fields(Manifest)}
        files = {name: File(**about) for name, about in data.pop("files").items()}
        return Manifest(**{name: value for name, value in data.items() if name in known}, files=files)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(f"{file} cannot be read as a bundle's manifest: {error}") from None


def _check_levels(manifest: Manifest) -> None:
    """INT8 weights of the full range saturate on an x86 that has no VNNI: such a graph answers wrongly there, and fast."""
    from bertopt.environment import cpu_features
    from bertopt.graph.quantize import levels_for

    wanted, here = manifest.info.get("weight_levels"), levels_for(cpu_features())
    if isinstance(wanted, int) and wanted > here:
        raise PlanError(
            f"the INT8 graph of this bundle has weights of {wanted} levels, and this processor adds up {here} at most without "
            "saturating: export it again on this machine"
        )


def described(manifest: Manifest) -> list[str]:
    """A manifest for people, a fact a line."""
    m = manifest
    total = sum(file.bytes for file in m.files.values())
    lines = [f"{m.name}, rung {m.rung}: {m.backend} in {m.precision} on {m.device}, {m.task}"]
    lines.append(f"{m.batching} batches of at most {m.batch_size} rows, {m.max_length} tokens a text")
    if m.bucket_edges:
        lines.append(f"bucket edges: {', '.join(map(str, m.bucket_edges))}")
    if m.offline_seq_s:
        lines.append(f"the ladder measured {m.offline_seq_s:.0f} seq/s offline")
    lines.append(f"{total / 1e6:.1f} MB in {len(m.files)} files")
    return [*lines, *m.notes]
