"""A built plan and the manifest that says what it is: `x.plan`, which the library's own tools can read, and `x.plan.json`.

A plan fits one graph, one tokenizer, one version of its library and one kind of device. The manifest holds those with
the size and hash of the plan, and everything is checked against it before any library is loaded: what a library says
of a foreign plan is at best a stack trace.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertopt import records
from bertopt.builders.versions import installed
from bertopt.errors import PlanError
from bertopt.files import digest, short, write_bytes, write_text
from bertopt.profiles import Profile, parse

SCHEMA_VERSION = 1
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.*", "merges.txt", "*.model")


@dataclass(frozen=True)
class Manifest:
    """What a plan is. None: not known, or it does not apply."""

    library: str  # "TensorRT", "TensorRT for RTX" or "OpenVINO"
    library_version: str  # "8.6.0"
    device_name: str | None  # "NVIDIA H200", or the processor with its features; None: any that the library runs on
    compute_capability: str | None  # "9.0"; None on a CPU
    precision: str  # the lowest that runs: "fp32", "bf16", "fp16", "int8"
    graph_sha256: str  # of the graph that it was built from, before any rewriting
    plan_bytes: int
    plan_sha256: str
    created: str  # ISO 8601, UTC
    bertopt_version: str
    rebuild: str  # the command
    options: str = ""  # what sets it apart from an ordinary build: "cuBLAS tactics off"
    model_name: str | None = None
    model_fingerprint: str | None = None
    tokenizer_fingerprint: str | None = None
    task: str | None = None  # of Checkpoint: "single_label", ...
    labels: list[str] | None = None  # in logit order
    weights: str | None = None  # "trained", "random" or "random head"
    model_type: str | None = None  # "bert", ...
    pad_id: int = 0
    calibration_sha256: str | None = None
    groups: dict[str, str] = field(default_factory=dict)  # group of layers -> precision
    fp32_nodes: list[str] = field(default_factory=list)  # kept in FP32
    profiles: list[str] = field(default_factory=list)  # MIN:OPT:MAX each; empty: any shape
    bucket_edges: list[int] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)  # name -> type of the binding
    outputs: dict[str, str] = field(default_factory=dict)
    build_s: float | None = None
    layers: dict[str, int] = field(default_factory=dict)  # inspector: precision -> number of layers
    equivalent: str | None = None  # the library's own command line
    notes: list[str] = field(default_factory=list)
    gate: dict[str, Any] = field(default_factory=dict)  # `gate.stamp` of the last verdict on this very plan; empty: not gated
    schema_version: int = SCHEMA_VERSION

    @property
    def version(self) -> str:
        """How results name it: "TensorRT 8.6.0, cuBLAS tactics off"."""
        return ", ".join(filter(None, (f"{self.library} {self.library_version}", self.options)))


@dataclass(frozen=True)
class Plan:
    """A plan's file with its manifest, whole and fit for this machine."""

    path: Path
    manifest: Manifest

    @property
    def profiles(self) -> tuple[Profile, ...]:
        return tuple(parse(text) for text in self.manifest.profiles)

    def read(self) -> bytes:
        return self.path.read_bytes()


@dataclass(frozen=True)
class Here:
    """What this machine has of what a plan wants."""

    library_version: str | None
    device_name: str | None
    compute_capability: str | None


# Fields that a caller may demand, with their names for people
DEMANDS = {
    "model_fingerprint": "model",
    "tokenizer_fingerprint": "tokenizer",
    "graph_sha256": "graph",
    "calibration_sha256": "calibration cache",
    "precision": "precision",
    "profiles": "shape profiles",
    "options": "builder options",
}


def manifest_path(plan: os.PathLike[str] | str) -> Path:
    return Path(f"{os.fspath(plan)}.json")


def tokenizer_folder(plan: os.PathLike[str] | str) -> Path:
    """Where a plan keeps its own copy of the files that decide which ids a text gets, so that it serves texts alone."""
    return Path(f"{os.fspath(plan)}.tokenizer")


def tokenizer_fingerprint(folder: Path) -> str:
    """First 16 hexadecimal digits of SHA-256 over the files that decide which ids a text gets."""
    result = hashlib.sha256()
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt"):
        file = folder / name
        if file.is_file():
            result.update(name.encode() + b"\0" + file.read_bytes())
    return result.hexdigest()[:16]


def calibration_path(plan: os.PathLike[str] | str) -> Path:
    """Where a plan keeps the calibration that its INT8 was placed by, so that a gate knows which rows it has seen."""
    return Path(f"{os.fspath(plan)}.calibration.json")


def keep_tokenizer(source: Path, plan: Path) -> None:
    """Copy a checkpoint's tokenizer beside a plan."""
    for file in sorted({file for pattern in TOKENIZER_FILES for file in source.glob(pattern)}):
        write_bytes(tokenizer_folder(plan) / file.name, file.read_bytes())


def save(plan: Path, manifest: Manifest) -> None:
    """Write the manifest beside a plan that is in place already."""
    write_text(manifest_path(plan), records.to_json(manifest))


def open_plan(path: os.PathLike[str] | str, **demands: Any) -> Plan:
    """A plan that is whole, fits this machine and is what the caller wants, judged without loading its library.

    `demands` are fields of the manifest with the values that they must have (keys of DEMANDS); None demands nothing.
    Raises PlanError with the value wanted, the value found, and the command that builds the plan anew.
    """
    file = Path(path)
    manifest = read_manifest(file)
    _check_file(file, manifest)
    check(manifest, here(manifest), file)
    for name, wanted in demands.items():
        found = getattr(manifest, name)
        if wanted is not None and found != wanted:
            raise PlanError(
                f"{file} was built for {DEMANDS[name]} {short(found)}, and {short(wanted)} is asked for: {_again(manifest)}"
            )
    return Plan(file, manifest)


def read_manifest(plan: Path) -> Manifest:
    """The manifest beside a plan. Raises PlanError where the plan or the manifest is absent, or the manifest cannot be read."""
    file = manifest_path(plan)
    if not plan.is_file():
        raise PlanError(f"there is no plan {plan}: bertopt build-engine makes one")
    if not file.is_file():
        raise PlanError(
            f"{plan} {_what(plan)}, and there is no manifest {file.name} beside it: bertopt build-engine writes both"
        )
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["schema_version"] > SCHEMA_VERSION:
            raise PlanError(
                f"{file} has schema {data['schema_version']}, and this bertopt reads up to {SCHEMA_VERSION}: "
                "install a newer one"
            )
        known = {f.name for f in dataclasses.fields(Manifest)}
        return Manifest(**{name: value for name, value in data.items() if name in known})
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise PlanError(f"{file} cannot be read as a plan's manifest: {error}") from None


def _check_file(plan: Path, manifest: Manifest) -> None:
    size = plan.stat().st_size
    if size != manifest.plan_bytes:
        how = "is empty" if not size else "is cut short" if size < manifest.plan_bytes else "is another file"
        raise PlanError(f"{plan} {how}: its manifest says {manifest.plan_bytes} bytes, and it has {size}: {_again(manifest)}")
    found = digest([plan])
    if found != manifest.plan_sha256:
        raise PlanError(
            f"{plan} {_what(plan)}: its manifest says SHA-256 {short(manifest.plan_sha256)}, and it has {short(found)}: "
            f"{_again(manifest)}"
        )


def check(manifest: Manifest, found: Here, plan: Path) -> None:
    """Raise PlanError, with both values, where a plan does not fit the machine that `found` describes."""
    wanted = f"{manifest.library} {manifest.library_version}"
    if found.library_version is None:
        raise PlanError(
            f"{plan} was built with {wanted}, and {manifest.library} is not installed here: "
            f"pip install 'bertopt[{_extra(manifest)}]'"
        )
    if found.library_version != manifest.library_version:
        raise PlanError(
            f"{plan} was built with {wanted}, and {manifest.library} {found.library_version} is installed: {_again(manifest)}"
        )
    if manifest.device_name is None:
        return
    if manifest.compute_capability is None:
        if found.device_name != manifest.device_name:
            raise PlanError(
                f"{plan} was built for {manifest.device_name}, and this machine has {found.device_name}: {_again(manifest)}"
            )
        return
    if found.compute_capability is None:
        raise PlanError(f"{plan} was built for {_card(manifest)}, and this machine has no CUDA device")
    if found.compute_capability != manifest.compute_capability:
        card = f"{found.device_name} (compute capability {found.compute_capability})"
        raise PlanError(f"{plan} was built for {_card(manifest)}, and this machine has {card}: {_again(manifest)}")


def here(manifest: Manifest) -> Here:
    """This machine, as far as a plan of that library is concerned. Loads no library but the CUDA driver."""
    version = installed(manifest.library)
    if manifest.device_name is None:
        return Here(version, None, None)
    if manifest.compute_capability is None:
        return Here(version, processor(), None)
    from bertopt.backends.driver import device

    card = device()
    return Here(version, card.name if card else None, card.compute_capability if card else None)


def processor() -> str:
    """The CPU and what it computes in: a plan made for AMX is of no use without it."""
    from bertopt.environment import environment

    facts = environment("cpu")
    return ", ".join([facts["cpu"], *facts["cpu_features"]])


def show(path: os.PathLike[str] | str) -> Iterator[str]:
    """The manifest's lines; then PlanError, as `open_plan` raises it, where the plan cannot be used here."""
    file = Path(path)
    manifest = read_manifest(file)
    yield from describe(manifest)
    open_plan(file)
    yield "it is whole, and fits this machine"


def describe(manifest: Manifest) -> Iterator[str]:
    """A manifest for people, a fact a line."""
    yield f"{manifest.precision} plan of {manifest.model_name or 'a graph'} for {_card(manifest)}"
    yield f"built with {manifest.version} by bertopt {manifest.bertopt_version}, {manifest.created}" + (
        f", in {manifest.build_s:.0f} s" if manifest.build_s is not None else ""
    )
    yield f"{manifest.plan_bytes / 1e6:.1f} MB, SHA-256 {manifest.plan_sha256}"
    for name, value in {
        "model": manifest.model_fingerprint,
        "tokenizer": manifest.tokenizer_fingerprint,
        "graph": manifest.graph_sha256,
        "calibration cache": manifest.calibration_sha256,
    }.items():
        if value is not None:
            yield f"{name} {value}"
    for text in manifest.profiles:
        low, best, high = text.split(":")
        yield f"profile: from {low} to {high}, tuned for {best}"
    if manifest.bucket_edges:
        yield f"bucket edges: {', '.join(map(str, manifest.bucket_edges))}"
    yield f"bindings: {', '.join(f'{n} {t}' for n, t in (manifest.inputs | manifest.outputs).items())}"
    if manifest.groups:
        yield f"precision by group: {_runs(manifest.groups)}"
    yield f"{len(manifest.fp32_nodes)} nodes kept in FP32" + "".join(f"\n  {node}" for node in manifest.fp32_nodes)
    if manifest.layers:
        yield f"layers in the plan: {', '.join(f'{count} {kind}' for kind, count in manifest.layers.items())}"
    if manifest.gate:
        yield f"accuracy gate: {manifest.gate['verdict']} ({manifest.gate['reason']})"
    elif manifest.precision in ("int8", "fp8"):
        yield "accuracy gate: not gated"
    if manifest.equivalent:
        yield f"the same with the library's own tool: {manifest.equivalent}"
    yield from manifest.notes


def _runs(groups: dict[str, str]) -> str:
    """`layer 0`, `layer 1` ... of one precision in a row as `layers 0 to 11`."""
    parts: list[tuple[list[str], str]] = []
    for name, precision in groups.items():
        if parts and parts[-1][1] == precision and name.startswith("layer ") and parts[-1][0][-1].startswith("layer "):
            parts[-1][0].append(name)
        else:
            parts.append(([name], precision))
    return "; ".join(
        f"{names[0] if len(names) == 1 else f'layers {names[0][6:]} to {names[-1][6:]}'}: {precision}"
        for names, precision in parts
    )


def _what(plan: Path) -> str:
    """What a file that is no plan of ours looks like."""
    with plan.open("rb") as stream:
        head = stream.read(64)
    if not head:
        return "is empty"
    # An ONNX file starts with field 1 (IR version) as a varint, then field 2 (producer) as a string.
    if len(head) > 3 and head[0] == 0x08 and head[2] == 0x12:
        return "looks like an ONNX graph"
    return "does not hold the plan that was built"


def _card(manifest: Manifest) -> str:
    capability = f" (compute capability {manifest.compute_capability})" if manifest.compute_capability else ""
    return (manifest.device_name or f"any card that {manifest.library} runs on") + capability


def _extra(manifest: Manifest) -> str:
    return "cpu" if manifest.library == "OpenVINO" else "cuda"


def _again(manifest: Manifest) -> str:
    return f"build it again with {manifest.rebuild}"
