"""The cores that a process may use: affinity, quota, OMP_NUM_THREADS, whichever is least."""

import os

import pytest

from bertopt.measure import cores


@pytest.fixture
def host(monkeypatch, tmp_path):
    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


def test_affinity_is_the_limit_where_nothing_else_is(host):
    assert cores.usable_cores() == 8
    (host / "cpu.max").write_text("max 100000\n")
    assert cores.usable_cores() == 8


@pytest.mark.parametrize(("text", "expected"), [("100000 100000", 1), ("250000 100000", 2), ("50000 100000", 1)])
def test_a_quota_of_version_2(host, text, expected):
    (host / "cpu.max").write_text(text)
    assert cores.usable_cores() == expected
    assert "quota" in cores.why_cores()


def test_a_quota_of_version_1(host):
    (host / "cpu").mkdir()
    (host / "cpu/cpu.cfs_quota_us").write_text("300000")
    (host / "cpu/cpu.cfs_period_us").write_text("100000")
    assert cores.usable_cores() == 3


def test_the_users_own_limit_is_honoured(host, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert cores.usable_cores() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "nonsense")
    assert cores.usable_cores() == 8
