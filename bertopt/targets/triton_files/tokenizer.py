"""Triton's Python back end: TEXT and TEXT_PAIR -> the model's inputs, by the tokenizer that was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from bertopt.backends.host import padded_arrays
from bertopt.batching import Batch, Padded
from bertopt.tokenization import load_tokenizer


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        home = Path(args["model_repository"], args["model_version"])
        self.settings = json.loads((home / "settings.json").read_text(encoding="utf-8"))
        self.tokenizer = load_tokenizer(
            home / "tokenizer", max_length=self.settings["max_length"], model_type=self.settings["model_type"]
        )
        outputs = json.loads(args["model_config"])["output"]
        self.types = {o["name"]: pb_utils.triton_string_to_numpy(o["data_type"]) for o in outputs}

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response a request; a request that cannot be read fails alone."""
        responses = []
        for request in requests:
            try:
                tensors = self.encode(_texts(request, "TEXT"), _texts(request, "TEXT_PAIR"))
                responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
            except Exception as error:  # its message may hold the text
                said = pb_utils.TritonError(f"the texts cannot be tokenized ({type(error).__name__})")
                responses.append(pb_utils.InferenceResponse(output_tensors=[], error=said))
        return responses

    def encode(self, texts: Any, pairs: Any) -> list[Any]:
        tokens = self.tokenizer.encode(texts, pairs)
        length = next(edge for edge in sorted(self.settings["edges"]) if edge >= tokens.lengths.max())
        batch = Batch(np.arange(len(tokens)), tokens, Padded(len(tokens), length))
        arrays = padded_arrays(batch, "token_type_ids" in self.types, self.settings["pad_id"])
        return [pb_utils.Tensor(name, arrays[name].astype(kind)) for name, kind in self.types.items()]


def _texts(request: Any, name: str) -> list[str] | None:
    """The strings of an input; None where the request has it not."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else [value.decode("utf-8") for value in tensor.as_numpy().reshape(-1)]
