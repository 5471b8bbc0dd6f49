"""Files of requests, and the sentence with which one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from bertopt.errors import DataError
from bertopt.text import read

# Machines that are busy with something else are no failure of the reader.
relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

characters = st.characters(exclude_categories=["Cs"])  # a lone surrogate is no text in any format


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def jsonl(folder: Path, *rows: object) -> Path:
    return write(folder, "x.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def refused(path: Path, **options: object) -> str:
    with pytest.raises(DataError) as caught:
        read(path, **options)  # type: ignore[arg-type]
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert path.name in sentence
    return sentence
