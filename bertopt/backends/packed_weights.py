"""A checkpoint's tensors as the packed encoder wants them: BERT, MiniLM, RoBERTa, XLM-R, CamemBERT, ELECTRA and DistilBERT."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bertopt.backends.packed_encoder import ACTIVATIONS, Encoder, Head, Layer, Linear, Norm, Tables
from bertopt.errors import ModelError

if TYPE_CHECKING:
    from bertopt.model import Checkpoint

_BERT_LAYER = {
    "q": "encoder.layer.{}.attention.self.query",
    "k": "encoder.layer.{}.attention.self.key",
    "v": "encoder.layer.{}.attention.self.value",
    "out": "encoder.layer.{}.attention.output.dense",
    "norm1": "encoder.layer.{}.attention.output.LayerNorm",
    "up": "encoder.layer.{}.intermediate.dense",
    "down": "encoder.layer.{}.output.dense",
    "norm2": "encoder.layer.{}.output.LayerNorm",
}
_DISTILBERT_LAYER = {
    "q": "transformer.layer.{}.attention.q_lin",
    "k": "transformer.layer.{}.attention.k_lin",
    "v": "transformer.layer.{}.attention.v_lin",
    "out": "transformer.layer.{}.attention.out_lin",
    "norm1": "transformer.layer.{}.sa_layer_norm",
    "up": "transformer.layer.{}.ffn.lin1",
    "down": "transformer.layer.{}.ffn.lin2",
    "norm2": "transformer.layer.{}.output_layer_norm",
}


class Family(NamedTuple):
    """Where a family's checkpoints keep a layer's tensors, and the classifier behind the first token."""

    layer: dict[str, str]
    dense: str
    activation: Callable[[Tensor], Tensor]
    classifier: str


_ROBERTA = Family(_BERT_LAYER, "classifier.dense", torch.tanh, "classifier.out_proj")
FAMILIES = {
    "bert": Family(_BERT_LAYER, "pooler.dense", torch.tanh, "classifier"),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "electra": Family(_BERT_LAYER, "classifier.dense", F.gelu, "classifier.out_proj"),
    "distilbert": Family(_DISTILBERT_LAYER, "pre_classifier", F.relu, "classifier"),
}
PER_TOKEN = {"token_classification": "classifier", "question_answering": "qa_outputs"}


def load(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Encoder:
    """The packed encoder of a checkpoint, in plain torch.

    Raises ModelError where the family or the activation is not one that it computes.
    """
    family, config = FAMILIES.get(checkpoint.model_type), checkpoint.config
    activation = getattr(config, "hidden_act", None) or config.activation
    if family is None or activation not in ACTIVATIONS:
        raise ModelError(f"{checkpoint.name}: packing serves {', '.join(FAMILIES)}, not {checkpoint.model_type} ({activation})")
    model: Any = checkpoint.torch_module().model
    prefix = model.base_model_prefix + "."
    stored = {name.removeprefix(prefix): tensor for name, tensor in model.state_dict().items()}
    eps = getattr(config, "layer_norm_eps", 1e-12)

    def get(name: str) -> Tensor:
        return stored[name].to(device=device, dtype=dtype).contiguous()

    def linear(*names: str) -> Linear:
        return Linear(torch.cat([get(f"{n}.weight") for n in names]), torch.cat([get(f"{n}.bias") for n in names]))

    def norm(name: str) -> Norm:
        return Norm(get(f"{name}.weight"), get(f"{name}.bias"), eps)

    def layer(index: int) -> Layer:
        at = {part: name.format(index) for part, name in family.layer.items()}
        qkv = linear(at["q"], at["k"], at["v"])
        return Layer(qkv, linear(at["out"]), norm(at["norm1"]), linear(at["up"]), linear(at["down"]), norm(at["norm2"]))

    word, kinds = get("embeddings.word_embeddings.weight"), "embeddings.token_type_embeddings.weight"
    tables = Tables(
        word,
        get("embeddings.position_embeddings.weight"),
        get(kinds) if kinds in stored else word.new_zeros(1, word.shape[1]),  # DistilBERT has none
        norm("embeddings.LayerNorm"),
        config.pad_token_id + 1 if family is _ROBERTA else 0,
    )
    if checkpoint.task in PER_TOKEN:
        head = Head("token", classifier=linear(PER_TOKEN[checkpoint.task]))
    elif checkpoint.task == "embedding":
        head = Head("cls" if checkpoint.pooling == "cls" else "mean", normalize=checkpoint.normalize)
    else:
        head = Head("cls", linear(family.dense), family.activation, linear(family.classifier))
    return Encoder(
        tables,
        linear("embeddings_project") if "embeddings_project.weight" in stored else None,
        [layer(i) for i in range(checkpoint.layers)],
        head,
        checkpoint.heads,
        activation,
    )
