"""Files: digests, names, and outputs that are written beside and renamed, so that nothing is ever left half-written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from bertopt.errors import UsageError


def digest(paths: Iterable[Path], start: bytes = b"") -> str:
    """SHA-256 of `start` and the files' bytes in order, as 64 hexadecimal digits."""
    result = hashlib.sha256(start)
    for path in paths:
        with path.open("rb") as stream:
            while block := stream.read(1 << 22):
                result.update(block)
    return result.hexdigest()


def short(value: object) -> str:
    """A digest by its first digits, as a sentence names it; anything else whole."""
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text[:12] if len(text) == 64 else text or "none"


def slug(name: str) -> str:
    """A name as part of a file's: letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"


@contextlib.contextmanager
def replacing(path: os.PathLike[str] | str) -> Iterator[Path]:
    """A temporary path beside `path`, renamed onto it when the block ends well and removed when it does not.

    Raises UsageError where the folder cannot be written or the disk is full.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from None
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes it private to its owner
        os.replace(temporary, target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_text(path: os.PathLike[str] | str, text: str) -> None:
    """`text` as UTF-8 at `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="replace", newline="\n")  # a file name may be no UTF-8


def write_bytes(path: os.PathLike[str] | str, data: bytes) -> None:
    """`data` at `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)
