"""A plan that was built before, whatever library it is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bertopt.backends.base import Artifact, Backend, Options, Session, backend
from bertopt.errors import PlanError
from bertopt.plan import Plan
from bertopt.workspace import Workspace

LIBRARIES = {"OpenVINO": "openvino", "TensorRT": "tensorrt"}


@dataclass
class Built:
    """A workspace's plan."""

    plan: Plan

    @property
    def backend(self) -> Backend:
        library = self.plan.manifest.library
        if library not in LIBRARIES:
            raise PlanError(f"{self.plan.path} is a plan of {library}, which bertopt builds and does not run")
        return backend(LIBRARIES[library])


class PlanWorkspace(Workspace):
    """A workspace in which the plan is given."""

    def __init__(self, checkpoint: Any, plan: Plan, device: str) -> None:
        super().__init__(checkpoint, device=device)
        self.built = Built(plan)


def available(device: str) -> str | None:
    return None  # which library it wants is known when the plan is


def prepare(workspace: PlanWorkspace, precision: str) -> Artifact:
    """Raises BackendUnavailable where the plan's library is missing, PlanError where the plan does not fit the model."""
    from bertopt.errors import BackendUnavailable

    plan = workspace.built.plan
    reason = workspace.built.backend.available(workspace.device)
    if reason is not None:
        raise BackendUnavailable(reason)
    wanted = plan.manifest.model_fingerprint
    if wanted is not None and wanted != workspace.checkpoint.fingerprint:
        raise PlanError(f"{plan.path} was built from model {wanted}, and --model is {workspace.checkpoint.fingerprint}")
    return Artifact(plan, plan.manifest.precision, workspace.checkpoint.uses_type_ids, {"plan": plan.path.name})


def open(artifact: Artifact, options: Options) -> Session:
    return Built(artifact.content).backend.open(artifact, options)
