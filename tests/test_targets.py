"""Bundles for other engines: files that Triton's own definitions read, and back ends that answer as the model does."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType

import numpy as np
import pytest

import bertopt
from bertopt.cli import run as cli
from bertopt.errors import UsageError
from bertopt.exporting import Wanted
from bertopt.targets import export_target
from tests.runs import run_of, texts


@pytest.fixture(scope="module")
def run(checkpoint_folder, tmp_path_factory):
    return run_of(checkpoint_folder("bert"), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def repository(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("triton") / "repository"
    lines = export_target("triton", Wanted(run, out))
    assert any("no Triton server was started" in line for line in lines)
    return out


class Tensor:
    def __init__(self, name, values):
        self.name, self.values = name, values

    def as_numpy(self):
        return self.values


class Response:
    def __init__(self, output_tensors, error=None):
        self.tensors, self.error = {t.name: t.as_numpy() for t in output_tensors}, error


def harness():
    """What Triton gives to its Python back ends, as its documentation has it."""
    module = ModuleType("triton_python_backend_utils")
    kinds = {"TYPE_INT64": np.int64, "TYPE_INT32": np.int32, "TYPE_FP32": np.float32}
    module.triton_string_to_numpy = kinds.__getitem__
    module.Tensor, module.InferenceResponse, module.TritonError = Tensor, Response, RuntimeError
    module.get_input_tensor_by_name = lambda request, name: request.get(name)
    return module


def load(repository, name, monkeypatch):
    """A Python back end of the repository, initialized as Triton would."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", harness())
    spec = importlib.util.spec_from_file_location(name, repository / name / "1/model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model, c = module.TritonPythonModel(), config(repository, name)
    described = {
        "input": [{"name": i.name, "data_type": "TYPE_FP32"} for i in c.input],
        "output": [{"name": o.name, "data_type": data_type(o)} for o in c.output],
    }
    model.initialize({"model_repository": str(repository / name), "model_version": "1", "model_config": json.dumps(described)})
    return model


def config(repository, name):
    pb = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="pip install 'bertopt[triton]'")
    from google.protobuf import text_format

    return text_format.Parse((repository / name / "config.pbtxt").read_text(), pb.ModelConfig())


def data_type(tensor):
    from tritonclient.grpc.model_config_pb2 import DataType

    return DataType.Name(tensor.data_type)


def strings(rows):
    return np.array([[row.encode()] for row in rows], np.object_)


def names(repository):
    return {p.name.rpartition("_")[2] if p.name.count("_") else "": p.name for p in repository.iterdir()}


def test_tritons_own_definitions_read_every_configuration(repository):
    by_role = names(repository)
    ensemble, model = config(repository, by_role[""]), config(repository, by_role["model"])
    assert ensemble.platform == "ensemble"
    assert [s.model_name for s in ensemble.ensemble_scheduling.step] == [by_role[r] for r in ("tokenizer", "model", "answers")]
    assert (model.backend, model.max_batch_size, model.default_model_filename) == ("onnxruntime", 4, "model.onnx")
    assert list(model.dynamic_batching.preferred_batch_size) == [2, 4]
    assert (repository / by_role["model"] / "1/model.onnx").is_file()
    for name in by_role.values():
        assert config(repository, name).name == name
        assert (repository / name / "1").is_dir()


def test_every_tensor_of_a_step_is_given_by_the_one_before(repository):
    by_role = names(repository)
    ensemble = config(repository, by_role[""])
    kinds = {tensor.name: tensor.data_type for tensor in ensemble.input}
    for step in ensemble.ensemble_scheduling.step:
        own = config(repository, step.model_name)
        takes, gives = {t.name: t for t in own.input}, {t.name: t for t in own.output}
        assert set(step.input_map) == set(takes)
        assert set(step.output_map) == set(gives)
        for name, tensor in step.input_map.items():
            assert kinds[tensor] == takes[name].data_type
        kinds |= {tensor: gives[name].data_type for name, tensor in step.output_map.items()}
    assert {t.name for t in ensemble.output} <= set(kinds)


def test_the_ensemble_under_a_harness_answers_as_predict(repository, run, tmp_path, monkeypatch):
    """Tokenizer back end, the graph in ONNX Runtime, answers back end: three requests, one of them with pairs."""
    import onnxruntime

    assert cli(["export", str(run), "--out", str(tmp_path / "bundle")]) == 0
    by_role, rows = names(repository), texts(9)
    tokenizer, answers = (load(repository, by_role[role], monkeypatch) for role in ("tokenizer", "answers"))
    session = onnxruntime.InferenceSession(repository / by_role["model"] / "1/model.onnx")
    groups, pairs = [rows[:1], rows[1:5], rows[5:]], [None, None, ["good", "", "bad film", "the news"]]
    requests = [{"TEXT": Tensor("TEXT", strings(group))} for group in groups]
    requests[2]["TEXT_PAIR"] = Tensor("TEXT_PAIR", strings(pairs[2]))
    tokenized = tokenizer.execute(requests)
    assert {response.tensors["input_ids"].shape[1] for response in tokenized} <= {8, 16, 32}
    logits = [session.run(None, response.tensors)[0] for response in tokenized]
    found = answers.execute([{answers.input: Tensor("logits", array)} for array in logits])
    with bertopt.load(tmp_path / "bundle") as model:
        expected = [model.predict(group, pair) for group, pair in zip(groups, pairs, strict=True)]
    for response, right in zip(found, expected, strict=True):
        assert [label.decode() for label in response.tensors["LABEL"][:, 0]] == [a.label for a in right]
        np.testing.assert_allclose(response.tensors["SCORES"], [list(a.scores.values()) for a in right], atol=1e-5)


def test_a_request_that_cannot_be_read_fails_alone(repository, monkeypatch):
    by_role = names(repository)
    tokenizer, answers = (load(repository, by_role[role], monkeypatch) for role in ("tokenizer", "answers"))
    good, bad = {"TEXT": Tensor("TEXT", strings(["good"]))}, {"TEXT": Tensor("TEXT", np.array([[b"\xff"]], np.object_))}
    found = tokenizer.execute([good, bad, good])
    assert [response.error is None for response in found] == [True, False, True]
    nan = {answers.input: Tensor("logits", np.array([[np.nan, 1.0]], np.float32))}
    assert "NaN" in str(answers.execute([nan])[0].error)


def test_what_an_engine_cannot_take_is_refused(run, tmp_path):
    with pytest.raises(UsageError, match="PyTorch weights"):
        export_target("triton", Wanted(run, tmp_path / "out", "baseline"))
    assert not (tmp_path / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("")
    with pytest.raises(UsageError, match="not an empty folder"):
        export_target("ray", Wanted(run, tmp_path / "full"))


def test_an_application_for_ray_is_whole(run, tmp_path, capsys):
    yaml = pytest.importorskip("yaml")
    assert cli(["export", str(run), "--out", str(tmp_path / "app"), "--target", "ray"]) == 0
    assert "serve run app:app" in capsys.readouterr().out
    config = yaml.safe_load((tmp_path / "app/serve.yaml").read_text())
    assert config["applications"][0]["deployments"][0]["autoscaling_config"]["max_replicas"] == 8
    with bertopt.load(tmp_path / "app/bundle") as model:
        assert len(model.predict(["good"])) == 1
