from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import load_file

from bertopt.errors import ModelError
from bertopt.model import BUILT_IN, open_checkpoint
from tests import models
from tests.models import WEIGHTS, logits, reconfigure, rewrite

Make = Callable[..., Path]


# What a checkpoint says of itself


def test_importing_and_describing_needs_no_torch() -> None:
    code = "import sys, bertopt.model; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("head", "changes", "task", "labels", "shape"),
    [
        ("ForSequenceClassification", {"num_labels": 3}, "single_label", ["LABEL_0", "LABEL_1", "LABEL_2"], (2, 3)),
        ("ForSequenceClassification", {"num_labels": 1}, "regression", None, (2, 1)),
        (
            "ForSequenceClassification",
            {"problem_type": "multi_label_classification", "id2label": {0: "neg", 1: "pos"}, "label2id": {"neg": 0, "pos": 1}},
            "multi_label",
            ["neg", "pos"],
            (2, 2),
        ),
        ("ForTokenClassification", {"num_labels": 5}, "token_classification", [f"LABEL_{i}" for i in range(5)], (2, 7, 5)),
        ("ForQuestionAnswering", {}, "question_answering", None, (2, 7, 2)),
        ("Model", {}, "embedding", None, (2, 32)),
    ],
)
def test_tasks(
    checkpoint_folder: Make, head: str, changes: dict[str, Any], task: str, labels: list[str] | None, shape: tuple[int, ...]
) -> None:
    checkpoint = open_checkpoint(str(checkpoint_folder("bert", head=head, **changes)))
    found = logits(checkpoint)
    assert (checkpoint.task, checkpoint.labels, found.shape) == (task, labels, shape)
    assert checkpoint.outputs == shape[-1]
    assert found.dtype == np.float32
    assert checkpoint.weights == "trained"


@pytest.mark.parametrize("kind", models.KINDS)
def test_families_compute_what_transformers_computes(checkpoint_folder: Make, kind: str) -> None:
    folder = checkpoint_folder(kind)
    checkpoint = open_checkpoint(str(folder))
    ids = torch.tensor([[7, 10, 11, 12], [7, 20, checkpoint.pad_id, checkpoint.pad_id]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask).logits
        for attention in ("sdpa", "eager"):
            torch.testing.assert_close(checkpoint.torch_module(attention=attention)(ids, mask), expected, atol=2e-6, rtol=1e-4)
    assert (checkpoint.layers, checkpoint.hidden, checkpoint.heads, checkpoint.intermediate) == (2, 32, 2, 64)
    assert checkpoint.parameters == sum(p.numel() for p in theirs.parameters())
    assert (checkpoint.vocab_size, checkpoint.model_type) == (100, kind)


@pytest.mark.parametrize(("kind", "usable"), [("bert", 64), ("roberta", 64), ("xlm-roberta", 64), ("distilbert", 64)])
def test_every_usable_position_and_not_one_more(checkpoint_folder: Make, kind: str, usable: int) -> None:
    checkpoint = open_checkpoint(str(checkpoint_folder(kind)))
    assert checkpoint.max_positions == usable  # of a RoBERTa's 66
    module = checkpoint.torch_module()
    module(torch.full((1, usable), 7), torch.ones(1, usable))
    with pytest.raises((IndexError, RuntimeError)):
        module(torch.full((1, usable + 1), 7), torch.ones(1, usable + 1))


def test_segments_are_an_input_only_where_they_are_used(checkpoint_folder: Make) -> None:
    uses = {kind: open_checkpoint(str(checkpoint_folder(kind))).uses_type_ids for kind in models.KINDS}
    assert {kind for kind, used in uses.items() if used} == {"bert", "albert", "electra", "deberta-v2", "mobilebert"}


def test_logits_are_those_of_each_row_alone(checkpoint_folder: Make) -> None:
    for kind in models.KINDS:
        checkpoint = open_checkpoint(str(checkpoint_folder(kind)))
        module = checkpoint.torch_module()
        together = module(
            torch.tensor([[7, 10, 11, 12, 13], [7, 20, 21] + [checkpoint.pad_id] * 2]),
            torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
        )
        alone = module(torch.tensor([[7, 20, 21]]), torch.ones(1, 3, dtype=torch.long))
        torch.testing.assert_close(together[1:], alone, atol=3e-6, rtol=1e-4)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("head", ["ForSequenceClassification", "Model"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "albert", "electra", "deberta-v2", "mobilebert"])
def test_a_row_of_nothing_but_padding_is_finite_and_disturbs_no_other(
    checkpoint_folder: Make, kind: str, head: str, attention: str
) -> None:  # EXP-07
    checkpoint = open_checkpoint(str(checkpoint_folder(kind, head=head)))
    module = checkpoint.torch_module(attention=attention)
    ids = torch.tensor([[7, 10, 11], [checkpoint.pad_id] * 3, [7, 20, 21]])
    mask = torch.tensor([[1, 1, 1], [0, 0, 0], [1, 1, 1]])
    found = module(ids, mask)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found[[0, 2]], module(ids[[0, 2]], mask[[0, 2]]), atol=1e-6, rtol=1e-5)
    assert torch.isfinite(module(torch.zeros_like(ids), torch.zeros_like(mask))).all()


# Embeddings


@pytest.mark.parametrize(
    ("stored", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
        (None, "mean"),
    ],
)
def test_pooling_follows_the_checkpoint(
    checkpoint_folder: Make, tmp_path: Path, stored: dict[str, Any] | None, pooling: str
) -> None:
    folder = Path(shutil.copytree(checkpoint_folder("bert", head="Model"), tmp_path / "model"))
    if stored is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(stored))
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.pooling == pooling
    ids, mask = torch.tensor([[7, 10, 11, 0]]), torch.tensor([[1, 1, 1, 0]])
    with torch.no_grad():
        hidden = transformers.AutoModel.from_pretrained(folder).eval()(input_ids=ids, attention_mask=mask).last_hidden_state
        found = checkpoint.torch_module()(ids, mask)
    expected = hidden[:, 0] if pooling == "cls" else hidden[:, :3].mean(dim=1)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_pooling_that_is_not_served_is_refused(checkpoint_folder: Make, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint_folder("bert", head="Model"), tmp_path / "model"))
    (folder / "1_Pooling").mkdir()
    file = folder / "1_Pooling" / "config.json"
    file.write_text(json.dumps({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}))
    with pytest.raises(ModelError, match="not by max_tokens"):
        open_checkpoint(str(folder))
    file.unlink()
    (folder / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense"}]))
    with pytest.raises(ModelError, match="Dense"):
        open_checkpoint(str(folder))


def test_normalized_embeddings_have_length_one(checkpoint_folder: Make, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint_folder("bert", head="Model"), tmp_path / "model"))
    plain = logits(open_checkpoint(str(folder)))
    modules = ["Transformer", "Pooling", "Normalize"]
    (folder / "modules.json").write_text(json.dumps([{"type": f"sentence_transformers.models.{m}"} for m in modules]))
    found = logits(open_checkpoint(str(folder)))
    np.testing.assert_allclose(found, plain / np.linalg.norm(plain, axis=1, keepdims=True), rtol=1e-5)


# Heads that are not trained (MOD-01)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra"])
def test_a_pretrained_encoder_gets_a_random_head_with_the_same_numbers_every_time(checkpoint_folder: Make, kind: str) -> None:
    folder = str(checkpoint_folder(kind, head="ForMaskedLM"))
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.weights, checkpoint.task, checkpoint.outputs) == ("random head", "single_label", 2)
    assert any("head: random, accuracy not meaningful" in note for note in checkpoint.notes)
    torch.manual_seed(7)
    first = logits(checkpoint)
    torch.manual_seed(8)
    assert np.array_equal(first, logits(open_checkpoint(folder)))


def test_building_a_module_leaves_the_random_state_alone(tiny: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    open_checkpoint(str(tiny)).torch_module()
    assert torch.equal(torch.rand(3), expected)


def test_a_classifier_saved_without_its_head_says_so(tmp_path: Path) -> None:
    copy = models.save("bert", tmp_path / "model", seed=5)
    trained = load_file(copy / WEIGHTS)
    rewrite(copy, lambda t: [t.pop(name) for name in list(t) if name.startswith("classifier.")])
    checkpoint = open_checkpoint(str(copy))
    assert checkpoint.weights == "random head"
    state = checkpoint.torch_module().state_dict()
    name = "bert.encoder.layer.1.output.dense.weight"
    assert torch.equal(state[f"model.{name}"], trained[name])
    assert not torch.equal(state["model.classifier.weight"], trained["classifier.weight"])


def test_random_weights_need_only_the_configuration(copy: Path) -> None:
    (copy / WEIGHTS).unlink()
    checkpoint = open_checkpoint(str(copy), random_weights=True)
    assert checkpoint.weights == "random"
    assert "weights: random, speed only" in checkpoint.notes
    assert checkpoint.parameters == 23586
    assert np.array_equal(logits(checkpoint), logits(open_checkpoint(str(copy), random_weights=True)))


# What is refused


def test_folders_that_are_no_checkpoint(tmp_path: Path, copy: Path) -> None:
    with pytest.raises(ModelError, match=r"is no checkpoint: there is no config\.json"):
        open_checkpoint(str(tmp_path))
    with pytest.raises(ModelError, match="there is no such folder"):
        open_checkpoint(str(tmp_path / "absent"))
    with pytest.raises(ModelError, match=r"config\.json is a file: a checkpoint is the folder"):
        open_checkpoint(str(copy / "config.json"))
    for content, message in (("{", "cannot be read as JSON"), ("[]", "does not serve model_type None"), ("", "as JSON")):
        (copy / "config.json").write_text(content)
        with pytest.raises(ModelError, match=message):
            open_checkpoint(str(copy))


def test_a_folder_without_weights_names_what_it_has(copy: Path) -> None:
    (copy / WEIGHTS).rename(copy / "tf_model.h5")
    with pytest.raises(ModelError, match=r"holds no weights.*only tf_model\.h5"):
        open_checkpoint(str(copy))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "does not serve model_type 'gpt2'"),
        ({"architectures": ["BertForNextSentencePrediction"]}, "does not serve BertForNextSentencePrediction"),
        ({"architectures": ["T5ForConditionalGeneration"]}, "does not serve T5ForConditionalGeneration"),
        ({"is_decoder": True}, "serves encoders only"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not computed"),  # EXP-04
        ({"id2label": {"0": "a", "2": "b"}}, "none for index 1"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "the weights are quantized"),
        ({"hidden_act": "no such function"}, "cannot build what config.json describes"),
        ({"num_attention_heads": 3}, "cannot build what config.json describes"),
        ({"model_type": "roberta", "pad_token_id": None}, "pad_token_id is null"),
    ],
)
def test_models_that_are_not_served(copy: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        open_checkpoint(str(reconfigure(copy, **changes)))


# The hub


def test_an_unreachable_hub_says_what_works_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("cannot find the requested files in the local cache")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(ModelError, match=r"bert-base-uncased.*cannot be reached.*--random-weights.*a folder, `demo`"):
        open_checkpoint("bert-base-uncased")


def test_a_hub_without_that_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> str:
        raise RepositoryNotFoundError("404: no such repository", response=Mock(headers={}))

    monkeypatch.setattr("huggingface_hub.snapshot_download", missing)
    with pytest.raises(ModelError, match="someone/absent is no folder, and the hub does not give it: 404"):
        open_checkpoint("someone/absent")


def test_a_hub_model_is_fetched_without_what_is_not_used(monkeypatch: pytest.MonkeyPatch, copy: Path) -> None:
    asked: list[list[str]] = []

    def download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(copy)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    checkpoint = open_checkpoint("someone/tiny")
    assert (checkpoint.name, checkpoint.source) == ("tiny", "someone/tiny")
    assert "model.safetensors" in asked[0]
    assert not {"pytorch_model.bin", "*.h5", "*"} & set(asked[0])

    torch.save(load_file(copy / WEIGHTS), copy / "pytorch_model.bin")
    (copy / WEIGHTS).unlink()
    asked.clear()
    open_checkpoint("someone/tiny")
    assert "pytorch_model.bin" in asked[1]
    asked.clear()
    open_checkpoint("someone/tiny", random_weights=True)
    assert len(asked) == 1
    assert "model.safetensors" not in asked[0]


@pytest.mark.parametrize(("name", "parameters"), [("bert-base-uncased", 109_483_778), ("bert-large-uncased", 335_143_938)])
def test_well_known_models_need_no_network_for_their_speed(
    monkeypatch: pytest.MonkeyPatch, tiny: Path, name: str, parameters: int
) -> None:
    monkeypatch.setattr("bertopt.demo.folder", lambda: tiny, raising=False)
    checkpoint = open_checkpoint(name, random_weights=True)
    assert name in BUILT_IN
    assert checkpoint.parameters == parameters  # as transformers counts the published classifier
    assert (checkpoint.max_positions, checkpoint.vocab_size, checkpoint.weights) == (512, 30522, "random")
    assert any("tokenizer from the demo" in note for note in checkpoint.notes)


def test_the_record_is_plain(tiny: Path) -> None:
    info = open_checkpoint(str(tiny)).info()
    assert (info.architecture, info.labels, info.weights) == (
        "BertForSequenceClassification",
        ["LABEL_0", "LABEL_1"],
        "trained",
    )
