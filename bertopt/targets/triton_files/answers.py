"""Triton's Python back end: logits -> what the model's head means by them."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from bertopt.heads import interpret


class TritonPythonModel:
    def initialize(self, args):
        home = Path(args["model_repository"], args["model_version"])
        self.settings = json.loads((home / "settings.json").read_text(encoding="utf-8"))
        self.input = json.loads(args["model_config"])["input"][0]["name"]

    def execute(self, requests):
        """One response a request; one whose logits are NaN fails alone."""
        responses = []
        for request in requests:
            logits = pb_utils.get_input_tensor_by_name(request, self.input).as_numpy().astype(np.float32)
            try:
                responses.append(pb_utils.InferenceResponse(output_tensors=self.answers(logits)))
            except Exception as error:
                responses.append(pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(error))))
        return responses

    def answers(self, logits):
        task, labels = self.settings["task"], self.settings["labels"]
        found = interpret(task, labels, logits, np.zeros(len(logits), np.int64), None)
        if task in ("embedding", "regression"):
            return [pb_utils.Tensor("EMBEDDING" if task == "embedding" else "VALUE", logits)]
        names = [answer.label if answer.labels is None else ", ".join(answer.labels) for answer in found]
        scores = np.array([list(answer.scores.values()) for answer in found], np.float32)
        label = np.array([[name.encode("utf-8")] for name in names], np.object_)
        return [pb_utils.Tensor("LABEL", label), pb_utils.Tensor("SCORES", scores)]
