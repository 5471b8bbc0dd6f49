"""A run's folder is written beside and moved into place, so that it is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bertopt.errors import UsageError
from bertopt.files import slug

_unfinished: dict[Path, list[Path]] = {}  # what lies beside for now, and the folders that were made for it


def new_folder(*said: str) -> Path:
    """Where a run goes that was told no place: runs/<time>-<what is said of it>."""
    return Path("runs", "-".join([time.strftime("%Y%m%d-%H%M%S"), *map(slug, said)]))


def name_of(model: str) -> str:
    """A model's name without the folders that it lies in, which `.` has too."""
    return Path(model).resolve().name


@contextlib.contextmanager
def run_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`; its files are moved there when the block ends well, and nothing is left when it does not.

    Raises UsageError where `folder` cannot be written, before the block is entered.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"cannot write to {folder}: it is no folder")
    home = folder if folder.is_dir() else folder.parent
    missing = [parent for parent in (home, *home.parents) if not parent.exists()]
    try:
        home.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=home))
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}") from None
    _unfinished[fresh] = missing
    try:
        yield fresh
        try:
            folder.mkdir(exist_ok=True)
            for file in sorted(fresh.iterdir(), key=lambda f: f.name == "ladder.json"):  # last: it says that all is there
                os.replace(file, folder / file.name)
        except OSError as error:
            raise UsageError(f"cannot write to {folder}: {error.strerror or error}") from None
    finally:
        discard_unfinished()


def discard_unfinished() -> None:
    """Remove what lies beside, and the folders that were made for it and are empty."""
    for fresh, missing in list(_unfinished.items()):
        shutil.rmtree(fresh, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: a run is there
            for parent in missing:
                parent.rmdir()
        _unfinished.pop(fresh, None)
