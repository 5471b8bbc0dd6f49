"""What each peer of bertopt does between raw texts and labels; `peers_worker.py` has the table of them.

Other environments hold no bertopt, so only what serves bertopt's own rungs imports it.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Job:
    """What all peers are given. `source` and `data` are the user's own words for bertopt, which reads them itself."""

    source: str
    data: str | None
    folder: str  # of the checkpoint
    texts: list[str]
    batch_size: int
    length: int  # tokens at most, special ones included
    threads: int


class System:
    """A peer, loaded. `predict` goes from raw texts to class indices on the host; everything in it is timed."""

    compiles_shapes = True  # so its warm-up has to see them all; False: the first batch and the last one tell

    def __init__(self, job: Job, **choices: Any) -> None:
        self.job, self.choices = job, choices
        self.load()

    def load(self) -> None:
        raise NotImplementedError

    def predict(self, texts: list[str]) -> list[int]:
        raise NotImplementedError

    def warm_up(self) -> None:
        texts, size = self.job.texts, self.job.batch_size
        self.predict(texts if self.compiles_shapes else texts[: size + len(texts) % size])

    def timed(self) -> tuple[float, list[int]]:
        """Seconds and labels of one pass over all texts."""
        start = time.perf_counter()
        labels = self.predict(self.job.texts)
        return time.perf_counter() - start, labels

    def ran(self) -> str:
        """The precision that really runs, read back where the library says it."""
        return "fp32"

    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.job.folder)

    def model(self, dtype: str = "float32") -> Any:
        """transformers 5 would load half-precision weights as they are stored, and compute in that."""
        import torch
        from transformers import AutoModelForSequenceClassification

        torch.set_num_threads(self.job.threads)
        return AutoModelForSequenceClassification.from_pretrained(self.job.folder, dtype=getattr(torch, dtype)).eval()


class Pipeline(System):
    compiles_shapes = False

    def load(self) -> None:
        from transformers import pipeline

        self.pipeline = pipeline(
            "text-classification",
            model=self.model(),
            tokenizer=self.tokenizer(),
            device="cpu",
            batch_size=self.job.batch_size,
        )
        self.index = self.pipeline.model.config.label2id

    def predict(self, texts: list[str]) -> list[int]:
        return [self.index[found["label"]] for found in self.pipeline(texts, truncation=True, max_length=self.job.length)]


class Loop(System):
    """Batches in the order of arrival: tokenizer call, model call, argmax. What most services are."""

    tensors = "np"

    def load(self) -> None:
        self.tokenize = self.tokenizer()
        self.compiles_shapes = self.compiles_shapes and self.choices["padding"] != "max_length"
        self.start()

    def start(self) -> None:
        raise NotImplementedError

    def logits(self, encoded: Any) -> Any:
        raise NotImplementedError

    def predict(self, texts: list[str]) -> list[int]:
        labels: list[int] = []
        for batch in self.batches(texts):
            encoded = self.tokenize(
                batch,
                padding=self.choices["padding"],
                truncation=True,
                max_length=self.job.length,
                return_tensors=self.tensors,
            )
            labels += self.logits(encoded).argmax(-1).tolist()
        return labels

    def batches(self, texts: list[str]) -> Iterator[list[str]]:
        size = self.job.batch_size
        return (texts[start : start + size] for start in range(0, len(texts), size))


class Torch(Loop):
    tensors = "pt"
    compiles_shapes = False

    def start(self) -> None:
        self.module = self.model(self.choices.get("dtype", "float32"))

    def logits(self, encoded: Any) -> Any:
        import torch

        with torch.inference_mode():
            return self.module(**encoded).logits

    def ran(self) -> str:
        return {"float32": "fp32", "bfloat16": "bf16"}[str(self.module.dtype).removeprefix("torch.")]


class OnnxRuntime(Loop):
    def start(self) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.job.threads
        self.session = onnxruntime.InferenceSession(exported(self), options, providers=["CPUExecutionProvider"])
        self.inputs = [entry.name for entry in self.session.get_inputs()]

    def logits(self, encoded: Any) -> Any:
        return self.session.run(None, {name: encoded[name] for name in self.inputs})[0]


class OpenVino(Loop):
    """From transformers' module by OpenVINO's own converter, or from the same file as ONNX Runtime."""

    def start(self) -> None:
        import openvino

        hint = {"INFERENCE_PRECISION_HINT": self.choices["hint"]} if "hint" in self.choices else {}
        settings = {"INFERENCE_NUM_THREADS": self.job.threads, **hint}
        core = openvino.Core()
        model = core.read_model(exported(self), b"") if self.choices["source"] == "onnx" else converted(self)
        self.compiled = core.compile_model(model, "CPU", settings)
        self.inputs = [entry.any_name for entry in self.compiled.inputs]

    def logits(self, encoded: Any) -> Any:
        return self.compiled({name: encoded[name] for name in self.inputs})[0]

    def ran(self) -> str:
        return precision_of(self.compiled)


class SortedOpenVino(OpenVino):
    """All texts tokenized at once, sorted by their number of tokens, and batched: the least padding that there can be."""

    def predict(self, texts: list[str]) -> list[int]:
        encoded = self.tokenize(texts, truncation=True, max_length=self.job.length)
        order = sorted(range(len(texts)), key=lambda row: -len(encoded["input_ids"][row]))
        labels = np.empty(len(texts), np.int64)
        for start in range(0, len(texts), self.job.batch_size):
            rows = order[start : start + self.job.batch_size]
            chosen = {name: [column[row] for row in rows] for name, column in encoded.items()}
            labels[rows] = self.logits(self.tokenize.pad(chosen, padding=True, return_tensors="np")).argmax(-1)
        return labels.tolist()


class SentenceTransformer(System):
    """`SentenceTransformer.encode` on the checkpoint's encoder, with the classifier's two layers as Dense modules behind it.

    Its embedding is then the checkpoint's logits, and a pass does the same work as everyone else's. `encode` sorts all texts
    by their characters before it batches. (`CrossEncoder`, the library's own classifier, takes pairs of texts only.)
    """

    def load(self) -> None:
        import torch
        from sentence_transformers import SentenceTransformer as Library
        from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
        from transformers import AutoConfig

        torch.set_num_threads(self.job.threads)
        backend = self.choices["backend"]
        encoder = Transformer(
            self.job.folder,
            max_seq_length=self.job.length,
            backend=backend,
            model_kwargs=self.settings(backend),
        )
        modules = [encoder, Pooling(AutoConfig.from_pretrained(self.job.folder).hidden_size, pooling_mode="cls")]
        for weight, bias, activation in classifier_layers(self.model()):
            layer = Dense(*reversed(weight.shape), activation_function=activation, init_weight=weight, init_bias=bias)
            modules.append(layer)
        self.encoder = Library(modules=modules, device="cpu")

    def settings(self, backend: str) -> dict[str, Any]:
        if backend == "torch":
            import torch

            return {"dtype": torch.float32}
        if backend == "onnx":
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self.job.threads
            return {"session_options": options, "provider": "CPUExecutionProvider"}
        hint = {"INFERENCE_PRECISION_HINT": self.choices["hint"]} if "hint" in self.choices else {}
        return {"ov_config": {"INFERENCE_NUM_THREADS": self.job.threads, **hint}}

    def predict(self, texts: list[str]) -> list[int]:
        return self.encoder.encode(texts, batch_size=self.job.batch_size, show_progress_bar=False).argmax(-1).tolist()

    def ran(self) -> str:
        if self.choices["backend"] != "openvino":
            return "fp32"
        request = self.encoder[0].auto_model.request
        return precision_of(request.get_compiled_model() if hasattr(request, "get_compiled_model") else request)


class Rung(System):
    """One of bertopt's own, by the code that `bertopt ladder` runs; all rungs of a worker share one runner."""

    _shared: tuple[Job, Any] | None = None
    _ceilings: dict[Any, float] = {}  # noqa: RUF012 - measured beside the first pass of a rung, and not again

    def load(self) -> None:
        from bertopt import ladder
        from bertopt.run import Missing

        if Rung._shared is None or Rung._shared[0] is not self.job:
            Rung._shared = self.job, runner(self.job)
        self._runner = Rung._shared[1]
        row = next(rung for rung in ladder.RUNGS if rung.name == self.choices["rung"])
        # Its labels are compared on all texts; the parity of its logits is `bertopt ladder`'s concern.
        found = self._runner.open(row, ladder.RUNGS, lambda opened: opened.parity)
        if isinstance(found, Missing):
            raise Skipped(found.reason) if found.status == "skipped" else RuntimeError(found.reason)
        self.opened = found

    def warm_up(self) -> None:
        """`Runner.open` did: every shape once."""

    def timed(self) -> tuple[float, list[int]]:
        self._runner.measure(self.opened, self._ceilings)
        if self.opened.broken:
            raise RuntimeError(self.opened.broken)
        done = self.opened.repeats[-1].done
        if done.failures:
            raise RuntimeError(f"{len(done.failures)} batches failed: {done.failures[0]}")
        start = time.perf_counter()
        labels = done.answers.stacked().argmax(-1).tolist()
        return done.seconds + time.perf_counter() - start, labels

    def ran(self) -> str:
        return self.opened.session.precision


class Skipped(Exception):
    """The peer cannot run here, and says why."""


def classifier_layers(model: Any) -> list[tuple[Any, Any, Any]]:
    """(weight, bias, activation) of the layers between the first token's vector and the logits. Skipped where not known."""
    import torch

    base = getattr(model, model.base_model_prefix)
    head = model.classifier
    if hasattr(head, "out_proj"):  # RoBERTa, ELECTRA: ELECTRA's activation is a GELU
        first, last = head.dense, head.out_proj
        activation = torch.nn.GELU() if model.config.model_type == "electra" else torch.nn.Tanh()
    elif hasattr(model, "pre_classifier"):  # DistilBERT
        first, last, activation = model.pre_classifier, head, torch.nn.ReLU()
    else:
        pooler = getattr(base, "pooler", None)
        first, last, activation = getattr(pooler, "dense", pooler), head, torch.nn.Tanh()  # BERT, ALBERT
    if not (isinstance(first, torch.nn.Linear) and isinstance(last, torch.nn.Linear)):
        raise Skipped(f"the head of a {type(model).__name__} is not two dense layers on the first token")
    return [(first.weight, first.bias, activation), (last.weight, last.bias, torch.nn.Identity())]


def two_texts(system: System) -> Any:
    """A batch to trace with: two rows, one of them padded, so that neither axis nor the mask is taken for a constant."""
    return system.tokenizer()(["two texts,", "and one of them is longer"], padding=True, return_tensors="pt")


def exported(system: System) -> bytes:
    """An ONNX graph as anyone would export it: transformers' model through torch's TorchScript exporter."""
    import torch

    file = io.BytesIO()
    encoded = two_texts(system)

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = system.model()

        def forward(self, *values: Any) -> Any:
            return self.model(**dict(zip(encoded, values, strict=True))).logits

    torch.onnx.export(
        Positional().eval(),
        tuple(encoded.values()),
        file,
        input_names=list(encoded),
        output_names=["logits"],
        dynamic_axes={name: {0: "batch", 1: "seq"} for name in encoded} | {"logits": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )
    return file.getvalue()


def converted(system: System) -> Any:
    """An OpenVINO model of transformers' module, by OpenVINO's PyTorch frontend."""
    import openvino

    return openvino.convert_model(system.model(), example_input=dict(two_texts(system)))


def precision_of(compiled: Any) -> str:
    """What OpenVINO computes in, read back."""
    name = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    return {"f32": "fp32", "bf16": "bf16", "f16": "fp16"}[name]


def runner(job: Job) -> Any:
    from bertopt.batching import choose_edges
    from bertopt.prepare import Climb, prepare
    from bertopt.progress import progress
    from bertopt.run import Runner, Settings

    wanted = Climb(
        job.source,
        Path(job.data) if job.data else None,
        batch_size=job.batch_size,
        sequence_length=job.length,
        limit=len(job.texts),
    )
    ready = prepare(wanted, None)
    window = max(wanted.window, job.batch_size)
    lengths = ready.tokens.lengths[: max(window, 2048)]
    edges = choose_edges(lengths, job.length, batch_size=job.batch_size, window=window)
    ready.workspace.texts, ready.workspace.bucket_edges, ready.workspace.batch_size = job.texts, edges, job.batch_size
    settings = Settings(job.batch_size, job.length, window=window)
    return Runner(settings, ready.workspace, ready.requests, ready.tokens, ready.tokenizers, edges, progress(quiet=True))
