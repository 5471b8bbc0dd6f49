"""What a user can do wrong: one sentence on standard error, exit code 2, and nothing half-written."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from bertopt import cli, files
from bertopt.errors import UsageError
from bertopt.outputs import run_folder
from bertopt.tokenization import FastTokenizer
from tests import models

ROOT = Path(__file__).parents[1]
HEAVY = ["torch", "transformers", "tokenizers", "onnx", "onnxruntime", "openvino", "matplotlib"]
PROGRESS = re.compile(r"\[ *\d+\.\d s\] ")

TEXTS = "\n".join(json.dumps({"text": t, "label": x}) for t, x in [("a good film", "pos"), ("bad", "neg"), ("the news", "neg")])


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTOPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def model(checkpoint_folder):
    return checkpoint_folder("bert", id2label={0: "neg", 1: "pos"}, label2id={"neg": 0, "pos": 1})


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text(TEXTS)
    return file


@pytest.fixture
def ladder(model, data, tmp_path, capfd):
    """`ladder("--bs", "0")` -> (exit code, sentences on standard error) of a quick run on good input but for these options."""

    def run(*options: object) -> tuple[int, list[str]]:
        given = ["--model", model, "--data", data, "--bs", 2, "--seq", 16, "--repeats", 1, "--rungs", "baseline"]
        given += ["--out", tmp_path / "runs" / "one"]
        capfd.readouterr()
        code = cli.run(["ladder", *map(str, given), *map(str, options)])
        said = capfd.readouterr().err.splitlines()
        return code, [line for line in said if not PROGRESS.match(line)]

    return run


def refused(result: tuple[int, list[str]], *words: str) -> None:
    code, said = result
    assert code == 2
    assert len(said) == 1, said
    assert said[0].startswith("bertopt: ")
    for word in words:
        assert word in said[0]


def untouched(folder: Path, *allowed: str) -> None:
    assert sorted(p.name for p in folder.iterdir()) == sorted(allowed)


OPTIONS = {
    "--bs 0": ["--bs 0", "at least 1"],
    "--bs -1": ["--bs -1", "at least 1"],
    "--bs x": ["--bs"],
    "--limit 0": ["--limit 0"],
    "--repeats 0": ["--repeats 0"],
    "--window 0": ["--window 0"],
    "--workers 0": ["--workers 0"],
    "--workers x": ["--workers x", "auto"],
    "--rungs fp17": ["'fp17'", "bucketed"],
    "--rungs ,": ["--rungs"],
    "--rungs onnx-fp16": ["onnx-fp16", "cuda"],
    "--device tpu": ["'tpu'", "cuda"],
    "--seq 65": ["65", "64 positions"],
    "--seq 2": ["--seq 2", "special tokens"],
    "--seq 0": ["--seq 0"],
    "--data no-such.jsonl": ["no-such.jsonl"],
    "--data": ["--data"],
    "--encoding klingon": ["klingon"],
    "--text-column nope": ["'nope'", "'text'"],
    "--model no-such/model": ["no-such/model", "cannot be reached", "what works offline"],
    "--model bert-base-uncased": ["--random-weights", "what works offline"],
    "--model ./no/such/folder": ["./no/such/folder"],
    "--resume no-such-run": ["no-such-run is no run"],
    "--nonsense": ["--nonsense"],
}


@pytest.mark.parametrize("options", OPTIONS)
def test_an_option_that_cannot_be_used(ladder, tmp_path, options):
    refused(ladder(*options.split()), *OPTIONS[options])
    untouched(tmp_path, "texts.jsonl")


def test_a_card_that_is_not_there(ladder, tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    refused(ladder("--device", "cuda"), "--device cpu")
    untouched(tmp_path, "texts.jsonl")


def test_no_torch(ladder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(ladder(), "PyTorch is not installed", "pip install")
    untouched(tmp_path, "texts.jsonl")


FILES = {
    "empty.jsonl": (b"", ["empty.jsonl is empty"]),
    "blank.txt": (b"\n\n", ["blank.txt is empty"]),
    "no-text.jsonl": (b'{"text": "a"}\n{"label": "neg"}\n', ["row 2", "no text"]),
    "latin.txt": ("café".encode("latin-1"), ["byte 3", "--encoding"]),
    "utf16.csv": ("text\na".encode("utf-16"), ["utf-16", "--encoding utf-16"]),
    "unknown.jsonl": (b'{"text": "a", "label": "neg"}\n{"text": "b", "label": "meh"}\n', ["row 2", "'meh'", "neg, pos"]),
    "mixed.jsonl": (b'{"text": "a", "label": "neg"}\n{"text": "b", "label": "1"}\n', ["row 2", "'1'", "neg, pos"]),
    "half.jsonl": (b'{"text": "a", "label": "neg"}\n{"text": "b"}\n', ["row 2", "all or none"]),
    "texts.xlsx": (b"PK", [".xlsx"]),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_used(ladder, tmp_path, name):
    content, words = FILES[name]
    (tmp_path / name).write_bytes(content)
    refused(ladder("--data", tmp_path / name), name, *words)
    untouched(tmp_path, "texts.jsonl", name)


def no_config(folder):
    (folder / "config.json").unlink()


def broken_config(folder):
    (folder / "config.json").write_text("{")


def other_family(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))


def other_head(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMultipleChoice"]}))


def cut_weights(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:40000])


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def no_tokenizer(folder):
    for file in ("tokenizer.json", "vocab.txt"):
        (folder / file).unlink()


CHECKPOINTS = [
    (no_config, ["no config.json"]),
    (broken_config, ["config.json"]),
    (other_family, ["'gpt2'", "roberta"]),
    (other_head, ["BertForMultipleChoice"]),
    (cut_weights, ["model.safetensors", "40000"]),
    (no_weights, ["no weights"]),
    (no_tokenizer, ["no tokenizer"]),
]


@pytest.mark.parametrize(("spoil", "words"), CHECKPOINTS)
def test_a_checkpoint_that_cannot_be_served(ladder, model, tmp_path, spoil, words):
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    spoil(folder)
    refused(ladder("--model", folder), str(folder), *words)
    untouched(tmp_path, "texts.jsonl", "model")


def test_a_tokenizer_with_more_ids_than_the_embedding_table(ladder, checkpoint_folder, tmp_path):
    refused(ladder("--model", checkpoint_folder("bert", vocab_size=60)), "ids up to 99", "60 rows")
    untouched(tmp_path, "texts.jsonl")


@pytest.mark.parametrize("out", ["file", "file/run", "/proc/bertopt/run", "/dev/full"])
def test_a_folder_that_cannot_be_written_is_refused_before_any_work(ladder, tmp_path, out):
    (tmp_path / "file").write_text("kept")
    refused(ladder("--out", tmp_path / out), "cannot write")
    untouched(tmp_path, "texts.jsonl", "file")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("full", ["reference.npz", "answers.npz", "ladder.json", "one"])
def test_a_disk_that_fills_up(ladder, tmp_path, monkeypatch, full):
    """Whichever file it is that no longer fits, also when the finished ones are moved."""
    real = os.replace

    def replace(source, target):
        if Path(target).name == full or Path(target).parent.name == full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        real(source, target)

    monkeypatch.setattr(files.os, "replace", replace)
    refused(ladder(), "No space left on device")
    untouched(tmp_path, "texts.jsonl", *(["runs"] if full == "one" else []))
    assert not list(tmp_path.rglob("*.npz")) + list(tmp_path.rglob("*.json"))


def test_a_report_that_does_not_fit_leaves_the_record_to_make_it_from(ladder, tmp_path, monkeypatch):
    real = os.replace

    def replace(source, target):
        if Path(target).name == "report.html":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", replace)
        refused(ladder(), "report.html", "No space left on device")
    run = tmp_path / "runs" / "one"
    untouched(run, "answers.npz", "ladder.json", "reference.npz")
    assert cli.run(["report", str(run)]) == 0
    assert (run / "report.html").exists()


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"schema_version": 99}', '{"schema_version": 1}', '{"schema_version": ']
)
def test_what_is_no_run_can_be_neither_resumed_nor_reported(ladder, tmp_path, capfd, content):
    run = tmp_path / "run"
    run.mkdir()
    if content is not None:
        (run / "ladder.json").write_text(content)
    refused(ladder("--resume", run), str(run))
    assert cli.run(["report", str(run)]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1
    untouched(run, *(["ladder.json"] if content is not None else []))


def test_a_worker_that_fails_ends_the_run_with_its_own_words(ladder, tmp_path, monkeypatch):
    real = FastTokenizer.encode

    def encode(self, *args):
        if threading.current_thread().name.startswith("tokenize"):
            raise ValueError("lost its vocabulary")
        return real(self, *args)

    monkeypatch.setattr(FastTokenizer, "encode", encode)
    code, said = ladder("--rungs", "prefetch")
    assert code == 1
    assert said == ["bertopt: a tokenizing worker failed: ValueError: lost its vocabulary"]
    untouched(tmp_path, "texts.jsonl")


def test_good_input_is_exit_code_0_and_a_whole_folder(ladder, tmp_path):
    assert ladder("--trace") == (0, [])
    untouched(tmp_path / "runs", "one")
    untouched(tmp_path / "runs" / "one", "answers.npz", "ladder.json", "reference.npz", "report.html", "trace-baseline.json")


def test_a_folder_that_exists_keeps_what_else_lies_in_it(ladder, tmp_path):
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "notes.txt").write_text("kept")
    assert ladder()[0] == 0
    untouched(run, "answers.npz", "ladder.json", "notes.txt", "reference.npz", "report.html")


def test_a_ladder_on_which_nothing_passes_is_no_success(ladder, model, tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(model, tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.bias"] = torch.full_like(tensors["classifier.bias"], float("nan"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert ladder("--model", folder)[0] == 1
    record = json.loads((tmp_path / "runs" / "one" / "ladder.json").read_text())
    assert [(r["status"], r["gate"]) for r in record["rungs"]] == [("failed", None)]
    assert "NaN" in record["rungs"][0]["reason"]
    assert record["best"] is record["verdict"] is None


def test_nobody_reads_on(monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        def flush(self):
            pass

    monkeypatch.setattr(sys, "stdout", Closed())
    assert cli.run(["--version"]) == 141


def test_no_command_prints_the_help(capfd):
    assert cli.run([]) == 2
    assert "Commands:" in capfd.readouterr().out


def test_no_such_command(capfd):
    assert cli.run(["lader"]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


def python(code: str, **options) -> subprocess.Popen:
    environment = dict(os.environ, PYTHONPATH=str(ROOT)) | options.pop("env", {})
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in environment.items() if value is not None},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # whatever runs the tests may ignore it
        **options,
    )


def test_help_and_wrong_options_import_no_heavy_library():
    code = f"""
        import sys
        import typer
        from bertopt import cli
        cli._settle_libraries()
        commands = [[name] for name in typer.main.get_command(cli.app).commands]
        assert ["ladder"] in commands
        for command in [], *commands:
            assert cli.run([*command, "--help"]) == 0
        assert cli.run(["ladder", "--bs", "0"]) == 2
        assert cli.run(["ladder", "--device", "auto", "--rungs", "fp17"]) == 2
        assert cli.run(["report", "no-such-run"]) == 2
        print(*[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
    """
    child = python(code)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert out.count("Usage:") >= 3
    assert err.splitlines()[-1] == ""


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
            print(*workers._pool._processes)
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


def test_ctrl_c_while_a_graph_is_exported(model, data, tmp_path):
    """The real thing: from the first line of help to the library's depths, nothing but the cache's folders is left."""
    command = ["ladder", "--model", model, "--data", data, "--bs", 2, "--seq", 16, "--rungs", "onnx", "--out", tmp_path / "run"]
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


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
@pytest.mark.parametrize(("threads", "why"), [(None, "1 (affinity"), ("1", "1 (OMP_NUM_THREADS)")])
def test_threads_follow_the_cores_that_there_are(ladder, tmp_path, monkeypatch, threads, why):
    """HST-01: every library runs as many threads as the process may use, and none complains about the others."""
    if threads is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    cores = os.sched_getaffinity(0)
    try:
        if threads is None:
            os.sched_setaffinity(0, [min(cores)])
        assert ladder("--rungs", "onnx,fp16", "--workers", "8") == (0, [])
    finally:
        os.sched_setaffinity(0, cores)
    record = json.loads((tmp_path / "runs" / "one" / "ladder.json").read_text(encoding="utf-8"))
    assert record["environment"]["cores"].startswith(why)
    measured = {r["name"]: r for r in record["rungs"] if r["status"] == "measured"}
    assert {"baseline", "fast-tokenizer", "prefetch", "bucketed", "onnx"} <= set(measured)
    for name, rung in measured.items():
        assert rung["backend_version"].endswith(", 1 threads"), name
        assert rung["workers"] == (None if name in ("baseline", "fast-tokenizer") else 1)


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_terminal_that_knows_ascii_only(ladder, model, data, tmp_path):
    named = Path(shutil.copytree(model, tmp_path / "modèle"))
    assert ladder("--model", named) == (0, [])
    child = python(
        f"from bertopt import cli; cli.sys.argv[1:] = ['report', {str(tmp_path / 'runs' / 'one')!r}]; cli.main()", env=C_LOCALE
    )
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    assert out.isascii()
    assert "mod?le" in out


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


def test_a_tokenizer_without_a_limit_is_held_to_the_positions(ladder, tmp_path, capfd):
    """TOK-02: no --seq and --seq 64 truncate to 64 and count it; --seq 128 stops before any work and names 64."""
    folder = models.save("bert", tmp_path / "model")
    models.save_tokenizer("bert", folder, max_length=None)
    (tmp_path / "long.txt").write_text("good " * 500)
    refused(ladder("--model", folder, "--data", tmp_path / "long.txt", "--seq", 128), "--seq 128", "64")
    for sequence in ([], ["--seq", "64"]):
        command = [
            "ladder",
            "--model",
            str(folder),
            "--data",
            str(tmp_path / "long.txt"),
            "--rungs",
            "baseline",
            "--repeats",
            "1",
        ]
        assert cli.run([*command, *sequence, "--out", str(tmp_path / "run")]) == 0
        record = json.loads((tmp_path / "run" / "ladder.json").read_text())
        assert record["sequence_length"] == 64
        assert record["data"]["truncated_requests"] == record["rungs"][0]["truncated_requests"] == 1
