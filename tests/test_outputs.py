"""A run's folder is there whole or not at all."""

from __future__ import annotations

import pytest

from bertopt.errors import UsageError
from bertopt.outputs import run_folder
from tests.command import untouched


def test_a_run_folder_is_there_whole_or_not_at_all(tmp_path):
    def broken():
        with run_folder(tmp_path / "a" / "b") as fresh:
            (fresh / "x").write_text("x")
            assert not (tmp_path / "a" / "b").exists()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    untouched(tmp_path)
    with run_folder(tmp_path / "a" / "b") as fresh:
        (fresh / "x").write_text("x")
    untouched(tmp_path, "a")
    untouched(tmp_path / "a", "b")
    assert (tmp_path / "a" / "b" / "x").read_text() == "x"


def test_a_run_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "a").write_text("kept")
    with pytest.raises(UsageError, match="it is no folder"), run_folder(tmp_path / "a"):
        raise AssertionError
    assert (tmp_path / "a").read_text() == "kept"
