"""A Triton model repository: tokenizer, model and answers as an ensemble.

    NAME/                 the ensemble: TEXT, and TEXT_PAIR for pairs -> the answers
    NAME_tokenizer/       Python back end: texts -> ids, padded to the bucket edge of the longest text of its request
    NAME_model/           ONNX Runtime or TensorRT, with dynamic batching
    NAME_answers/         Python back end: logits -> labels and scores

Triton's dynamic batcher joins requests whose shapes are equal. Since every request is padded to an edge, the edges are the
buckets: what shares a batch is of like length, as in the ladder.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertopt import plan as plans
from bertopt.bundle import TOKENIZER, Bundle
from bertopt.errors import UsageError
from bertopt.files import write_text

CODE = Path(__file__).parent / "triton_files"
QUEUE_US = 5000  # as long as `bertopt serve` waits for a fuller batch
TYPES = {"int32": "TYPE_INT32", "int64": "TYPE_INT64", "float16": "TYPE_FP16", "float32": "TYPE_FP32"}


class Word(str):
    """A value that protobuf's text form writes without quotes: an enumerator."""


def write(bundle: Bundle, out: Path) -> list[str]:
    """The repository of a bundle in the folder `out`. Raises UsageError for a back end that Triton has not."""
    m = bundle.manifest
    if m.kind == "checkpoint":
        raise UsageError(
            f"the rung {m.rung} runs PyTorch weights, and Triton's repository wants a graph or a plan: --rung onnx"
        )
    name = re.sub(r"[^A-Za-z0-9_]+", "_", m.name).strip("_") or "model"
    inputs, output = _bindings(bundle)
    kind = Word("KIND_GPU" if m.device == "cuda" else "KIND_CPU")
    edges = m.bucket_edges or [m.max_length]
    settings = {
        "max_length": m.max_length,
        "model_type": m.model_type,
        "edges": edges,
        "pad_id": m.pad_id,
        "task": m.task,
        "labels": m.labels,
    }
    tensors = [{"name": n, "data_type": Word(t), "dims": [-1]} for n, t in inputs.items()]
    logits = {"name": output[0], "data_type": Word(output[1]), "dims": [m.outputs]}
    text = [{"name": "TEXT", "data_type": Word("TYPE_STRING"), "dims": [1]}]
    pair = [{"name": "TEXT_PAIR", "data_type": Word("TYPE_STRING"), "dims": [1], "optional": True}]
    group = [{"count": 1, "kind": Word("KIND_CPU")}]
    tokenizer = {"backend": "python", "max_batch_size": m.batch_size, "input": text + pair, "output": tensors}
    _model(out, f"{name}_tokenizer", tokenizer | {"instance_group": group}, "tokenizer.py", settings)
    shutil.copytree(bundle.folder / TOKENIZER, out / f"{name}_tokenizer/1/tokenizer")
    found = _answers(m)
    answers = {"backend": "python", "max_batch_size": m.batch_size, "input": [logits], "output": found, "instance_group": group}
    _model(out, f"{name}_answers", answers, "answers.py", settings)

    model: dict[str, Any] = {"max_batch_size": m.batch_size, "input": tensors, "output": [logits]}
    model |= {"dynamic_batching": {"preferred_batch_size": _preferred(m.batch_size), "max_queue_delay_microseconds": QUEUE_US}}
    model |= {"instance_group": [{"count": 1, "kind": kind}]}
    notes = []
    if m.kind == "plan" and m.device == "cuda":
        model |= {"platform": "tensorrt_plan", "default_model_filename": "model.plan"}
    else:
        model |= {"backend": "onnxruntime", "default_model_filename": "model.onnx"}
        if m.backend == "openvino":
            cpu = [{"name": "openvino"}]
            model |= {"optimization": {"execution_accelerators": {"cpu_execution_accelerator": cpu}}}
            notes.append(f"OpenVINO runs inside ONNX Runtime there; whether in {m.precision} as measured, its log says")
    _config(out, f"{name}_model", model)
    (out / f"{name}_model/1").mkdir()
    for file in bundle.folder.glob("model.*"):
        shutil.copyfile(file, out / f"{name}_model/1" / file.name)
    steps = [
        _step(f"{name}_tokenizer", ["TEXT", "TEXT_PAIR"], list(inputs)),
        _step(f"{name}_model", list(inputs), [output[0]]),
        _step(f"{name}_answers", [output[0]], [o["name"] for o in found]),
    ]
    ensemble = {"platform": "ensemble", "max_batch_size": m.batch_size, "input": text + pair, "output": found}
    _config(out, name, ensemble | {"ensemble_scheduling": {"step": steps}})
    (out / name / "1").mkdir()
    return [
        f"Triton model repository of {m.name}, rung {m.rung}: ensemble {name}, with {name}_tokenizer, _model and _answers",
        f"dynamic batching up to {m.batch_size} rows, padded to {', '.join(map(str, edges))} tokens",
        "its Python back ends want bertopt in Triton's image: pip install bertopt",
        "not run here: no Triton server was started",
        *notes,
    ]


def _preferred(batch_size: int) -> list[int]:
    """Half and whole batches: what arrives together within the delay."""
    return sorted({max(1, batch_size // 2), batch_size})


def _answers(manifest: Any) -> list[dict[str, Any]]:
    """Outputs of the ensemble by task, as `bertopt.heads` means them."""
    score = {"name": "SCORES", "data_type": Word("TYPE_FP32"), "dims": [manifest.outputs]}
    if manifest.task == "embedding":
        return [score | {"name": "EMBEDDING"}]
    if manifest.task == "regression":
        return [score | {"name": "VALUE"}]
    return [{"name": "LABEL", "data_type": Word("TYPE_STRING"), "dims": [1]}, score]


def _bindings(bundle: Bundle) -> tuple[dict[str, str], tuple[str, str]]:
    """Triton's types of the model's inputs by name, and its output's name and type."""
    m, path = bundle.manifest, bundle.folder / bundle.manifest.artifact
    if m.kind == "plan":
        manifest = plans.read_manifest(path)
        if m.device != "cuda":
            raise UsageError(f"Triton loads no {manifest.library} plan: export a run, whose graph it takes")
        return {n: TYPES[t] for n, t in manifest.inputs.items()}, next((n, TYPES[t]) for n, t in manifest.outputs.items())
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    names = {onnx.TensorProto.INT64: "int64", onnx.TensorProto.INT32: "int32", onnx.TensorProto.FLOAT: "float32"}
    names |= {onnx.TensorProto.FLOAT16: "float16"}

    def kind(value: Any) -> str:
        return TYPES[names[value.type.tensor_type.elem_type]]

    return {v.name: kind(v) for v in graph.input if v.name not in weights}, (graph.output[0].name, kind(graph.output[0]))


def _model(out: Path, name: str, config: dict[str, Any], code: str, settings: dict[str, Any]) -> None:
    """A Python back end: its configuration, its code and what that reads."""
    _config(out, name, config)
    (out / name / "1").mkdir()
    shutil.copyfile(CODE / code, out / name / "1/model.py")
    write_text(out / name / "1/settings.json", json.dumps(settings, indent=1, ensure_ascii=False) + "\n")


def _config(out: Path, name: str, config: dict[str, Any]) -> None:
    write_text(out / name / "config.pbtxt", "\n".join(_lines({"name": name} | config)) + "\n")


def _step(name: str, takes: list[str], gives: list[str]) -> dict[str, Any]:
    return {
        "model_name": name,
        "model_version": -1,
        "input_map": [{"key": n, "value": n} for n in takes],
        "output_map": [{"key": n, "value": n} for n in gives],
    }


def _lines(message: dict[str, Any], indent: str = "") -> Iterable[str]:
    """A message in protobuf's text form; lists of messages are repeated fields."""
    for field, value in message.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield f"{indent}{field} {{"
                yield from _lines(one, indent + "  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{field}: {_scalar(one)}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, str) and not isinstance(value, Word) else str(value)
