"""Graph files: one file, or a graph and its weights beside it in `<name>.data` where they would not fit into one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import ExternalDataInfo, set_external_data, uses_external_data

from bertopt.errors import GraphError, UsageError
from bertopt.files import digest as digest_of
from bertopt.files import replacing, write_bytes

SINGLE_FILE_LIMIT = 2_000_000_000  # bytes of weights; protobuf ends at 2 GiB, and some tools at 2e9
EXTERNAL_FROM = 1024  # bytes; smaller tensors stay in the graph, where shapes and scales are read from
ALIGNMENT = 4096  # of each tensor in the data file, so that it can be mapped into memory


def save(model: onnx.ModelProto, path: Path, *, single_file_limit: int = SINGLE_FILE_LIMIT) -> None:
    """`model` at `path`, whole or not at all. Beyond `single_file_limit` bytes of weights, `model`'s own tensors are emptied.

    Raises UsageError where the disk is full or the folder cannot be written.
    """
    if sum(len(t.raw_data) for t in model.graph.initializer) > single_file_limit:
        data = path.with_name(path.name + ".data")
        with replacing(data) as temporary, temporary.open("wb") as stream:
            for tensor in model.graph.initializer:
                if len(tensor.raw_data) < EXTERNAL_FROM:
                    continue
                stream.write(b"\0" * (-stream.tell() % ALIGNMENT))
                set_external_data(tensor, data.name, stream.tell(), len(tensor.raw_data))
                stream.write(tensor.raw_data)
                tensor.ClearField("raw_data")
    write_bytes(path, model.SerializeToString())


def load(path: Path) -> onnx.ModelProto:
    """The graph with all of its weights. Raises GraphError where a file is absent or is no graph."""
    files(path)
    return onnx.load(path)


def files(path: Path) -> list[Path]:
    """The graph and the files that hold its weights, all of them there.

    Raises GraphError where one is absent, cut short, or is no graph.
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except FileNotFoundError:
        raise GraphError(f"there is no graph {path}") from None
    except (OSError, DecodeError) as error:
        raise GraphError(f"{path} cannot be read as an ONNX graph: {error}") from None
    needed: dict[Path, int] = {}
    for tensor in model.graph.initializer:
        if uses_external_data(tensor):
            info = ExternalDataInfo(tensor)
            file = path.parent / info.location
            needed[file] = max(needed.get(file, 0), (info.offset or 0) + (info.length or 0))
    for file, size in needed.items():
        if not file.is_file():
            raise GraphError(f"the weights of {path.name} are in {file.name}, and there is no {file}: move both files together")
        if file.stat().st_size < size:
            raise GraphError(f"{file} is cut short: {path.name} reads {size} bytes of it, and it has {file.stat().st_size}")
    return [path, *sorted(needed)]


def digest(path: Path) -> str:
    """SHA-256 over the graph and its weights' files, as 64 hexadecimal digits. Raises GraphError as `files` does."""
    return digest_of(files(path))


@contextmanager
def published(path: Path) -> Iterator[Path]:
    """A path of the same name in a folder beside; what lies there when the block ends well is moved to `path`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    with folder as name:
        trial = Path(name, path.name)
        yield trial
        for file in reversed(files(trial)):  # the graph last, since it names the others
            os.replace(file, path.with_name(file.name))
