"""The torch module of a checkpoint: transformers' model behind one signature. Everything here needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertopt import weights
from bertopt.errors import ModelError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from bertopt.model import Checkpoint

# Added to the scores of masked positions. exp(-10000) is 0 in every precision, the constant fits float16 (the smallest
# float32 would become -inf there, and a fully masked row NaN), and it is what fused attention operators assume.
MASKED = -10000.0


def build(checkpoint: Checkpoint, attention: str) -> nn.Module:
    """See `Checkpoint.torch_module`."""
    import torch

    from bertopt.model import SEED

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = _empty(checkpoint.config, _auto_class(checkpoint), attention)
    if checkpoint.files:
        stored = weights.load(checkpoint.files)
        names = weights.align(list(stored), set(model.state_dict()), model.base_model_prefix)
        model.load_state_dict({names[name]: tensor.float() for name, tensor in stored.items()}, strict=False)
    return _wrapper()(model, checkpoint).eval()


def check(config: Any, auto_class: str, stored: weights.Shapes | None, kind: str, folder: Path) -> tuple[int, list[str]]:
    """Parameters of the module that `config` describes, and notes; ModelError where the stored tensors do not fill it.

    `stored` is None where the weights are to be random. A random head may lack its tensors and the pooler's; a plain
    encoder may lack the pooler, which no embedding uses.
    """
    import torch

    from bertopt.model import HEADS

    try:
        with torch.device("meta"):
            model = _empty(config, auto_class, "eager")
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ModelError(
            f"{folder}: transformers cannot build what config.json describes: {weights.first_line(error)}"
        ) from None
    parameters = sum(p.numel() for p in model.parameters())
    if stored is None:
        return parameters, []
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    names = weights.align(list(stored), set(wanted), model.base_model_prefix)
    found = {names[name]: shape for name, shape in stored.items()}

    untrained = {"classifier", "pre_classifier", "qa_outputs"} if kind == "random head" else set()
    optional_pooler = kind == "random head" or auto_class == HEADS["Model"].auto_class
    missing = [
        name
        for name in wanted
        if name not in found and name.split(".")[0] not in untrained and not (optional_pooler and "pooler" in name.split("."))
    ]
    if missing:
        raise ModelError(f"{folder}: the weights lack {_listed(missing)}, which {type(model).__name__} needs")
    for name, shape in wanted.items():
        if found.get(name, shape) != shape:
            raise ModelError(f"{folder}: {name} is stored as {list(found[name])}, and config.json makes it {list(shape)}")
    unused = [
        name for name in found if name not in wanted and name.rsplit(".", 1)[-1] not in {"position_ids", "token_type_ids"}
    ]
    return parameters, [f"weights: {_listed(unused)} stored and not used"] if unused else []


def _listed(names: list[str], most: int = 5) -> str:
    return f"{len(names)} tensors ({', '.join(names[:most])}{', ...' if len(names) > most else ''})"


def _auto_class(checkpoint: Checkpoint) -> str:
    from bertopt.model import FAMILIES, HEADS

    return HEADS[checkpoint.architecture.removeprefix(FAMILIES[checkpoint.model_type])].auto_class


def _empty(config: Any, auto_class: str, attention: str) -> Any:
    """transformers' model of a configuration, weights not loaded."""
    import torch
    import transformers

    if config.model_type == "deberta-v2":
        attention = "eager"  # the only one it has
    return getattr(transformers, auto_class).from_config(config, attn_implementation=attention, dtype=torch.float32)


def export_attention(config: Any) -> str:
    """The name under which a model of this configuration finds the attention that is traced for export."""
    import transformers

    if config.model_type == "deberta-v2":
        return "eager"
    transformers.AttentionInterface.register("bertopt_export", _plain_attention)
    return "bertopt_export"


def _plain_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(Q Kᵀ / √d + mask) V in the operators that fusion passes know: one Div by a constant, one Add, one Softmax.

    Traced SDPA leaves square roots of shapes behind, and a scale written as Mul is taken for the mask's.
    Queries, keys and values are [batch, heads, length, d]; the mask is [batch, 1, 1, length].
    """
    import torch

    divisor = 1.0 / scaling if scaling else query.shape[-1] ** 0.5
    weights = torch.softmax(torch.matmul(query, key.transpose(2, 3)) / divisor + attention_mask, dim=-1)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def _wrapper() -> type[nn.Module]:
    import torch
    from torch import nn

    class Encoder(nn.Module):
        """One signature and one output for every family and task."""

        def __init__(self, model: Any, checkpoint: Checkpoint) -> None:
            super().__init__()
            self.model = model
            self.task = checkpoint.task
            self.pooling = checkpoint.pooling
            self.normalize = checkpoint.normalize
            self.uses_type_ids = checkpoint.uses_type_ids
            self.one_segment = getattr(checkpoint.config, "type_vocab_size", 0) == 1
            self.own_mask = checkpoint.model_type == "deberta-v2"  # it masks queries as well as keys

        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
        ) -> torch.Tensor:
            inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
            if not self.own_mask:
                inputs["attention_mask"] = (1.0 - attention_mask[:, None, None, :].to(self.model.dtype)) * MASKED
            if self.uses_type_ids and token_type_ids is not None:
                inputs["token_type_ids"] = token_type_ids
            elif self.one_segment:
                inputs["token_type_ids"] = torch.zeros_like(input_ids)  # transformers would gather them by position
            outputs = self.model(**inputs)
            if self.task == "question_answering":
                return torch.stack((outputs.start_logits, outputs.end_logits), dim=-1)
            if self.task != "embedding":
                return outputs.logits
            return self.pool(outputs.last_hidden_state, attention_mask)

        def pool(self, hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            if self.pooling == "cls":
                pooled = hidden[:, 0]
            else:
                mask = attention_mask.to(hidden.dtype).unsqueeze(-1)
                # A count is a whole number, so 1 changes nothing but the row without tokens, which becomes 0 and not NaN
                pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
            if self.normalize:
                pooled = pooled / (pooled * pooled).sum(dim=-1, keepdim=True).clamp(min=1e-6).sqrt()  # 1e-6 exists in float16
            return pooled

    return Encoder
