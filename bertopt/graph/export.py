"""Checkpoint -> the canonical ONNX graph that every rewrite starts from, checked before anybody builds on it.

Inputs `input_ids`, `attention_mask` and, where the model uses them, `token_type_ids`, all int64 [batch, seq]; output
`logits` in float32. TorchScript's exporter is chosen by name: its graphs are flat, with operators that TensorRT 8.6,
OpenVINO and ONNX Runtime's fusion all know.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from bertopt.errors import BackendUnavailable, GraphError
from bertopt.graph import parity, storage
from bertopt.model import Checkpoint
from bertopt.records import Parity
from bertopt.weights import first_line

if TYPE_CHECKING:
    from torch import nn

TRACED = (2, 11)  # rows and length; an exporter may take a dimension of 1 for a constant
PER_TOKEN = {"token_classification", "question_answering"}
HALF_MAX = 65504.0  # largest float16


@dataclass(frozen=True)
class ExportReport:
    """What was exported and what was checked."""

    path: Path
    files: list[Path]  # the graph, and the weights beside it where they are apart
    sha256: str  # over all of them
    exporter: str  # "TorchScript, torch 2.13.0"
    opset: int
    inputs: list[str]
    size_bytes: int
    weight_ratio: float  # bytes of the graph's weights over the module's: above 1, something is stored twice
    checked: list[Parity]
    beyond_half: dict[str, float]  # float constants that float16 cannot hold
    seconds: float
    notes: list[str] = field(default_factory=list)

    @property
    def relative_difference(self) -> float:
        """Largest of all checked shapes."""
        return max(p.relative_difference for p in self.checked)


def export(
    module: nn.Module,
    checkpoint: Checkpoint,
    path: Path,
    *,
    opset: int = 17,
    single_file_limit: int = storage.SINGLE_FILE_LIMIT,
) -> ExportReport:
    """Write the canonical graph of `module` (`Checkpoint.torch_module`) to `path`, and judge it against the module.

    Weights of more than `single_file_limit` bytes go into one file beside it, `<name>.data`, which the graph names by
    its relative path. Raises GraphError where the export fails, an axis is not symbolic, or parity is lost at any of
    several shapes; nothing is left at `path` then.
    """
    import torch

    started = time.perf_counter()
    what = f"the exported graph of {checkpoint.name}"
    model, notes = _trace(module, checkpoint, opset)
    tidy(model)
    _check_axes(model, checkpoint, what)
    inputs = [i.name for i in model.graph.input]
    weights = sum(len(t.raw_data) for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT)
    beyond_half = _beyond_half(model)
    with storage.published(path) as trial:
        storage.save(model, trial, single_file_limit=single_file_limit)
        try:
            onnx.checker.check_model(str(trial), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            raise GraphError(f"{what} is not valid ONNX: {first_line(error)}") from None
        checked = parity.check(reference(module), session(trial), checkpoint, what)
    files = storage.files(path)
    return ExportReport(
        path=path,
        files=files,
        sha256=storage.digest(path),
        exporter=f"TorchScript, torch {torch.__version__}",
        opset=opset,
        inputs=inputs,
        size_bytes=sum(f.stat().st_size for f in files),
        weight_ratio=weights / sum(p.numel() * p.element_size() for p in module.parameters()),
        checked=checked,
        beyond_half=beyond_half,
        seconds=time.perf_counter() - started,
        notes=notes,
    )


def input_names(checkpoint: Checkpoint) -> list[str]:
    """The graph's inputs, in its order."""
    return ["input_ids", "attention_mask"] + ["token_type_ids"] * checkpoint.uses_type_ids


def exporter_choice(torch_version: str) -> dict[str, Any]:
    """The argument that chooses TorchScript's exporter in this torch: the switch came with 2.5, the other default with 2.9.

    Raises GraphError for a torch before 2.0, whose exporter has no opset 17.
    """
    major, minor = (int(n) for n in re.findall(r"\d+", torch_version)[:2])
    if major < 2:
        raise GraphError(f"torch {torch_version} cannot export opset 17: torch 2.0 or newer is needed")
    return {"dynamo": False} if (major, minor) >= (2, 5) else {}


def _trace(module: nn.Module, checkpoint: Checkpoint, opset: int) -> tuple[onnx.ModelProto, list[str]]:
    """TorchScript's export of `module`, traced with padding and two segments, and notes."""
    import torch

    names = input_names(checkpoint)
    rows, length = TRACED
    feeds = parity.synthetic_feeds(checkpoint, rows, min(length, checkpoint.max_positions))
    axes = {name: {0: "batch", 1: "seq"} for name in names}
    axes["logits"] = {0: "batch", 1: "seq"} if checkpoint.task in PER_TOKEN else {0: "batch"}
    with (
        tempfile.TemporaryDirectory() as folder,
        _exporting(module),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        file = Path(folder, "traced.onnx")
        try:
            torch.onnx.export(
                module.eval(),  # of the wrapper: the exporter puts back the mode that it found there, all the way down
                tuple(torch.from_numpy(feeds[name]) for name in names),
                str(file),
                input_names=names,
                output_names=["logits"],
                dynamic_axes=axes,
                opset_version=opset,
                **exporter_choice(torch.__version__),
            )
        except (RuntimeError, TypeError, ValueError) as error:
            reason = first_line(error)
            raise GraphError(f"torch {torch.__version__} cannot export {checkpoint.architecture}: {reason}") from None
        model = onnx.load(file)
    messages = [str(warning.message) for warning in caught]
    for message in messages:
        if re.search(r"dynamic.?axes|not a valid (input|output)|name .* not found", message):
            raise GraphError(f"the exporter did not take the names or axes: {message.splitlines()[0]}")
    branches = sum("might cause the trace to be incorrect" in message for message in messages)
    return model, [f"tracing recorded {branches} Python branches; parity was checked away from the traced shape"] * (
        branches > 0
    )


@contextlib.contextmanager
def _exporting(module: Any) -> Iterator[None]:
    """Attention as plain operators while the block lasts, whatever the module computes with otherwise."""
    from bertopt.encoder import export_attention

    config = module.model.config
    before = config._attn_implementation
    config._attn_implementation = export_attention(config)
    try:
        yield
    finally:
        config._attn_implementation = before


def tidy(model: onnx.ModelProto) -> None:
    """Take Identity nodes out and store equal weights once, so that passes see each weight where it is used."""
    graph = model.graph
    outputs = {o.name for o in graph.output}
    renamed = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Identity" and n.output[0] not in outputs}
    seen: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    for i in reversed(range(len(graph.initializer))):
        tensor = graph.initializer[i]
        if tensor.raw_data:
            key = (tensor.data_type, tuple(tensor.dims), hashlib.sha256(tensor.raw_data).digest())
            if seen.setdefault(key, tensor.name) != tensor.name:
                renamed[tensor.name] = seen[key]
                del graph.initializer[i]
    for i in reversed(range(len(graph.node))):
        node = graph.node[i]
        if node.op_type == "Identity" and node.output[0] in renamed:
            del graph.node[i]
            continue
        for k, name in enumerate(node.input):
            while name in renamed:
                name = renamed[name]
            node.input[k] = name


def _check_axes(model: onnx.ModelProto, checkpoint: Checkpoint, what: str) -> None:
    """Every input is [batch, seq] by name, and the output starts with the same symbols and ends with the labels."""

    def shape(value: onnx.ValueInfoProto) -> list[str | int]:
        return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]

    found = {i.name: shape(i) for i in model.graph.input}
    wanted: dict[str, list[str | int]] = {name: ["batch", "seq"] for name in input_names(checkpoint)}
    if found != wanted:
        raise GraphError(f"{what} has inputs {found}, and they should be {wanted}")
    axes: list[str | int] = ["batch", "seq"] if checkpoint.task in PER_TOKEN else ["batch"]
    output = model.graph.output[0]
    if [o.name for o in model.graph.output] != ["logits"] or shape(output)[:-1] != axes:
        raise GraphError(f"{what} has outputs {[(o.name, shape(o)) for o in model.graph.output]}, not logits {axes}")
    last = output.type.tensor_type.shape.dim[-1]
    last.Clear()
    last.dim_value = checkpoint.outputs


def _beyond_half(model: onnx.ModelProto) -> dict[str, float]:
    """Float constants with a magnitude that float16 has not (EXP-06)."""
    constants = {t.name: t for t in model.graph.initializer}
    constants |= {n.output[0]: n.attribute[0].t for n in model.graph.node if n.op_type == "Constant"}
    largest: dict[str, float] = {}
    for name, tensor in constants.items():
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor)
            if values.size and np.abs(values).max() > HALF_MAX:
                largest[name] = float(values.flat[np.abs(values).argmax()])
    return largest


def reference(module: nn.Module) -> parity.Run:
    """The torch module as a function of named arrays."""
    import torch

    def run(feeds: parity.Feeds) -> NDArray[np.float32]:
        with torch.no_grad():
            return module(**{name: torch.from_numpy(array) for name, array in feeds.items()}).numpy()

    return run


def session(path: Path) -> parity.Run:
    """A graph on ONNX Runtime's CPU provider as a function of named arrays.

    Raises BackendUnavailable where ONNX Runtime is absent, and GraphError where it refuses the graph.
    """
    try:
        import onnxruntime as ort
    except ImportError:
        raise BackendUnavailable("graphs are checked with ONNX Runtime: pip install 'bertopt[cpu]'") from None
    from bertopt.measure.cores import usable_cores

    options = ort.SessionOptions()
    options.intra_op_num_threads = usable_cores()
    options.log_severity_level = 4  # what it would print arrives as an exception
    try:
        opened = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no base of their own
        raise GraphError(f"ONNX Runtime refuses {path.name}: {first_line(error)}") from None

    def run(feeds: parity.Feeds) -> NDArray[np.float32]:
        try:
            return opened.run(None, feeds)[0]
        except Exception as error:
            raise GraphError(first_line(error)) from None

    return run
