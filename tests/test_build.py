"""Building plans in a child process, here with OpenVINO; tests/test_tensorrt.py builds with TensorRT for RTX."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bertopt import build, engines, plan, profiles
from bertopt.backends.base import Options
from bertopt.backends.driver import device
from bertopt.builders import process, versions
from bertopt.builders.process import Job
from bertopt.errors import BackendUnavailable, GraphError, PlanError, UsageError, WorkerError
from bertopt.model import open_checkpoint
from bertopt.workspace import Workspace

needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed")
no_tensorrt = pytest.mark.skipif(
    versions.installed("TensorRT") is not None and device() is not None, reason="TensorRT can build here"
)


@pytest.fixture
def request_(tiny: Path, tmp_path: Path) -> engines.Request:
    data = tmp_path / "texts.txt"
    data.write_text("\n".join("good film " * n for n in range(1, 12)) + "\n")
    out = tmp_path / "plans" / "x.plan"
    return engines.Request(out=out, model=str(tiny), data=data, target="openvino", sequence_length=32)


@needs_openvino
def test_a_plan_is_built_identified_and_answers(request_: engines.Request) -> None:
    heard: list[tuple[float, str]] = []
    result = engines.build_engine(request_, lambda seconds, doing: heard.append((seconds, doing)))
    assert {doing for _, doing in heard} >= {"rewriting the graph", "judging its answers"}
    assert [s for s, _ in heard] == sorted(s for s, _ in heard)
    checkpoint = open_checkpoint(request_.model)
    opened = plan.open_plan(
        request_.out,
        model_fingerprint=checkpoint.fingerprint,
        tokenizer_fingerprint=build.tokenizer_fingerprint(checkpoint.folder),
    )
    said = opened.manifest
    assert (said.library, said.library_version) == ("OpenVINO", versions.installed("OpenVINO"))
    assert said.precision in ("bf16", "fp16")
    assert said.plan_bytes == request_.out.stat().st_size > 1000
    assert said.compute_capability is None
    assert result.parity is not None
    assert result.parity.passed
    assert any("judged on" in line for line in result.lines())
    assert sorted(p.name for p in request_.out.parent.iterdir()) == ["x.plan", "x.plan.json", "x.plan.tokenizer"]
    with pytest.raises(PlanError, match=f"tokenizer {said.tokenizer_fingerprint}, and 0000"):
        plan.open_plan(request_.out, tokenizer_fingerprint="0000")


@needs_openvino
def test_a_plan_in_full_precision_answers_in_it(request_: engines.Request) -> None:
    result = engines.build_engine(dataclasses.replace(request_, precision="fp32"))
    assert result.plan.manifest.precision == "fp32"
    assert result.parity is not None
    assert result.parity.relative_difference < 1e-3


@needs_openvino
def test_the_tokenizer_is_part_of_the_identity(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny, folder)
    before = build.tokenizer_fingerprint(folder)
    assert before == build.tokenizer_fingerprint(tiny)
    file = folder / "tokenizer_config.json"
    file.write_text(file.read_text().replace("64", "63"))
    assert build.tokenizer_fingerprint(folder) != before


@needs_openvino
@pytest.mark.parametrize("stage", ["rewriting the graph", "starting", "judging its answers"])
def test_ctrl_c_leaves_nothing(request_: engines.Request, stage: str) -> None:
    def interrupt(seconds: float, doing: str) -> None:
        if doing == stage:
            raise KeyboardInterrupt

    before = set(psutil.Process().children())
    with pytest.raises(KeyboardInterrupt):
        engines.build_engine(request_, interrupt)
    assert list(request_.out.parent.iterdir()) == []
    assert set(psutil.Process().children()) == before


@needs_openvino
def test_an_old_plan_survives_a_build_that_fails(request_: engines.Request) -> None:
    engines.build_engine(request_)
    before = request_.out.read_bytes(), plan.manifest_path(request_.out).read_bytes()

    def interrupt(seconds: float, doing: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engines.build_engine(request_, interrupt)
    assert (request_.out.read_bytes(), plan.manifest_path(request_.out).read_bytes()) == before


def job(folder: Path, builder: str) -> Job:
    return Job(builder, "openvino", str(folder / "none.onnx"), str(folder / "plan"), "fp16")


def test_a_builder_that_fails_is_a_sentence_with_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"the builder of openvino died with status 1: .*has no attribute 'build'"):
        process.run(job(tmp_path, "versions"))


def test_a_builder_that_is_killed_is_a_sentence(tmp_path: Path) -> None:
    def kill(seconds: float, doing: str) -> None:
        for child in psutil.Process().children():
            child.send_signal(signal.SIGKILL)

    with pytest.raises(WorkerError, match="died with signal 9"):
        process.run(job(tmp_path, "openvino"), kill)


@needs_openvino
def test_a_builders_own_error_keeps_its_kind(tmp_path: Path) -> None:
    (tmp_path / "none.onnx").write_bytes(b"random bytes")
    with pytest.raises(GraphError, match="OpenVINO refuses"):
        process.run(job(tmp_path, "openvino"))


def test_a_child_does_not_outlive_a_parent_that_is_killed() -> None:
    import subprocess
    import sys

    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'bertopt.builders.process'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True); time.sleep(60)\n"
    )
    root = str(Path(build.__file__).parents[1])
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=root)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    deadline = time.monotonic() + 10
    while not _ignores_interrupts(child.pid) and time.monotonic() < deadline:
        time.sleep(0.05)  # until it has set itself up
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    gone, alive = psutil.wait_procs([child], timeout=5)
    for one in alive:
        one.kill()
    assert gone


def _ignores_interrupts(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")), 16)
    return bool(mask >> (signal.SIGINT - 1) & 1)


@no_tensorrt
def test_an_explicit_target_that_cannot_build_is_refused_before_any_work(request_: engines.Request) -> None:
    import dataclasses

    wanted = dataclasses.replace(request_, target="tensorrt", model="/no/such/model")
    with pytest.raises(BackendUnavailable, match=r"--target tensorrt cannot build here: .+") as error:
        engines.build_engine(wanted)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="--target onnx: one of auto"):
        engines.build_engine(dataclasses.replace(wanted, target="onnx"))


@no_tensorrt
@needs_openvino
def test_auto_says_what_it_took_and_why() -> None:
    target, why = build.choose_target("auto")
    assert target == "openvino"
    assert why.startswith("target openvino: ")
    assert "TensorRT" in why


@needs_openvino
def test_a_plan_with_other_answers_is_refused(request_: engines.Request, checkpoint_folder: Callable[..., Path]) -> None:
    """NaN compares false with everything, so it is looked for, and so are answers that are merely wrong."""
    result = engines.build_engine(request_)
    other = Workspace(open_checkpoint(str(checkpoint_folder("bert", seed=1)))).canonical()
    from bertopt.tokenization import load_tokenizer

    tokens = load_tokenizer(request_.model, max_length=32).encode(["good film", "bad news of the game"])
    batches = list(build.text_batches(tokens))
    with pytest.raises(GraphError, match="does not answer as its graph in FP32"):
        build.judge(result.plan, "openvino", other, other, batches, 0)
    verdict, said = build.judge(result.plan, "openvino", Workspace(open_checkpoint(request_.model)).canonical(), other, [], 0)
    assert verdict is None
    assert "not judged" in said


def test_a_profile_beyond_the_models_positions_is_refused(request_: engines.Request) -> None:
    import dataclasses

    wanted = dataclasses.replace(request_, target="auto", profiles=(profiles.parse("1x1:1x65:1x65"),))
    with pytest.raises(UsageError, match=r"a profile ends at 65 tokens, and .* has 64 positions"):
        engines.build_engine(wanted)


@needs_openvino
def test_an_openvino_plan_runs_as_a_session(request_: engines.Request) -> None:
    from bertopt.backends.openvino_plan import OpenVinoPlanSession

    engines.build_engine(request_)
    with OpenVinoPlanSession(plan.open_plan(request_.out), Options(threads=1)) as session:
        assert session.precision in ("bf16", "fp16")
        assert session.version.startswith("OpenVINO 20")
    request_.out.write_bytes(b"random")
    broken = plan.Plan(request_.out, plan.read_manifest(request_.out))
    with pytest.raises(PlanError, match="is refused by OpenVINO"):
        OpenVinoPlanSession(broken, Options(threads=1))


def test_recipes_become_requests(tmp_path: Path) -> None:
    recipe = Path(build.__file__).parents[1] / "engines" / "bert-base-fp16.toml"
    fields = engines.load_recipe(recipe)
    made = engines.Request(**fields)
    assert made.profiles == (profiles.parse("1x1:1x128:1x128"), profiles.parse("1x16:32x128:64x256"))
    assert made.out == Path("engines/bert-base-fp16.plan")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("batchsize = 3", "there is no 'batchsize' in a recipe"),
        ("batch_size = '3'", "batch_size = '3' is no int"),
        ("profiles = ['3x4']", "--profile 3x4"),
        ("model = ", "cannot be read as a recipe"),
        ("random_weights = 1", "random_weights = 1 is no bool"),
    ],
)
def test_a_bad_recipe_is_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "r.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=says):
        engines.load_recipe(file)
    with pytest.raises(UsageError, match="cannot be read"):
        engines.load_recipe(tmp_path / "none.toml")
