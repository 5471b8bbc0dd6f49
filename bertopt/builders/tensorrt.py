"""TensorRT and TensorRT for RTX: from a typed graph to a serialized engine."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from bertopt.builders import versions
from bertopt.builders.process import Built, Job, Report
from bertopt.builders.versions import TENSORRT_8, TENSORRT_RTX, Dialect
from bertopt.errors import BackendUnavailable, GraphError, WorkerError
from bertopt.plan import Plan
from bertopt.profiles import parse

PRECISIONS = {"half": "fp16", "fp16": "fp16", "float": "fp32", "fp32": "fp32", "int8": "int8", "bf16": "bf16", "fp8": "fp8"}


def unavailable(target: str) -> str | None:
    """Why a "tensorrt" or "tensorrt-rtx" plan cannot be built here; None when it can."""
    rtx = target == "tensorrt-rtx"
    library = TENSORRT_RTX.library if rtx else TENSORRT_8.library
    if versions.installed(library) is None:
        return f"{library} is not installed: {'pip install tensorrt-rtx-cu13' if rtx else versions.INSTALL}"
    if not rtx:
        from bertopt.backends.driver import device

        if device() is None:
            return "TensorRT builds on the card that will run the plan, and this machine has no CUDA device"
    return None


def row(target: str) -> Dialect:
    """What is installed of "tensorrt" or "tensorrt-rtx". Raises BackendUnavailable."""
    library = TENSORRT_RTX.library if target == "tensorrt-rtx" else TENSORRT_8.library
    version = versions.installed(library)
    if version is None:
        raise BackendUnavailable(str(unavailable(target)))
    return versions.dialect(library, version)


def build(job: Job, report: Report) -> Built:
    """Parse, configure, build, write, inspect. Raises GraphError for a graph that the parser refuses."""
    chosen = row("tensorrt-rtx" if job.target == "tensorrt-rtx" else "tensorrt")
    trt = versions.load(chosen)
    log = make_log(trt)
    builder = trt.Builder(log)
    report("parsing")
    network = parse_network(trt, chosen, builder, job, log)
    config = configure(trt, chosen, builder, network, job)
    _watch(trt, config, report)
    report("choosing kernels")
    serialized = builder.build_serialized_network(network, config)
    if serialized is None:
        raise WorkerError(f"{chosen.library} could not build {job.onnx}: {log.last() or 'it gave no reason'}")
    Path(job.out).write_bytes(serialized)
    if job.timing_cache and chosen.timing_cache:
        Path(job.timing_cache).write_bytes(config.get_timing_cache().serialize())
    inputs, outputs = bindings(network)
    layers: Counter[str] = Counter()
    notes = []
    if chosen.needs_gpu:
        report("inspecting")
        layers = inspect(trt, log, serialized, job.layers)
        if job.precision == "int8" and not layers["int8"]:
            if not layers["not told"]:
                raise GraphError(f"INT8 was asked for and not applied: no layer of {job.out} runs in INT8")
            notes.append("TensorRT does not tell the precision of a graph of dynamic shapes; the gate judges its answers")
    else:
        notes.append(f"not inspected: {chosen.library} chooses its kernels where the plan is loaded")
    return Built(job.precision, inputs, outputs, dict(layers), notes + log.warnings())


def open_session(plan: Plan, pad_id: int) -> Any:
    """The plan on this machine, to judge its answers."""
    from bertopt.backends.base import Options
    from bertopt.backends.tensorrt import TensorRtSession

    return TensorRtSession(plan, Options(device="cuda", pad_id=pad_id))


def make_log(trt: Any) -> Any:
    """A logger that keeps warnings and errors, each once, instead of printing them."""

    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.kept: dict[str, Any] = {}

        def log(self, severity: Any, text: str) -> None:
            if int(severity) <= int(trt.ILogger.Severity.WARNING):
                self.kept.setdefault(text.strip(), severity)

        def last(self) -> str | None:
            errors = [t for t, severity in self.kept.items() if int(severity) <= int(trt.ILogger.Severity.ERROR)]
            return errors[-1] if errors else None

        def warnings(self) -> list[str]:
            return [f"{trt.__name__}: {text}" for text in self.kept if "Int64 binding" not in text][:5]

    return Log()


def parse_network(trt: Any, chosen: Dialect, builder: Any, job: Job, log: Any) -> Any:
    """The network, with what weak typing would lose told to it again."""
    network = builder.create_network(versions.flags(trt.NetworkDefinitionCreationFlag, chosen.network_flags))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(job.onnx):
        reasons = "; ".join(str(parser.get_error(i)) for i in range(parser.num_errors))
        raise GraphError(f"{chosen.library} cannot parse {job.onnx}: {reasons}")
    if chosen.obey_flags:
        wanted = set(job.fp32_nodes)
        for layer in (network.get_layer(i) for i in range(network.num_layers)):
            if layer.name in wanted:
                layer.precision = trt.DataType.FLOAT
                for index in range(layer.num_outputs):
                    if layer.get_output_type(index) in (trt.DataType.FLOAT, trt.DataType.HALF):
                        layer.set_output_type(index, trt.DataType.FLOAT)
    return network


def configure(trt: Any, chosen: Dialect, builder: Any, network: Any, job: Job) -> Any:
    """The builder's configuration: flags, profiles, tactic sources, timing cache."""
    config = builder.create_builder_config()
    if job.precision != "fp32":
        names = chosen.half_flags + (chosen.obey_flags if job.fp32_nodes else ())
        for name in names + (chosen.int8_flags if job.precision == "int8" else ()):
            config.set_flag(getattr(trt.BuilderFlag, name))
    config.clear_flag(trt.BuilderFlag.TF32)  # FP32 means FP32
    for name in chosen.preview:
        config.set_preview_feature(getattr(trt.PreviewFeature, name), True)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if job.tactics == "internal":
        config.set_tactic_sources(0)
    if job.timing_cache and chosen.timing_cache:
        file = Path(job.timing_cache)
        config.set_timing_cache(config.create_timing_cache(file.read_bytes() if file.exists() else b""), False)
    for text in job.profiles:
        profile, shapes = builder.create_optimization_profile(), parse(text)
        for index in range(network.num_inputs):
            profile.set_shape(network.get_input(index).name, shapes.min, shapes.opt, shapes.max)
        if config.add_optimization_profile(profile) < 0:
            raise GraphError(f"{chosen.library} refuses the profile {text}")
    return config


def bindings(network: Any) -> tuple[dict[str, str], dict[str, str]]:
    """Inputs and outputs of a network, name -> type."""
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    return ({t.name: t.dtype.name.lower() for t in inputs}, {t.name: t.dtype.name.lower() for t in outputs})


def inspect(trt: Any, log: Any, serialized: Any, path: str | None) -> Counter[str]:
    """Number of layers by the precision of what they write; the inspector's whole report goes to `path`."""
    engine = trt.Runtime(log).deserialize_cuda_engine(serialized)
    if engine is None:
        raise WorkerError(f"TensorRT cannot load what it built: {log.last() or 'it gave no reason'}")
    text = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    if path:
        Path(path).write_text(text, encoding="utf-8")
    return count_layers(text)


def count_layers(report: str) -> Counter[str]:
    """Layers of an inspector's JSON by the lowest precision that they write, "other" integers and shapes.

    "not told" is what was built without detailed verbosity, and a graph that became one layer of dynamic shapes.
    A product of INT8 inputs may write FP16, so what computes counts by what it reads as well.
    """
    counts: Counter[str] = Counter()
    for entry in json.loads(report)["Layers"]:
        if isinstance(entry, str):  # a plan that was built without detailed verbosity names its layers only
            counts["not told"] += 1
            continue
        found = _precisions(entry, "Outputs")
        if entry.get("LayerType") != "Reformat":
            found |= _precisions(entry, "Inputs") & {"int8", "fp8"}
        told = next((p for p in ("fp8", "int8", "fp16", "bf16", "fp32") if p in found), "other")
        counts["not told" if told == "other" and _untold(entry) else told] += 1
    return counts


def _untold(entry: dict[str, Any]) -> bool:
    """Whether a layer that computes has types which the inspector does not name."""
    tensors = [*entry.get("Inputs", []), *entry.get("Outputs", [])]
    return entry.get("LayerType") != "Reformat" and any(str(t.get("Format/Datatype")).startswith("N/A") for t in tensors)


def _precisions(entry: dict[str, Any], side: str) -> set[str]:
    words = " ".join(str(o.get("Format/Datatype", "")) for o in entry.get(side, [])).lower().replace("/", " ").split()
    return {PRECISIONS[word] for word in words if word in PRECISIONS}


def equivalent(job: Job, onnx: str, out: str, inputs: list[str]) -> str:
    """The command of NVIDIA's own tool that builds the same plan from the emitted graph."""
    tool = "tensorrt_rtx" if job.target == "tensorrt-rtx" else "trtexec"
    options = [f"--onnx={onnx}", f"--saveEngine={out}"]
    for index, text in enumerate(job.profiles):
        shapes = parse(text)
        options += [f"--profile={index}"] * (len(job.profiles) > 1)
        for name, shape in (("min", shapes.min), ("opt", shapes.opt), ("max", shapes.max)):
            options.append(f"--{name}Shapes=" + ",".join(f"{i}:{shape[0]}x{shape[1]}" for i in inputs))
    if job.target == "tensorrt-8":
        options += ["--fp16"] * (job.precision != "fp32") + ["--int8"] * (job.precision == "int8")
        options.append("--preview=+profileSharing0806")
        options += ["--precisionConstraints=obey", "--layerPrecisions=" + ",".join(f"{n}:fp32" for n in job.fp32_nodes)] * bool(
            job.fp32_nodes
        )
    elif job.target == "tensorrt-10":
        options.append("--stronglyTyped")
    if job.tactics == "internal":
        options.append("--tacticSources=-CUBLAS,-CUBLAS_LT,-CUDNN")
    return " ".join([tool, *options, "--noTF32", "--profilingVerbosity=detailed"])


def _watch(trt: Any, config: Any, report: Report) -> None:
    """Phases of the build, where the library tells them (10 and newer)."""
    if not hasattr(trt, "IProgressMonitor"):
        return

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            report(name.lower())

        def phase_finish(self, name: str) -> None:
            return None

        def step_complete(self, name: str, step: int) -> bool:
            return True  # go on: it is the parent that answers Ctrl-C

    config.progress_monitor = Monitor()
