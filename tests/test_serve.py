"""`bertopt serve` over HTTP: what is answered, what is refused and how, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psutil
import pytest

import bertopt
from bertopt.cli import run as cli
from bertopt.errors import UsageError
from bertopt.serve.parse import parse
from bertopt.serve.scheduler import Queue
from bertopt.serve.service import Service
from bertopt.serve.setup import Settings, make_service
from bertopt.serve.tickets import Refusal
from tests.runs import bundle_of, texts
from tests.served import Client, FakeEngine, until

pytest.importorskip("uvicorn", reason="serving is an extra: pip install 'bertopt[serve]'")
STATUSES = ("200", "400", "413", "422", "429", "500", "503", "504")
SECRET = "the film about xylophones"


@pytest.fixture(scope="module")
def bundle(checkpoint_folder, tmp_path_factory):
    return bundle_of(checkpoint_folder("bert"), tmp_path_factory.mktemp("tiny"))


@contextlib.contextmanager
def application(bundle, engine=None, *, max_queue=64, **options):
    """The application behind uvicorn in a thread, on engines of this process where one is given."""
    import uvicorn

    from bertopt.serve.app import Application

    def make(bundle, settings, finish):
        made = make_service(bundle, settings, finish)
        if engine is None:
            return made
        queue = made.make_queue
        return Service(made.tokenizer, made.head, [engine], finish, make_queue=lambda c: (queue(c)[0], max_queue))

    app = Application(bundle, Settings(max_wait_ms=1), make=make, **options)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        port = sock.getsockname()[1]
        until(lambda: app.service.ready > 0)
        try:
            yield SimpleNamespace(app=app, port=port, ask=Client(port))
        finally:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def served(bundle):
    with application(bundle) as running:
        yield running


def test_answers_are_those_of_predict(served, bundle):
    rows, pairs = texts(40), [None if n % 3 else "good news" for n in range(40)]
    with bertopt.load(bundle.folder) as model:
        expected = [answer.as_json() for answer in model.predict(rows, pairs)]

    def one(position):
        return Client(served.port)("POST", "/predict", {"text": rows[position], "text_pair": pairs[position]})

    with ThreadPoolExecutor(8) as pool:
        singles = list(pool.map(one, range(40)))
    status, together, _ = served.ask("POST", "/predict", {"texts": rows, "text_pairs": pairs})
    assert [status, *(s for s, _, _ in singles)] == [200] * 41
    for found in (together["results"], [answer["results"][0] for _, answer, _ in singles]):
        assert [a["label"] for a in found] == [a["label"] for a in expected]
        assert [a["tokens"] for a in found] == [a["tokens"] for a in expected]
        for a, b in zip(found, expected, strict=True):
            assert a["scores"] == pytest.approx(b["scores"], abs=1e-5)


def test_one_text_and_a_list_of_one_are_the_same(served):
    single = served.ask("POST", "/predict", {"text": "good film"})[1]
    assert single == served.ask("POST", "/predict", {"texts": ["good film"]})[1]
    assert single == served.ask("POST", "/predict", {"texts": ["good film"], "text_pairs": [None]})[1]


def test_a_long_text_is_cut_or_refused(served):
    long = "good " * 400
    answer = served.ask("POST", "/predict", {"text": long})[1]["results"][0]
    assert (answer["truncated"], answer["tokens"]) == (True, 32)
    status, body, _ = served.ask("POST", "/predict", {"texts": ["good", long], "truncate": False})
    assert (status, body["error"]["reason"], body["error"]["positions"]) == (422, "text_too_long", [1])


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "no JSON"),
        (b"\xff\xfe", 400, "no JSON"),
        (b"[" * 100_000, 400, "no JSON"),
        ([["a", "b"]], 422, "the body is a list"),
        ({"texts": [["a", "b"]]}, 422, "text 1 is a list.*text_pairs"),
        ({"texts": []}, 422, "empty list"),
        ({"texts": "good"}, 422, "texts is a string"),
        ({"text": None}, 422, "text is a null"),
        ({"text": "a", "texts": ["b"]}, 422, "exclude each other"),
        ({"texts": ["a", "b"], "text_pairs": ["c"]}, 422, "no list of 2"),
        ({"texts": ["a"], "text_pairs": [3]}, 422, "text_pair 1 is a number"),
        ({"text": "a", "lang": "en"}, 422, "no field 'lang'"),
        ({"text": "a", "truncate": "no"}, 422, "truncate is a string"),
        ({"text": "a", "timeout_ms": 0}, 422, "timeout_ms"),
        ({"text": "a", "timeout_ms": float("nan")}, 422, "timeout_ms"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(served, body, status, said):
    found, answer, _ = served.ask("POST", "/predict", body)
    assert found == answer["error"]["status"] == status
    assert re.search(said, answer["error"]["message"])
    assert served.ask("POST", "/predict", {"text": "good"})[0] == 200  # on the same connection


def test_a_timeout_is_bounded_by_the_servers():
    assert parse(b'{"text": "a", "timeout_ms": 1e9}', 30.0).timeout_s == 30.0
    assert isinstance(parse(b'{"text": "a", "timeout_ms": true}', 30.0), Refusal)


def test_a_body_beyond_the_limit_is_not_read(bundle):
    with application(bundle, FakeEngine(), max_body_bytes=1000) as running:
        status, body, _ = running.ask("POST", "/predict", {"text": "x" * 2000})
        assert (status, body["error"]["reason"]) == (413, "body_too_large")
        chunks = (b"x" * 400 for _ in range(10))  # no length is stated
        other = Client(running.port)
        other.connection.request("POST", "/predict", chunks, encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
        assert other.connection.getresponse().status == 413


def test_health_metrics_and_documents(served, bundle):
    served.ask("POST", "/predict", {"texts": ["good"] * 3})
    assert served.ask("GET", "/healthz")[:2] == (200, {"status": "alive"})
    assert served.ask("GET", "/readyz")[1]["engines_ready"] == 1
    metrics = served.ask("GET", "/metrics")[1]
    for name in ("requests_total", "batch_rows_bucket", "batch_padding_fraction_bucket", 'tokens_total{kind="real"}'):
        assert f"bertopt_{name}" in metrics
    for phase in ("tokenize", "queue", "compute", "total"):
        assert f'bertopt_request_seconds_count{{phase="{phase}"}}' in metrics
    document = served.ask("GET", "/openapi.json")[1]
    assert set(document["paths"]["/predict"]["post"]["responses"]) == {
        *["200", "400", "413", "422", "429", "500", "503", "504"]
    }
    assert "POST /predict" in served.ask("GET", "/docs")[1]
    assert served.ask("POST", "/embed", {"text": "a"})[1]["error"]["reason"] == "wrong_endpoint"
    assert served.ask("GET", "/predict")[0] == 405


def test_an_encoder_embeds(checkpoint_folder, tmp_path):
    encoder = bundle_of(checkpoint_folder("bert", head="Model"), tmp_path)
    with application(encoder) as running, bertopt.load(encoder.folder) as model:
        status, answer, _ = running.ask("POST", "/embed", {"texts": ["good film", "bad"]})
        assert status == 200
        assert answer["embeddings"][1] == pytest.approx(model.embed(["bad"])[0].tolist(), abs=1e-5)
        assert running.ask("POST", "/predict", {"text": "a"})[0] == 404


def test_a_full_queue_answers_429_and_says_when_to_come_back(bundle):
    engine = FakeEngine()
    with application(bundle, engine, max_queue=8) as running, ThreadPoolExecutor(40) as pool:
        engine.free.clear()
        asked = [pool.submit(Client(running.port), "POST", "/predict", {"text": "good"}) for _ in range(40)]
        until(lambda: sum(one.done() for one in asked) >= 24)
        engine.free.set()
        found = [one.result() for one in asked]
    assert {status for status, _, _ in found} == {200, 429}
    assert all(int(headers["retry-after"]) >= 1 for status, _, headers in found if status == 429)


def test_a_client_that_hangs_up_is_not_computed(bundle):
    engine = FakeEngine()
    with application(bundle, engine) as running:
        engine.free.clear()
        first = Client(running.port)
        first.connection.request("POST", "/predict", json.dumps({"text": "good"}))
        until(lambda: engine.asked)
        for _ in range(5):
            gone = Client(running.port)
            gone.connection.request("POST", "/predict", json.dumps({"text": "bad"}))
            until(lambda: running.app.service.waiting == 1)
            gone.connection.close()
            until(lambda: all(item.gone for item in running.app.service.queue._items))
            running.app.service.queue._clean(0.0)
        engine.free.set()
        assert first.connection.getresponse().status == 200
        assert engine.rows == 1


def test_a_deadline_is_answered_with_504(bundle):
    engine = FakeEngine()
    with application(bundle, engine) as running:
        engine.free.clear()
        status, body, _ = running.ask("POST", "/predict", {"text": "good", "timeout_ms": 30})
        engine.free.set()
        assert (status, body["error"]["reason"]) == (504, "deadline")


def test_settings_that_do_not_fit_are_refused(bundle):
    for settings, said in [
        (Settings(max_batch_tokens=4), "no room for one text of 32 tokens"),
        (Settings(max_wait_ms=-1), "negative"),
        (Settings(max_queue=0), "too small"),
        (Settings(instances=1000), "cores"),
        (Settings(batching="best"), "one of"),
    ]:
        with pytest.raises(UsageError, match=said):
            make_service(bundle, settings, lambda tickets: None)


def test_the_queue_of_a_bundle_groups_as_its_ladder_did(bundle):
    from bertopt.serve.cost import Cost

    queue, limit = make_service(bundle, Settings(), lambda tickets: None).make_queue(Cost(0.001, 1e-5))
    assert isinstance(queue, Queue)
    assert (queue.grouping.name, queue.grouping.edges, queue.grouping.rows) == ("bucketed", (8, 16, 32), 4)
    assert limit >= 8


@contextlib.contextmanager
def command(bundle, *options):
    """`bertopt serve` as a process: its port, and what it wrote once it has ended."""
    arguments = [sys.executable, "-m", "bertopt", "serve", str(bundle.folder), "--port", "0", *options]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wrote = []
    try:
        for line in process.stdout:
            wrote.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                break
        port = int(found[1])
        until(lambda: Client(port)("GET", "/readyz")[0] == 200, 30)
        yield SimpleNamespace(process=process, port=port, ask=Client(port), wrote=wrote)
    finally:
        process.kill()
        process.wait()


def test_the_command_serves_mends_and_drains(bundle):
    """An engine is killed while requests wait; then SIGTERM comes while one is on its way."""
    rows = texts(30)
    with bertopt.load(bundle.folder) as model, command(bundle, "--max-wait-ms", "300") as running:
        expected = [answer.label for answer in model.predict(rows)]
        pool = ThreadPoolExecutor(30)
        asked = [pool.submit(Client(running.port), "POST", "/predict", {"text": text}) for text in rows]
        time.sleep(0.1)
        engine = next(p for p in psutil.Process(running.process.pid).children() if "spawn_main" in " ".join(p.cmdline()))
        os.kill(engine.pid, signal.SIGKILL)
        found = [one.result() for one in asked]
        assert [(status, body["results"][0]["label"]) for status, body, _ in found] == [(200, label) for label in expected]
        assert running.ask("POST", "/predict", {"texts": [SECRET, SECRET * 50]})[0] == 200
        assert running.ask("POST", "/predict", {"texts": [SECRET, 3]})[0] == 422
        last = pool.submit(Client(running.port), "POST", "/predict", {"text": "good"})  # waits 300 ms for a fuller batch
        time.sleep(0.1)
        running.process.send_signal(signal.SIGTERM)
        assert last.result()[0] == 200
        assert running.process.wait(10) == 0
        running.wrote.append(running.process.stdout.read())
        children = psutil.pid_exists(engine.pid)
    assert not children
    assert "xylophones" not in "".join(running.wrote)
    assert "drained, and stopped" in running.wrote[-1]
    assert "Traceback" not in "".join(running.wrote)


def test_the_command_says_what_it_cannot_do(bundle, tmp_path, capsys):
    assert cli(["serve", str(tmp_path)]) == 2
    assert "is no bundle" in capsys.readouterr().err
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        assert cli(["serve", str(bundle.folder), "--port", str(sock.getsockname()[1])]) == 2
    assert "cannot listen at 127.0.0.1" in capsys.readouterr().err


def test_a_model_that_cannot_be_opened_ends_the_command(bundle, tmp_path):
    import dataclasses
    import shutil

    from bertopt import files, records
    from bertopt.bundle import File

    home = shutil.copytree(bundle.folder, tmp_path / "broken")
    (home / "model.onnx").write_bytes(b"no graph")
    size = File(8, files.digest([home / "model.onnx"]))
    manifest = dataclasses.replace(bundle.manifest, files=bundle.manifest.files | {"model.onnx": size})
    records.save(manifest, home / "bundle.json")
    arguments = [sys.executable, "-m", "bertopt", "serve", str(home), "--port", "0"]
    found = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert "the back end does not start" in found.stderr
    assert "Traceback" not in found.stderr
