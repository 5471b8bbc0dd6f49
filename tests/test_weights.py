"""Weight files: which one is read, what is found missing, cut or foreign (MOD-03)."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bertopt.errors import ModelError
from bertopt.model import open_checkpoint
from tests.models import WEIGHTS, logits, reconfigure, rewrite

Make = Callable[..., Path]


def test_old_names_of_layer_norm_are_the_same_model(copy: Path) -> None:
    before = open_checkpoint(str(copy))

    def age(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if "LayerNorm" in n]:
            tensors[name.replace(".weight", ".gamma").replace(".bias", ".beta")] = tensors.pop(name)

    expected = logits(before)
    rewrite(copy, age)
    assert (copy / WEIGHTS).read_bytes().count(b"LayerNorm.gamma") == 5
    assert np.array_equal(logits(open_checkpoint(str(copy))), expected)


def test_safetensors_wins_over_a_pickle_and_its_hash_is_told(copy: Path) -> None:
    expected = logits(open_checkpoint(str(copy)))
    torch.save({n: t + 1 for n, t in load_file(copy / WEIGHTS).items()}, copy / "pytorch_model.bin")
    checkpoint = open_checkpoint(str(copy))
    assert np.array_equal(logits(checkpoint), expected)
    assert any("model.safetensors (sha256 " in note and "pytorch_model.bin" in note for note in checkpoint.notes)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_pickle_alone_is_loaded_without_executing_it(copy: Path, tmp_path: Path) -> None:
    expected = logits(open_checkpoint(str(copy)))
    torch.save(load_file(copy / WEIGHTS), copy / "pytorch_model.bin")
    (copy / WEIGHTS).unlink()
    assert np.array_equal(logits(open_checkpoint(str(copy))), expected)

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path}/executed",)

    (copy / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Trap()}))
    with pytest.raises(ModelError, match=r"pytorch_model.bin"):
        open_checkpoint(str(copy))
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("left", [0, 5, 100, 0.5])
def test_a_file_cut_short_is_found_at_opening(copy: Path, left: float) -> None:
    data = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).write_bytes(data[: int(left * len(data)) if left == 0.5 else int(left)])
    with pytest.raises(ModelError, match=r"model\.safetensors is cut short"):
        open_checkpoint(str(copy))


def test_a_cut_pickle_is_found_at_opening(copy: Path) -> None:
    torch.save(load_file(copy / WEIGHTS), copy / "pytorch_model.bin")
    (copy / WEIGHTS).unlink()
    data = (copy / "pytorch_model.bin").read_bytes()
    (copy / "pytorch_model.bin").write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is cut short"):
        open_checkpoint(str(copy))


def test_missing_tensors_are_listed_at_opening(copy: Path) -> None:
    rewrite(copy, lambda t: [t.pop("bert.encoder.layer.0.output.dense.bias"), t.pop("classifier.bias")])
    with pytest.raises(ModelError, match=r"lack 2 tensors \(bert.encoder.layer.0.output.dense.bias, classifier.bias\)"):
        open_checkpoint(str(copy))


def test_a_random_head_excuses_no_missing_encoder_tensor(copy: Path) -> None:
    rewrite(copy, lambda t: [t.pop(n) for n in list(t) if n.startswith(("classifier.", "bert.encoder.layer.1."))])
    with pytest.raises(ModelError, match="lack 16 tensors"):
        open_checkpoint(str(copy))


def test_shapes_that_the_configuration_does_not_mean(copy: Path) -> None:
    reconfigure(copy, vocab_size=90)
    with pytest.raises(
        ModelError, match=r"word_embeddings.weight is stored as \[100, 32\], and config.json makes it \[90, 32\]"
    ):
        open_checkpoint(str(copy))


def test_unused_tensors_are_a_note_and_position_buffers_are_not(copy: Path) -> None:
    extra = {"lm.extra": torch.zeros(2), "bert.embeddings.position_ids": torch.arange(64)}
    rewrite(copy, lambda t: t.update(extra))
    checkpoint = open_checkpoint(str(copy))
    assert checkpoint.notes == ["weights: 1 tensors (lm.extra) stored and not used"]


def test_weights_in_several_files(copy: Path) -> None:
    expected, tensors = logits(open_checkpoint(str(copy))), load_file(copy / WEIGHTS)
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[:20], "model-00002-of-00002.safetensors": names[20:]}
    for file, part in parts.items():
        save_file({n: tensors[n] for n in part}, copy / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (copy / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    (copy / WEIGHTS).unlink()
    assert np.array_equal(logits(open_checkpoint(str(copy))), expected)
    (copy / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"names model-00002-of-00002\.safetensors"):
        open_checkpoint(str(copy))


def test_half_precision_files_are_computed_in_float32(copy: Path) -> None:
    expected = logits(open_checkpoint(str(copy)))
    rewrite(copy, lambda t: t.update({n: v.half() for n, v in t.items()}))
    reconfigure(copy, dtype="float16")
    checkpoint = open_checkpoint(str(copy))
    assert {p.dtype for p in checkpoint.torch_module().parameters()} == {torch.float32}
    np.testing.assert_allclose(logits(checkpoint), expected, atol=5e-3)


def test_an_encoder_stored_with_or_without_its_prefix_is_the_same(copy: Path, checkpoint_folder: Make, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(checkpoint_folder("bert", head="Model"), tmp_path / "bare"))
    expected = logits(open_checkpoint(str(bare)))
    rewrite(bare, lambda t: [t.update({f"bert.{n}": t.pop(n)}) for n in list(t)])
    assert np.array_equal(logits(open_checkpoint(str(bare))), expected)


def test_the_fingerprint_follows_weights_and_configuration(copy: Path) -> None:
    def fingerprint(**how: Any) -> str:
        return open_checkpoint(str(copy), **how).fingerprint

    first = fingerprint()
    assert len(first) == 16
    assert first == fingerprint()
    assert first != fingerprint(random_weights=True)
    rewrite(copy, lambda t: t["classifier.bias"].add_(0.5))
    second = fingerprint()
    assert second != first
    reconfigure(copy, layer_norm_eps=1e-6)
    assert fingerprint() not in (first, second)
