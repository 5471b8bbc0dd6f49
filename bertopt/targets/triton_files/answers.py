"""Triton's Python back end: logits -> what the model's head means by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from bertopt.heads import interpret


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        home = Path(args["model_repository"], args["model_version"])
        self.settings = json.loads((home / "settings.json").read_text(encoding="utf-8"))
        self.input = json.loads(args["model_config"])["input"][0]["name"]

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request; one whose logits are NaN fails alone."""
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, self.input).as_numpy().astype(np.float32)
            try:
                responses.append(pb_utils.InferenceResponse(output_tensors=self.answers(logits)))
            except Exception as error:
                responses.append(pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(error))))
        return responses

    def answers(self, logits: Any) -> list[Any]:
        task, labels = self.settings["task"], self.settings["labels"]
        found = interpret(task, labels, logits, np.zeros(len(logits), np.int64), None)
        if task in ("embedding", "regression"):
            return [pb_utils.Tensor("EMBEDDING" if task == "embedding" else "VALUE", logits)]
        names = [(answer.label or "") if answer.labels is None else ", ".join(answer.labels) for answer in found]
        scores = np.array([list((answer.scores or {}).values()) for answer in found], np.float32)
        label = np.array([[name.encode("utf-8")] for name in names], np.object_)
        return [pb_utils.Tensor("LABEL", label), pb_utils.Tensor("SCORES", scores)]
