"""Runs that end early: signals, readers that leave, a device that is full; nothing is left behind, nobody waits."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertopt import cli
from tests.command import ROOT, TEXTS, python, untouched


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_what_is_under_way(tmp_path, number):
    child = python(
        """
        import time
        from pathlib import Path
        from bertopt import cli
        from bertopt.outputs import run_folder
        def work():
            with run_folder(Path("runs/one")) as fresh:
                (fresh / "half").write_text("half")
                print("working", flush=True)
                time.sleep(60)
        cli.app.command()(work)
        cli.sys.argv[1:] = ["work"]
        cli.main()
        """,
        cwd=tmp_path,
    )
    assert child.stdout.readline() == "working\n"
    assert (tmp_path / "runs").is_dir()
    child.send_signal(number)
    err = child.communicate(timeout=20)[1]
    assert child.returncode == 128 + number
    assert err == "bertopt: stopped; nothing half-written is left\n"
    untouched(tmp_path)


def test_a_library_that_does_not_come_back_is_not_waited_for(tmp_path):
    child = python(
        """
        import hashlib
        import threading
        from pathlib import Path
        from bertopt import cli
        from bertopt.outputs import run_folder
        def work():
            with run_folder(Path("runs/one")):
                threading.Timer(0.3, print, ["working"], {"flush": True}).start()
                hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes, without looking for a signal
        cli.app.command()(work)
        cli.sys.argv[1:] = ["work"]
        cli.main()
        """,
        cwd=tmp_path,
    )
    assert child.stdout.readline() == "working\n"
    child.send_signal(signal.SIGINT)
    err = child.communicate(timeout=20)[1]
    assert child.returncode == 130
    assert err.strip() == "bertopt: stopped"
    untouched(tmp_path)


def test_no_tokenizing_process_outlives_the_run():
    """A spawned worker that waits for work does not notice that the run is over."""
    child = python(
        """
        from bertopt import cli, feed
        from tests.fakes import WordTokenizer, requests
        def work():
            workers = feed.Workers(WordTokenizer(), 2, processes=True)
            list(workers.ahead(requests(3)))
            print(*workers.pool.pids)
        cli.app.command()(work)
        cli.sys.argv[1:] = ["work"]
        cli.main()
        """
    )
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    workers = [int(number) for number in out.split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 10
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))


def alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_signal_that_was_ignored_stays_so():
    code = """
        import os, signal, time
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        from bertopt.cli.stopping import stop_on_signals
        stop_on_signals()
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(1.2)
        print("alive")
    """
    assert python(code).communicate(timeout=20)[0] == "alive\n"


def test_ctrl_c_while_a_graph_is_exported(named, tmp_path):
    """The real thing: from the first line of help to the library's depths, nothing but the cache's folders is left."""
    data = tmp_path / "texts.jsonl"
    data.write_text(TEXTS)
    command = ["ladder", "--model", named, "--data", data, "--bs", 2, "--seq", 16, "--rungs", "onnx", "--out", tmp_path / "run"]
    child = python(
        f"from bertopt import cli; cli.sys.argv[1:] = {[str(word) for word in command]}; cli.main()",
        env={"BERTOPT_CACHE": str(tmp_path / "cache")},
        cwd=tmp_path,
    )
    for line in child.stderr:
        if "preparing onnx" in line:
            break
    child.send_signal(signal.SIGINT)
    start = time.monotonic()
    out, err = child.communicate(timeout=20)
    assert time.monotonic() - start < 5  # a second, and what a busy machine adds
    assert child.returncode == 130
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("bertopt: stopped")
    assert out == ""
    untouched(tmp_path, "texts.jsonl", *(["cache"] if (tmp_path / "cache").exists() else []))
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.suffix not in (".onnx", ".json")]


def test_nobody_reads_on(monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stdout", Closed())
    assert cli.run(["--version"]) == 141


def test_a_reader_that_leaves(ladder, tmp_path):
    assert ladder() == (0, [])
    child = python(f"from bertopt import cli; cli.sys.argv[1:] = ['report', {str(tmp_path / 'runs' / 'one')!r}]; cli.main()")
    child.stdout.close()
    assert child.stderr.read() == ""
    assert child.wait(60) == 141


def test_a_full_device_behind_standard_output():
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        child = subprocess.run(
            [sys.executable, "-m", "bertopt", "--version"], stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
    assert child.returncode == 2
    assert child.stderr == "bertopt: the system: No space left on device\n"
