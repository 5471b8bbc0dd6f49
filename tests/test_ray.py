"""The Ray Serve application, started for real: two replicas on this machine, and one of them is killed under load."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

import bertopt
from tests.runs import bundle_of, texts

pytest.importorskip("ray", reason="Ray is an extra: pip install 'bertopt[ray]'")
pytestmark = pytest.mark.slow
PORT, CLIENTS, ROUNDS = 8765, 8, 25


@pytest.fixture
def ray_started(monkeypatch):
    import ray

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    from ray import serve

    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    yield serve
    serve.shutdown()
    ray.shutdown()


def ask(text: str) -> tuple[int, dict]:
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/", json.dumps({"text": text}).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, {}


def test_no_request_is_lost_when_a_replica_is_killed(ray_started, checkpoint_folder, tmp_path, monkeypatch):
    from bertopt.targets.ray_app import build

    monkeypatch.setenv("BERTOPT_CACHE", str(tmp_path / "cache"))
    bundle = bundle_of(checkpoint_folder("bert"), tmp_path)
    rows = texts(CLIENTS)
    with bertopt.load(bundle.folder) as model:
        expected = [answer.label for answer in model.predict(rows)]
    actor = {"num_cpus": 1, "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}}}
    ray_started.run(build(bundle.folder, num_replicas=2, threads=1, ray_actor_options=actor), name="bert")
    replicas = ray_started.get_deployment_handle("Bert", "bert")
    pids = {replicas.pid.remote().result() for _ in range(20)}
    assert len(pids) == 2
    half = threading.Barrier(CLIENTS + 1)

    def client(number: int) -> list[tuple[int, dict]]:
        found = []
        for turn in range(ROUNDS):
            if turn == ROUNDS // 3:
                half.wait(60)
            found.append(ask(rows[number]))
        return found

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(client, number) for number in range(CLIENTS)]
        half.wait(60)
        os.kill(min(pids), signal.SIGKILL)
        found = [one.result() for one in clients]
    for answers, label in zip(found, expected, strict=True):
        assert [status for status, _ in answers] == [200] * ROUNDS
        assert {body["results"][0]["label"] for _, body in answers} == {label}
