"""A checkpoint: hub name, folder, or `demo`; its task, limits, labels and fingerprint, and the torch module that serves it."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertopt import weights
from bertopt.errors import ModelError
from bertopt.files import digest
from bertopt.records import ModelInfo

if TYPE_CHECKING:
    from torch import nn

    from bertopt.tokenization import FastTokenizer

SEED = 0  # of whatever is not trained, so that two runs print the same numbers

# model_type -> prefix of its class names
FAMILIES = {
    "bert": "Bert",
    "distilbert": "DistilBert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "albert": "Albert",
    "electra": "Electra",
    "mobilebert": "MobileBert",
    "deberta-v2": "DebertaV2",
}
ROBERTA_LIKE = {"roberta", "xlm-roberta", "camembert"}  # position ids start after the padding id


@dataclass(frozen=True)
class Head:
    """What a class name's suffix promises."""

    task: str
    auto_class: str  # of transformers
    tensors: str  # prefix of the head's own tensors; where none is stored, the head is random


_CLASSIFIER = Head("single_label", "AutoModelForSequenceClassification", "classifier.")
HEADS = {
    "ForSequenceClassification": _CLASSIFIER,
    "ForTokenClassification": Head("token_classification", "AutoModelForTokenClassification", "classifier."),
    "ForQuestionAnswering": Head("question_answering", "AutoModelForQuestionAnswering", "qa_outputs."),
    "Model": Head("embedding", "AutoModel", ""),
    # Pretrained only: whoever names one wants the speed of a classifier on it
    "ForMaskedLM": _CLASSIFIER,
    "ForPreTraining": _CLASSIFIER,
}

# Known architectures, for --random-weights with no network (Devlin et al. 2019; their vocabulary is the demo's)
BUILT_IN: dict[str, dict[str, Any]] = {
    "bert-base-uncased": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "bert-large-uncased": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}

HUB_FILES = [
    "config.json",
    "tokenizer*.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "special_tokens_map.json",
    "added_tokens.json",
]
HUB_FILES += ["modules.json", "1_Pooling/config.json"]
HUB_WEIGHTS = ["model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"]
WHAT_WORKS_OFFLINE = f"what works offline: a folder, `demo`, or --random-weights with a folder or one of {', '.join(BUILT_IN)}"


@dataclass(frozen=True)
class Checkpoint:
    """What is known of a model before any of it runs. `torch_module` is the only part that needs torch."""

    name: str
    source: str  # the folder or hub name as given
    folder: Path  # where the tokenizer's files lie, and config and weights unless the configuration is built in
    architecture: str  # class that serves it: "BertForSequenceClassification"
    model_type: str  # "bert", "distilbert", ...
    task: str  # single_label, multi_label, regression, embedding, token_classification or question_answering
    labels: list[str] | None  # in logit order; None for regression, embedding and question answering
    outputs: int  # last dimension of the logits
    max_positions: int  # usable ones: a RoBERTa of 514 has 512
    vocab_size: int  # rows of the embedding table
    pad_id: int
    uses_type_ids: bool  # whether token_type_ids is an input of the module and of its graphs
    layers: int
    hidden: int
    heads: int
    intermediate: int
    parameters: int | None  # None where only torch could count them and it is absent
    fingerprint: str  # first 16 hexadecimal digits of SHA-256 over config and weights
    weights: str  # "trained", "random" or "random head"
    pooling: str | None = None  # "mean" or "cls", of an embedding
    normalize: bool = False  # whether an embedding has length 1
    notes: list[str] = field(default_factory=list)
    config: Any = field(default=None, repr=False, compare=False)  # transformers' configuration
    files: list[Path] = field(default_factory=list, repr=False)  # of the weights; empty when they are random

    def info(self) -> ModelInfo:
        """What a run's record keeps."""
        return ModelInfo(
            name=self.name,
            source=self.source,
            architecture=self.architecture,
            task=self.task,
            labels=self.labels,
            parameters=self.parameters,
            fingerprint=self.fingerprint,
            weights=self.weights,
            layers=self.layers,
            hidden=self.hidden,
            notes=self.notes,
        )

    def tokenizer(self, max_length: int) -> FastTokenizer:
        """Its Rust tokenizer; rows have at most `max_length` tokens. Raises as `tokenization.load_tokenizer` does."""
        from bertopt.tokenization import load_tokenizer

        return load_tokenizer(self.folder, max_length=max_length, model_type=self.model_type, name=self.name)

    def torch_module(self, *, attention: str = "sdpa") -> nn.Module:
        """The model in float32 and evaluation mode: (input_ids, attention_mask, token_type_ids=None) -> float32 logits.

        Inputs are integers [batch, length], the mask 1 on real tokens. Logits are [batch, outputs], or
        [batch, length, outputs] for token classification and question answering.
        `attention` is "sdpa" or "eager"; the results are the same but for rounding.
        """
        from bertopt.encoder import build

        return build(self, attention)


def open_checkpoint(name: str, *, random_weights: bool = False) -> Checkpoint:
    """A checkpoint from a folder, a hub name or `demo`; with `random_weights` only its configuration and tokenizer.

    Raises ModelError where it cannot be found, read or served.
    """
    if name == "demo":
        from bertopt import demo

        return _from_folder(name, name, demo.folder(), random_weights)
    if Path(name).is_file():
        raise ModelError(f"{name} is a file: a checkpoint is the folder that holds config.json, tokenizer and weights")
    if Path(name).is_dir():
        return _from_folder(Path(name).resolve().name, name, Path(name), random_weights)
    if random_weights and name in BUILT_IN:
        return _built_in(name)
    return _from_folder(name.rsplit("/", 1)[-1], name, _download(name, random_weights), random_weights)


def _download(name: str, random_weights: bool) -> Path:
    """The folder of a hub checkpoint: from the cache, or fetched, and no more of it than is used."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) or name.startswith("."):
        raise ModelError(f"{name} is no checkpoint: there is no such folder, and it is no hub name")
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = HUB_FILES if random_weights else HUB_FILES + HUB_WEIGHTS
    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
        if not random_weights and not list(folder.glob("model*.safetensors")):
            folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*HUB_FILES, weights.PICKLE]))
    except LocalEntryNotFoundError:
        hint = " (add --random-weights to measure its speed)" if name in BUILT_IN else ""
        raise ModelError(
            f"{name} is no folder, is not in the hub's cache, and the hub cannot be reached{hint}; {WHAT_WORKS_OFFLINE}"
        ) from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise ModelError(f"{name} is no folder, and the hub does not give it: {weights.first_line(error)}") from None
    return folder


def _built_in(name: str) -> Checkpoint:
    from transformers import BertConfig

    from bertopt import demo

    config = BertConfig(vocab_size=30522, architectures=["BertForSequenceClassification"], **BUILT_IN[name])
    notes = [f"configuration of {name} built in, tokenizer from the demo, whose vocabulary is the same"]
    return _describe(name, name, demo.folder(), config, config.to_json_string().encode(), random_weights=True, notes=notes)


def _from_folder(name: str, source: str, folder: Path, random_weights: bool) -> Checkpoint:
    file = folder / "config.json"
    if not file.is_file():
        raise ModelError(f"{folder} is no checkpoint: there is no config.json in it")
    stored = weights.read_json(file)
    model_type = stored.get("model_type") if isinstance(stored, dict) else None
    if model_type not in FAMILIES:
        raise ModelError(f"{file}: bertopt does not serve model_type {model_type!r}, only {', '.join(FAMILIES)}")
    if stored.get("position_embedding_type", "absolute") != "absolute":
        raise ModelError(
            f"{file}: position_embedding_type {stored['position_embedding_type']!r} is not computed by transformers 5, "
            "so its answers would be wrong; only 'absolute' is served"
        )
    if "quantization_config" in stored:
        raise ModelError(f"{file}: the weights are quantized; bertopt starts from float weights and quantizes them itself")
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{file} cannot be read as a configuration: {weights.first_line(error)}") from None
    if model_type in ROBERTA_LIKE and config.pad_token_id is None:
        raise ModelError(f"{file}: pad_token_id is null, and a {model_type} counts its positions from it")
    return _describe(name, source, folder, config, file.read_bytes(), random_weights=random_weights, notes=[])


def _describe(
    name: str, source: str, folder: Path, config: Any, raw: bytes, *, random_weights: bool, notes: list[str]
) -> Checkpoint:
    """The checkpoint that a configuration and the weights beside it make."""
    stored_as, head = _head(config, folder)
    if getattr(config, "is_decoder", False):
        raise ModelError(f"{folder}: is_decoder is set, and bertopt serves encoders only")
    if head.task != "embedding":
        architecture = FAMILIES[config.model_type] + head.auto_class.removeprefix("AutoModel")
    else:
        architecture = FAMILIES[config.model_type] + "Model"
    task, labels, outputs = _task(head, config, folder)
    pooling, normalize = _pooling(folder) if task == "embedding" else (None, False)

    files: list[Path] = []
    kind, parameters = "random", None
    shapes: weights.Shapes = {}
    if not random_weights:
        files, more = weights.find(folder)
        notes = notes + more
        shapes = weights.shapes(files)
        kind = "trained" if any(t.startswith(head.tensors) for t in shapes) else "random head"
        parameters = sum(_product(shape) for shape in shapes.values())
    if importlib.util.find_spec("torch"):
        from bertopt.encoder import check

        parameters, more = check(config, head.auto_class, shapes if files else None, kind, folder)
        notes = notes + more
    if kind == "random head":
        notes = [*notes, f"head: random, accuracy not meaningful ({folder.name} is {stored_as} and stores no {head.tensors}*)"]
    if kind == "random":
        notes = [*notes, "weights: random, speed only"]

    positions = config.max_position_embeddings
    if config.model_type in ROBERTA_LIKE:
        positions -= config.pad_token_id + 1
    return Checkpoint(
        name=name,
        source=source,
        folder=folder,
        architecture=architecture,
        model_type=config.model_type,
        task=task,
        labels=labels,
        outputs=outputs,
        max_positions=positions,
        vocab_size=config.vocab_size,
        pad_id=config.pad_token_id or 0,
        uses_type_ids=getattr(config, "type_vocab_size", 0) >= 2,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        intermediate=config.hidden_dim if config.model_type == "distilbert" else config.intermediate_size,
        parameters=parameters,
        fingerprint=digest(files, raw if files else raw + b"random %d" % SEED)[:16],
        weights=kind,
        pooling=pooling,
        normalize=normalize,
        notes=notes,
        config=config,
        files=files,
    )


def _head(config: Any, folder: Path) -> tuple[str, Head]:
    """The stored class's name and what bertopt serves it as."""
    named = (config.architectures or [FAMILIES[config.model_type] + "Model"])[0]
    for prefix in FAMILIES.values():
        if named.startswith(prefix) and named.removeprefix(prefix) in HEADS:
            return named, HEADS[named.removeprefix(prefix)]
    raise ModelError(
        f"{folder}: bertopt does not serve {named}, only sequence and token classification, "
        "question answering and plain encoders"
    )


def _task(head: Head, config: Any, folder: Path) -> tuple[str, list[str] | None, int]:
    """Task, labels in logit order, and the number of outputs."""
    if head.task == "embedding":
        return head.task, None, config.hidden_size
    count = config.num_labels
    if head.task == "question_answering":
        if count != 2:
            raise ModelError(f"{folder}: a question answering head has 2 outputs, start and end, and this one has {count}")
        return head.task, None, 2
    task = head.task
    if task == "single_label":
        if config.problem_type == "regression" or (count == 1 and config.problem_type is None):
            return "regression", None, count
        if config.problem_type == "multi_label_classification":
            task = "multi_label"
    missing = [i for i in range(count) if i not in config.id2label]
    if missing:
        raise ModelError(f"{folder}: id2label has {count} labels and none for index {missing[0]}")
    return task, [str(config.id2label[i]) for i in range(count)], count


def _pooling(folder: Path) -> tuple[str, bool]:
    """How an encoder's tokens become one vector, from sentence-transformers' files where there are any; else the mean."""
    mode, normalize = "mean", False
    modules = folder / "modules.json"
    if modules.is_file():
        for module in weights.read_json(modules):
            kind = module["type"].rsplit(".", 1)[-1]
            if kind not in {"Transformer", "Pooling", "Normalize"}:
                raise ModelError(
                    f"{folder}: bertopt does not serve the module {kind} that modules.json puts behind the encoder"
                )
            normalize |= kind == "Normalize"
    file = folder / "1_Pooling" / "config.json"
    if file.is_file():
        stored = weights.read_json(file)
        old = [k.removeprefix("pooling_mode_") for k, v in stored.items() if k.startswith("pooling_mode_") and v is True]
        modes = stored.get("pooling_mode", old)
        modes = [modes] if isinstance(modes, str) else modes
        mode = {"mean_tokens": "mean", "cls_token": "cls"}.get("+".join(modes), "+".join(modes))
        if mode not in {"mean", "cls"}:
            raise ModelError(f"{file}: bertopt pools by mean or cls, not by {mode}")
    return mode, normalize


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result
