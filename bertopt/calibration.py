"""Calibration: ranges and smoothing factors observed on real texts, and the small JSON file that keeps them for review.

A file belongs to one checkpoint, graph, tokenizer and length, and to the texts, method and tools that made it. All of that is
its `key`, under which `cached` keeps it; a file that is named by the user is checked against what it is to be used for. There
are no default scales: what is missing, cut short or foreign is an error.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertopt.errors import DataError, PlanError, UsageError
from bertopt.files import short, write_text
from bertopt.tokens import DEFAULT_LENGTH

if TYPE_CHECKING:
    from bertopt.batching import Batch
    from bertopt.text import Requests
    from bertopt.tokens import Tokens
    from bertopt.workspace import Workspace

SCHEMA = 1
SAMPLES = 512
SMOOTH = 0.95  # best on training rows of three classifiers: benchmarks/results/int8-methods.md
ROWS = 8  # of a batch: what is observed at once, and so what memory it takes
TOOLS = ("bertopt", "onnxruntime", "tokenizers")
HASHES_A_LINE = 4

Progress = Callable[[int, int], None]  # batches done, of all


@dataclass(frozen=True)
class SiteRange:
    """What one activation is divided by: channel by channel (`smoothing`), then as a whole (`scale`)."""

    scale: float  # of the int8 grid of the smoothed activation
    smoothing: list[float] | None = None  # a factor for each channel; None: not smoothed


@dataclass(frozen=True)
class Calibration:
    """What was observed, and what it belongs to."""

    method: str
    smooth: float
    max_length: int  # tokens that a text may have
    attention: bool  # whether the products of attention have ranges too
    model: str  # fingerprint of the checkpoint
    graph: str  # SHA-256 of the canonical graph
    tokenizer: str  # fingerprint of the tokenizer
    data: str  # fingerprint of the texts
    data_name: str
    texts: int
    tokens: int
    versions: dict[str, str] = field(default_factory=dict)  # of the tools
    text_hashes: list[str] = field(default_factory=list)  # `gate.text_hash` of each, so that evaluation rows can be told
    sites: dict[str, SiteRange] = field(default_factory=dict)  # `graph.linears` and, with `attention`, `graph.attention`

    @property
    def key(self) -> str:
        """16 hexadecimal digits over everything that decides the ranges: any change misses."""
        said = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in ("data_name", "tokens", "text_hashes", "sites"):
            del said[name]  # they follow from the others
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def sha256(self) -> str:
        """Of the file that `save` writes: unlike the key it changes with the ranges. It goes into manifests."""
        return hashlib.sha256(_text(self).encode()).hexdigest()


# Fields that a caller may demand, with their names for people
DEMANDS = {
    "model": "model",
    "graph": "graph",
    "tokenizer": "tokenizer",
    "max_length": "texts of up to so many tokens:",
    "data": "calibration texts",
    "method": "method",
    "smooth": "smoothing",
    "attention": "attention products",
}


def calibrate(
    workspace: Workspace,
    requests: Requests,
    *,
    max_length: int,
    samples: int = SAMPLES,
    method: str = "minmax",
    smooth: float = SMOOTH,
    attention: bool = False,
    progress: Progress | None = None,
) -> Calibration:
    """Observe every layer of the workspace's graph on `samples` of the requests, spread evenly over them, at natural lengths.

    Raises UsageError for options out of range, and GraphError where a value is not finite already in FP32.
    """
    from bertopt.graph import storage
    from bertopt.graph.calibrate import METHODS, observe

    header, chosen = _describe(
        workspace, requests, max_length=max_length, samples=samples, method=method, smooth=smooth, attention=attention
    )
    tokens = _tokenize(workspace, chosen, max_length)
    checkpoint = workspace.checkpoint
    feeds = _Feeds(tokens, checkpoint.uses_type_ids, checkpoint.pad_id, 1 + (METHODS[method] is not None), progress)
    sites = observe(storage.load(workspace.canonical()), feeds, method=method, smooth=smooth, attention=attention)
    return dataclasses.replace(header, tokens=len(tokens.ids), sites=sites)


def cached(
    workspace: Workspace, requests: Requests, *, progress: Progress | None = None, **options: Any
) -> tuple[Calibration, Path]:
    """As `calibrate`, whose options it takes, kept in the workspace's folder under the calibration's key; and where."""
    header, _ = _describe(workspace, requests, **options)
    path = workspace.folder / f"calibration-{header.key}.json"
    if not path.exists():
        save(calibrate(workspace, requests, progress=progress, **options), path)
    return load(path), path


def of_workspace(workspace: Any) -> tuple[Calibration, list[str]]:
    """What INT8 is placed by: the workspace's `calibration`, or one made with its `calibration_texts`; and notes.

    Where it has neither, its `texts` stand in, which proves nothing about them. Raises DataError where it has none at all.
    """
    from bertopt.text import Requests

    given = getattr(workspace, "calibration", None)
    if given is not None:
        return given, [f"INT8 by a given calibration: {given.method}, smoothing {given.smooth:g}, {given.texts} texts"]
    requests, notes = getattr(workspace, "calibration_texts", None), []
    if requests is None:
        requests = Requests(workspace.texts, name="the measured texts")
        notes = ["INT8 was calibrated with the very texts that are measured: judge it on others"]
    longest = max(workspace.bucket_edges, default=min(DEFAULT_LENGTH, workspace.checkpoint.max_positions))
    found, _ = cached(workspace, requests, max_length=longest)
    said = f"INT8 calibrated with {found.texts} texts of {found.data_name}: {found.method}, smoothing {found.smooth:g}"
    return found, [said, *notes]


def save(calibration: Calibration, path: os.PathLike[str] | str) -> None:
    """Write the file: a line a field, a line a site. Two that write at once leave one of the two, whole."""
    write_text(path, _text(calibration))


def _text(calibration: Calibration) -> str:
    lines = [f'  "bertopt_calibration": {SCHEMA}']
    for each in dataclasses.fields(calibration):
        value = getattr(calibration, each.name)
        if each.name == "text_hashes":
            groups = [value[i : i + HASHES_A_LINE] for i in range(0, len(value), HASHES_A_LINE)]
            text = "[\n" + ",\n".join("    " + json.dumps(group)[1:-1] for group in groups) + "\n  ]"
        elif each.name == "sites":
            rows = [f"    {json.dumps(name)}: {_compact(dataclasses.asdict(found))}" for name, found in value.items()]
            text = "{\n" + ",\n".join(rows) + "\n  }"
        else:
            text = json.dumps(value)
        lines.append(f'  "{each.name}": {text}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def load(path: os.PathLike[str] | str) -> Calibration:
    """Read a file that `save` wrote. Raises DataError where it is absent, cut short, or no calibration cache."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if data["bertopt_calibration"] > SCHEMA:
            raise DataError(f"{path} has format {data['bertopt_calibration']}, and this bertopt reads up to {SCHEMA}")
        fields = {each.name: data[each.name] for each in dataclasses.fields(Calibration)}
        sites = {name: SiteRange(**found) for name, found in fields.pop("sites").items()}
    except FileNotFoundError:
        raise DataError(f"there is no calibration cache {path}: bertopt calibrate --out {path} makes one") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a calibration cache: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise DataError(f"{path} is no calibration cache, or lacks a part of one: bertopt calibrate writes them") from None
    if not sites:
        raise DataError(f"{path} holds no ranges")
    for name, found in sites.items():
        numbers = [found.scale, *(found.smoothing or ())]
        if not all(isinstance(n, (int, float)) and math.isfinite(n) and n > 0 for n in numbers):
            raise DataError(f"{path}: the range of {name} has a number that is not above 0")
    return Calibration(**fields, sites=sites)


def open_cache(
    path: os.PathLike[str] | str, workspace: Workspace, *, max_length: int, **demands: Any
) -> tuple[Calibration, list[str]]:
    """The file at `path` for this workspace and length, and notes on what is worth knowing.

    `demands` are more fields (keys of DEMANDS) with the values that they must have; None demands nothing.
    Raises DataError as `load` does, and PlanError, with both values, where the file belongs to something else.
    """
    found = load(path)
    check(found, path, **_belongs(workspace), max_length=max_length, **demands)
    here = _versions()
    return found, [
        f"{path} was made with {tool} {version}, and {here.get(tool, 'none')} is installed"
        for tool, version in found.versions.items()
        if here.get(tool) != version
    ]


def check(calibration: Calibration, source: os.PathLike[str] | str, **demands: Any) -> None:
    """Raise PlanError, with both values, where a calibration is not what is demanded (keys of DEMANDS; None: anything)."""
    for name, wanted in demands.items():
        found = getattr(calibration, name)
        if wanted is not None and found != wanted:
            raise PlanError(
                f"{source} was calibrated for {DEMANDS[name]} {short(found)}, and {short(wanted)} is asked for: "
                "bertopt calibrate makes one that fits"
            )


def overlap(calibration: Calibration, requests: Requests) -> list[int]:
    """Positions of the requests that were calibrated with: an evaluation on them proves less."""
    from bertopt.gate.predictions import text_hashes

    known = set(calibration.text_hashes)
    return [i for i, found in enumerate(text_hashes(requests.texts, requests.pairs)) if found in known]


def load_recipe(path: Path) -> dict[str, Any]:
    """A calibration recipe (TOML) as arguments of `calibrate`. Raises UsageError where it cannot be read or is wrong."""
    try:
        import tomllib
    except ImportError:  # CPython 3.10
        raise UsageError(f"{path}: recipes want Python 3.11 or newer; give the same as options") from None
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read as a recipe: {error}") from None
    kinds = {"samples": int, "max_length": int, "method": str, "smooth": float, "attention": bool}
    for name, value in found.items():
        if name not in kinds:
            raise UsageError(f"{path}: there is no {name!r} in a recipe, only {', '.join(kinds)}")
        if type(value) is not kinds[name]:
            raise UsageError(f"{path}: {name} = {value!r} is no {kinds[name].__name__}")
    return found


def _describe(
    workspace: Workspace,
    requests: Requests,
    *,
    max_length: int,
    samples: int = SAMPLES,
    method: str = "minmax",
    smooth: float = SMOOTH,
    attention: bool = False,
) -> tuple[Calibration, Requests]:
    """A calibration as far as it is known before anything is observed, and the requests that it will be made with."""
    from bertopt.gate.predictions import text_hashes
    from bertopt.graph.calibrate import check_choice

    check_choice(method, smooth)
    if samples < 1:
        raise UsageError(f"--samples {samples} is too small: at least 1")
    if not len(requests):
        raise DataError(f"{requests.name} holds no text to calibrate with")
    chosen = requests.take(np.unique(np.linspace(0, len(requests) - 1, min(samples, len(requests))).astype(np.int64)))
    header = Calibration(
        method=method,
        smooth=float(smooth),
        max_length=max_length,
        attention=attention,
        **_belongs(workspace),
        data=chosen.fingerprint,
        data_name=requests.name,
        texts=len(chosen),
        tokens=0,
        versions=_versions(),
        text_hashes=text_hashes(chosen.texts, chosen.pairs),
    )
    return header, chosen


def _belongs(workspace: Workspace) -> dict[str, Any]:
    from bertopt.graph import storage
    from bertopt.plan import tokenizer_fingerprint

    checkpoint = workspace.checkpoint
    return {
        "model": checkpoint.fingerprint,
        "graph": storage.digest(workspace.canonical()),
        "tokenizer": tokenizer_fingerprint(checkpoint.folder),
    }


def _tokenize(workspace: Workspace, requests: Requests, max_length: int) -> Tokens:
    return workspace.checkpoint.tokenizer(max_length).encode(requests.texts, requests.pairs)


class _Feeds:
    """Batches of rows of like length, the longest first; may be gone through more than once."""

    def __init__(self, tokens: Tokens, uses_type_ids: bool, pad_id: int, passes: int, progress: Progress | None) -> None:
        self.tokens, self.uses_type_ids, self.pad_id, self.progress = tokens, uses_type_ids, pad_id, progress
        self.batches = -(-len(tokens) // ROWS)
        self.total, self.done = passes * self.batches, 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from bertopt.backends.host import padded_arrays

        order = np.argsort(-self.tokens.lengths, kind="stable")  # the longest first: memory is taken once, and then reused
        for start in range(0, len(order), ROWS):
            yield padded_arrays(self._batch(order[start : start + ROWS]), self.uses_type_ids, self.pad_id)
            self.done += 1
            if self.progress is not None:
                self.progress(self.done, self.total)

    def _batch(self, positions: Any) -> Batch:
        from bertopt.batching import Batch, Padded

        rows = self.tokens.take(positions)
        return Batch(positions, rows, Padded(len(rows), int(rows.lengths.max())))


def _versions() -> dict[str, str]:
    found = {}
    for tool in TOOLS:
        try:
            found[tool] = importlib.metadata.version(tool)
        except importlib.metadata.PackageNotFoundError:
            found[tool] = "none"  # without ONNX Runtime the reference evaluator computes
    return found


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
