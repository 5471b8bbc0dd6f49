"""An OpenVINO plan: what was compiled once is imported, in a third of the time that compiling takes."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from bertopt.backends.base import Options
from bertopt.backends.host import Feeds, HostSession
from bertopt.backends.openvino import STREAMS, check_int8, infer, lengths_for, on_streams, properties
from bertopt.errors import PlanError
from bertopt.plan import Plan


class OpenVinoPlanSession(HostSession):
    """Raises PlanError where OpenVINO refuses the plan, GraphError where its INT8 does not run here."""

    def __init__(self, plan: Plan, options: Options) -> None:
        manifest, precision = plan.manifest, plan.manifest.precision
        lengths = lengths_for(precision, manifest.task, max(manifest.bucket_edges, default=0))
        super().__init__(options, "token_type_ids" in manifest.inputs, most_streams=STREAMS, lengths=lengths)
        import openvino as ov

        # Imported without the hint, a plan in FP32 computes partly in BF16, and answers NaN
        try:
            model = ov.Core().import_model(plan.read(), "CPU", {**properties(precision), **on_streams(self)})
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise PlanError(f"{plan.path} is refused by {plan.manifest.version}: {reason}") from None
        if precision == "int8":
            check_int8(model, plan.manifest.layers.get("int8", 1))
        self._model, self._requests = model, threading.local()
        self.precision = precision
        self.version = f"{plan.manifest.version}, {self.described_threads()}"

    def compute(self, feeds: Feeds) -> NDArray[np.float32]:
        return infer(self._model, self._requests, feeds)
