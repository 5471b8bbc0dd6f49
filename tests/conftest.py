from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and ONNX Runtime read it: tiny models gain nothing from more
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test reaches for a network

import pytest

from tests import climbing, command, helpers_tokenizers, models


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every test file has a cache of its own, and none sees the user's, nor the summary of the CI job that it runs in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTOPT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("GITHUB_STEP_SUMMARY", raising=False)
        yield


# Checkpoints


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`checkpoint_folder("bert", head=..., **config changes)` -> a folder made once a session; don't write into it."""
    made: dict[str, Path] = {}

    def make(kind: str = "bert", **changes: Any) -> Path:
        key = repr((kind, sorted(changes.items())))
        if key not in made:
            made[key] = models.save(kind, tmp_path_factory.mktemp(kind), **changes)
        return made[key]

    return make


@pytest.fixture
def tiny(checkpoint_folder: Callable[..., Path]) -> Path:
    """TINY: a BERT classifier with two labels."""
    return checkpoint_folder("bert")


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """A TINY of one's own, to be altered."""
    return Path(shutil.copytree(tiny, tmp_path / "copy"))


@pytest.fixture(scope="session")
def named(checkpoint_folder: Callable[..., Path]) -> Path:
    """A TINY that calls its labels neg and pos."""
    return checkpoint_folder("bert", id2label={0: "neg", 1: "pos"}, label2id={"neg": 0, "pos": 1})


# Tokenizers


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TINY's tokenizer: whole words, letters, punctuation; no limit of its own."""
    folder = tmp_path_factory.mktemp("made") / "TINY"
    models.save_tokenizer("bert", folder, max_length=None)
    return folder


@pytest.fixture(scope="session")
def family_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`family_folder("roberta")` -> a folder with a tokenizer of that family, made once a session."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = helpers_tokenizers.save(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return folder


@pytest.fixture(scope="session")
def fast_tokenizer(tokenizer_folder: Path) -> Any:
    from bertopt.tokenization import load_tokenizer

    return load_tokenizer(tokenizer_folder, max_length=16)


@pytest.fixture(scope="module", params=["fast", "reference"])
def any_tokenizer(request: pytest.FixtureRequest, tokenizer_folder: Path) -> Callable[[int], Any]:
    """The serving tokenizer and the naive one, which answer alike, for a greatest length."""
    from bertopt.tokenization import load_reference_tokenizer, load_tokenizer

    if request.param == "fast":
        return lambda max_length: load_tokenizer(tokenizer_folder, max_length=max_length)
    return lambda max_length: load_reference_tokenizer(tokenizer_folder, max_length=max_length, model_type="bert")


# Graphs


@pytest.fixture(scope="session")
def exported(checkpoint_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """`exported("bert")` -> its canonical graph, of eager attention (tests.quantized.Exported)."""
    from bertopt.graph.export import export
    from bertopt.model import open_checkpoint
    from tests.quantized import Exported

    made: dict[str, Exported] = {}

    def make(kind: str) -> Exported:
        if kind not in made:
            checkpoint = open_checkpoint(str(checkpoint_folder(kind)))
            path = tmp_path_factory.mktemp("exported") / "canonical.onnx"
            export(checkpoint.torch_module(attention="eager"), checkpoint, path)
            made[kind] = Exported(checkpoint, path)
        return made[kind]

    return make


@pytest.fixture(scope="session")
def tiny_bert(exported: Callable[[str], Any]) -> Any:
    return exported("bert")


# Ladders


@pytest.fixture(scope="module")
def climbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """`climbed(model, **more)` -> (record, folder) of a ladder with one repeat."""
    data = climbing.write(tmp_path_factory.mktemp("data") / "texts.jsonl", [{"text": text} for text in climbing.texts()])
    return lambda model, **more: climbing.run(model, **({"data": data, "out": tmp_path_factory.mktemp("run") / "run"} | more))


@pytest.fixture
def ladder(named: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[str]]]:
    """`ladder("--bs", "0")` -> (exit code, sentences on standard error) of a quick run on good input but for these options.

    It reads `texts.jsonl` and writes `runs/one` in tmp_path.
    """
    return command.ladder(named, tmp_path, capfd)
