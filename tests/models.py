"""Tiny checkpoints of every family, with tokenizers, for all tests: `save("bert", folder)`; seeded, milliseconds to make.

hidden 32, 2 layers, 2 heads, intermediate 64, vocabulary 100, 64 usable positions, 2 labels. Weights are drawn wider than
a real initialisation, so that the logits of different texts differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

    from bertopt.model import Checkpoint

WEIGHTS = "model.safetensors"
KINDS = {
    "bert": "Bert",
    "roberta": "Roberta",
    "distilbert": "DistilBert",
    "albert": "Albert",
    "electra": "Electra",
    "deberta-v2": "DebertaV2",
    "mobilebert": "MobileBert",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
}
ROBERTA_LIKE = {"roberta", "xlm-roberta", "camembert"}
WORDS = ["the", "of", "and", "to", "in", "is", "was", "it", "for", "on", "with", "as", "at", "by", "this", "that", "good"]
WORDS += ["bad", "great", "poor", "film", "news", "team", "game", "stock"]


def vocabulary(kind: str = "bert") -> list[str]:
    """100 wordpieces: special tokens, letters at the start and inside of a word, and a few whole words."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    special = (
        ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if kind in ROBERTA_LIKE else ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    )
    pieces = [
        *special,
        *letters,
        *("##" + letter for letter in letters),
        *(w for w in WORDS if len(w) > 1),
        *"0123456789.,!?'-",
    ]
    pieces += [f"[unused{i}]" for i in range(100 - len(pieces))]
    return pieces[:100]


def config(kind: str = "bert", head: str = "ForSequenceClassification", **changes: Any) -> Any:
    """transformers' configuration of a tiny model; `changes` go to its constructor."""
    import transformers

    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    if kind == "distilbert":
        sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    sizes |= {"vocab_size": 100, "max_position_embeddings": 64, "initializer_range": 0.2}
    if kind in ROBERTA_LIKE:
        sizes |= {"max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    if kind in {"albert", "electra"}:
        sizes |= {"embedding_size": 16}
    if kind == "albert":
        sizes |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    if kind == "mobilebert":
        sizes |= {"embedding_size": 16, "intra_bottleneck_size": 16}
    if kind == "deberta-v2":
        sizes |= {"relative_attention": True, "position_buckets": 16, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 2}
    made = getattr(transformers, KINDS[kind] + "Config")(**(sizes | changes))
    made.architectures = [KINDS[kind] + head]
    return made


def save(kind: str, folder: Path, *, head: str = "ForSequenceClassification", seed: int = 0, **changes: Any) -> Path:
    """A tiny checkpoint in `folder` (made if absent): config, safetensors weights and tokenizer. `head` is a class's suffix.

    `save("bert", d, num_labels=3, id2label={...}, label2id={...})`; `save("bert", d, head="Model")` for a plain encoder.
    """
    import torch
    import transformers

    made = config(kind, head, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, KINDS[kind] + head)(made)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(0, 0.1)  # transformers starts them at 0, where swapping or losing one shows nowhere
    model.eval().save_pretrained(folder)
    save_tokenizer(kind, folder)
    return folder


def save_tokenizer(kind: str, folder: Path, *, max_length: int | None = 64) -> None:
    """tokenizer.json, tokenizer_config.json and a BERT's vocab.txt; `max_length=None` leaves the limit out (TOK-02)."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = vocabulary(kind)
    ids = {piece: i for i, piece in enumerate(pieces)}
    roberta = kind in ROBERTA_LIKE
    names = {"unk": "<unk>", "cls": "<s>", "sep": "</s>", "pad": "<pad>", "mask": "<mask>"}
    if not roberta:
        names = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=names["unk"], max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pair = "{cls} $A {sep} {sep} $B {sep}" if roberta else "{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="{cls} $A {sep}".format(**names),
        pair=pair.format(**names),
        special_tokens=[(names["cls"], ids[names["cls"]]), (names["sep"], ids[names["sep"]])],
    )
    tokenizer.add_special_tokens(list(names.values()))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {f"{role}_token": token for role, token in names.items()}
    settings |= {"tokenizer_class": "BertTokenizer" if kind == "bert" else "PreTrainedTokenizerFast"}
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    if not roberta and kind != "distilbert":
        settings["model_input_names"].insert(1, "token_type_ids")
    if max_length is not None:
        settings["model_max_length"] = max_length
    if not roberta:
        settings["do_lower_case"] = True
        (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def logits(checkpoint: Checkpoint, *, attention: str = "sdpa") -> np.ndarray:
    """Of two rows, the second padded, with two segments."""
    import torch

    ids = torch.tensor([[2, 10, 11, 12, 13, 14, 3], [2, 20, 21, 3, 0, 0, 0]])
    mask = (ids != 0).long()
    ids = torch.where(mask.bool(), ids, checkpoint.pad_id)
    types = torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0, 0]]) if checkpoint.uses_type_ids else None
    with torch.no_grad():
        return checkpoint.torch_module(attention=attention)(ids, mask, types).numpy()


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change a checkpoint's stored tensors: `change` gets them by name and alters the dictionary."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def reconfigure(folder: Path, **changes: Any) -> Path:
    """Change entries of a checkpoint's config.json."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder
