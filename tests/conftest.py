from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and ONNX Runtime read it: tiny models gain nothing from more
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test reaches for a network

import pytest

from tests import models


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`checkpoint_folder("bert", head=..., **config changes)` -> a folder made once a session; don't write into it."""
    made: dict[str, Path] = {}

    def make(kind: str = "bert", **changes: Any) -> Path:
        key = repr((kind, sorted(changes.items())))
        if key not in made:
            made[key] = models.save(kind, tmp_path_factory.mktemp(kind), **changes)
        return made[key]

    return make


@pytest.fixture
def tiny(checkpoint_folder: Callable[..., Path]) -> Path:
    """TINY: a BERT classifier with two labels."""
    return checkpoint_folder("bert")


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """A TINY of one's own, to be altered."""
    return Path(shutil.copytree(tiny, tmp_path / "copy"))
