"""The demo's checkpoint: the packaged encoder and the committed head, put together once as a folder like any other."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Any

from bertopt.demo.corpus import LABELS
from bertopt.demo.sources import ENCODER_SHA256, encoder_files
from bertopt.errors import UsageError

HEAD = Path(__file__).with_name("head.safetensors")
FORMAT = 1  # raise it when what `_assemble` writes changes, so that older caches are left alone


def folder() -> Path:
    """A BertForSequenceClassification checkpoint folder (five topics, FP32 weights, WordPiece tokenizer, 91 MB).

    It lies under $BERTOPT_CACHE, or else $XDG_CACHE_HOME/bertopt or ~/.cache/bertopt; where that cannot be written, in a
    temporary folder that goes when the process ends. Once there, the encoder's package is not read again.
    Raises ModelError where the package is missing or differs, UsageError where nothing can be written.
    """
    name = f"demo-{_fingerprint()[:16]}"
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home folder
        return _existing_or_new(_cache() / name)
    try:
        return _existing_or_new(_temporary() / name)
    except OSError as error:
        raise UsageError(
            f"cannot write the demo's checkpoint (91 MB) to {error.filename or tempfile.gettempdir()} ({error.strerror}): "
            "set BERTOPT_CACHE to a folder with room"
        ) from None


def _fingerprint() -> str:
    head = hashlib.sha256(HEAD.read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps([FORMAT, ENCODER_SHA256, head, LABELS]).encode()).hexdigest()


def _cache() -> Path:
    if chosen := os.environ.get("BERTOPT_CACHE"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "bertopt"


@functools.cache
def _temporary() -> Path:
    path = Path(tempfile.mkdtemp(prefix="bertopt-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _existing_or_new(target: Path) -> Path:
    """`target`, assembled beside it and renamed: whoever finds it finds it whole, and of two processes the first one wins."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        part.mkdir()
        _assemble(part)
        part.rename(target)
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _assemble(path: Path) -> None:
    from safetensors.numpy import load, save

    sources = encoder_files()
    head = load(HEAD.read_bytes())
    weights = {f"bert.{name}": value for name, value in load(sources["model.safetensors"].read_bytes()).items()}
    del weights["bert.embeddings.position_ids"]  # a buffer that transformers makes itself
    weights |= {name: value.astype("float32") for name, value in head.items()}
    (path / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    config = _config(json.loads(sources["config.json"].read_text(encoding="utf-8")))
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in ("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copyfile(sources[name], path / name)


def _config(encoder: dict[str, Any]) -> dict[str, Any]:
    encoder.pop("_name_or_path")
    return encoder | {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {str(number): label for number, label in enumerate(LABELS)},
        "label2id": {label: number for number, label in enumerate(LABELS)},
        "problem_type": "single_label_classification",
        "torch_dtype": "float32",
    }
