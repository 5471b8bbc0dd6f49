"""OpenVINO on the CPU: the graph, compiled once and exported, so that it opens in a third of the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertopt.backends.base import Options
from bertopt.builders import versions
from bertopt.builders.process import Built, Job, Report
from bertopt.errors import BackendUnavailable, GraphError
from bertopt.plan import Plan


def unavailable(target: str) -> str | None:
    """Why an "openvino" plan cannot be built here; None when it can."""
    if versions.installed("OpenVINO") is None:
        return "OpenVINO is not installed: pip install 'bertopt[cpu]'"
    return None


def build(job: Job, report: Report) -> Built:
    """Compile with the precision as a hint, and export what was compiled. Any shape fits it, so it has no profiles.

    Raises BackendUnavailable where the processor computes in no lower precision, GraphError where OpenVINO refuses the graph
    or does not run its INT8.
    """
    import openvino as ov

    from bertopt.backends.openvino import PRECISIONS, around_int8, check_int8, half_precision, properties

    precision = {"fp32": "fp32", "int8": around_int8()}.get(job.precision) or half_precision()
    if precision is None:
        raise BackendUnavailable("this processor computes in neither BF16 nor FP16, so a lowered plan would gain nothing")
    report("compiling")
    try:
        hints = {**properties(precision), "PERFORMANCE_HINT": "LATENCY"}
        model = ov.Core().compile_model(job.onnx, "CPU", hints)
    except RuntimeError as error:
        raise GraphError(f"OpenVINO refuses {job.onnx}: {str(error).strip().splitlines()[-1]}") from None
    int8 = check_int8(model, job.quantized) if job.precision == "int8" else 0
    report("exporting")
    Path(job.out).write_bytes(model.export_model().getvalue())
    ran = PRECISIONS[model.get_property("INFERENCE_PRECISION_HINT").get_type_name()]
    inputs = {port.get_any_name(): port.get_element_type().get_type_name() for port in model.inputs}
    outputs = {port.get_any_name(): port.get_element_type().get_type_name() for port in model.outputs}
    if not int8:
        return Built(ran, inputs, outputs)
    return Built("int8", inputs, outputs, {"int8": int8}, [f"{ran} around INT8"])


def open_session(plan: Plan, pad_id: int) -> Any:
    """The plan on this machine, to judge its answers."""
    from bertopt.backends.openvino_plan import OpenVinoPlanSession

    return OpenVinoPlanSession(plan, Options(pad_id=pad_id))
