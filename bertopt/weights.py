"""A checkpoint's weight files: which one is read, whether it is whole, what tensors it holds, and its hash."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertopt.errors import ModelError
from bertopt.files import digest

if TYPE_CHECKING:
    import torch

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
Shapes = dict[str, tuple[int, ...]]


def read_json(file: Path) -> Any:
    """A JSON file of a checkpoint. Raises ModelError where it cannot be read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """What a library said, without the page that often follows."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def find(folder: Path) -> tuple[list[Path], list[str]]:
    """The files that hold a folder's weights, and notes. Safetensors wins over a pickle that lies beside it.

    Raises ModelError where there are none, or where a shard that an index names is absent.
    """
    for name in (SAFETENSORS, PICKLE):
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            files = [folder / name]
        elif index.is_file():
            files = [folder / shard for shard in sorted(set(read_json(index).get("weight_map", {}).values()))]
        else:
            continue
        for file in files:
            if not file.is_file():
                raise ModelError(f"{folder}: {index.name} names {file.name}, and there is no such file")
        notes = []
        if name == SAFETENSORS and (folder / PICKLE).is_file():
            notes.append(f"weights: {SAFETENSORS} (sha256 {digest(files)[:16]}) is used and {PICKLE} is left alone")
        return files, notes
    others = ", ".join(sorted(f.name for f in folder.glob("*") if f.suffix in {".h5", ".msgpack", ".ckpt", ".onnx"}))
    raise ModelError(
        f"{folder} holds no weights: there is neither {SAFETENSORS} nor {PICKLE}" + (f" (only {others})" if others else "")
    )


def shapes(files: list[Path]) -> Shapes:
    """Shape of every tensor by its name, today's names throughout. Safetensors files are read without torch.

    Raises ModelError where a file is cut short or is not what its name says.
    """
    if files[0].suffix == ".safetensors":
        return {current(name): shape for file in files for name, shape in _header(file).items()}
    return {name: tuple(tensor.shape) for name, tensor in load(files).items()}


def _header(file: Path) -> Shapes:
    """Names and shapes from a safetensors header: 8 bytes of length, then JSON, then the data."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            raise ModelError(
                f"{file} is cut short or no safetensors file: {size} bytes, and its header alone should take {8 + length}"
            )
        try:
            header = json.loads(stream.read(length))
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            expected = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
            found = {name: tuple(entry["shape"]) for name, entry in entries.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ModelError(f"{file} is no safetensors file: its header is not readable") from None
    if size != expected:
        raise ModelError(f"{file} is cut short or damaged: its header describes {expected} bytes, and it has {size}")
    return found


def load(files: list[Path]) -> dict[str, torch.Tensor]:
    """Every tensor by today's name, on the CPU, in the type it was stored in.

    A pickle is opened with `weights_only`, so that nothing in it is executed. Raises ModelError.
    """
    import torch

    tensors: dict[str, Any] = {}
    for file in files:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            tensors |= load_file(file)
            continue
        try:
            stored = torch.load(file, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
            raise ModelError(f"{file} is cut short, or holds more than plain tensors: {first_line(error)}") from None
        if not isinstance(stored, dict) or not all(isinstance(t, torch.Tensor) for t in stored.values()):
            raise ModelError(f"{file} is no checkpoint: it holds something else than tensors by name")
        tensors |= stored
    return {current(name): tensor for name, tensor in tensors.items()}


def current(name: str) -> str:
    """Today's name of a tensor: checkpoints converted from TensorFlow call LayerNorm's weight and bias gamma and beta."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            return name[: -len(old)] + new
    return name


def align(names: list[str], wanted: set[str], base: str) -> dict[str, str]:
    """Stored name -> the module's name, where one of the two has the encoder under `base` and the other has not."""
    renamed = {}
    for name in names:
        if name not in wanted and f"{base}.{name}" in wanted:
            renamed[name] = f"{base}.{name}"
        elif name not in wanted and name.removeprefix(f"{base}.") in wanted:
            renamed[name] = name.removeprefix(f"{base}.")
        else:
            renamed[name] = name
    return renamed
