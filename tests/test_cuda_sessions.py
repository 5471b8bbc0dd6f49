"""Sessions on a card beside torch: the same answers as on the host, whatever shapes come in whatever order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bertopt.backends.base import Options, Session, backend
from bertopt.batching import Batch, Padded
from bertopt.model import Checkpoint, open_checkpoint
from bertopt.tokens import Tokens
from bertopt.workspace import Workspace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a CUDA device")
SHAPES = [(1, 16), (4, 16), (4, 32), (7, 24)]


def made_up(shape: tuple[int, int], seed: int) -> Batch:
    random = np.random.default_rng(seed)
    lengths = random.integers(3, shape[1] + 1, shape[0])
    tokens = Tokens(random.integers(6, 100, lengths.sum()).astype(np.int32), np.append(0, lengths.cumsum()))
    return Batch(np.arange(shape[0]), tokens, Padded(*shape))


def opened(checkpoint: Checkpoint, name: str, precision: str, device: str) -> Session:
    module = backend(name)
    artifact = module.prepare(Workspace(checkpoint, device=device), precision)
    return module.open(artifact, Options(device, in_flight=2, pinned=device == "cuda", pad_id=checkpoint.pad_id))


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification"])
@pytest.mark.parametrize(("name", "precision"), [("eager", "fp32"), ("onnxruntime", "fp32"), ("onnxruntime", "half")])
def test_batches_in_flight_answer_as_the_host_does(
    name: str, precision: str, head: str, checkpoint_folder: Callable[..., Path]
) -> None:
    if name == "onnxruntime":
        reason = backend(name).available("cuda")
        if reason:
            pytest.skip(reason)
    checkpoint = open_checkpoint(str(checkpoint_folder("bert", head=head)))
    some = [made_up(SHAPES[n % len(SHAPES)], n) for n in range(40)]  # each shape often enough to be captured and replayed
    with opened(checkpoint, "eager", "fp32", "cpu") as host:
        right = [host.launch(host.stage(batch)).result() for batch in some]
    with opened(checkpoint, name, precision, "cuda") as session:
        waiting = []
        for n in np.random.default_rng(0).permutation(len(some)):
            waiting.append((n, session.launch(session.stage(some[n]))))
            if len(waiting) == 2:
                check(right, some, *waiting.pop(0), precision)
        check(right, some, *waiting.pop(0), precision)


def check(right: list[np.ndarray], some: list[Batch], n: int, pending, precision: str) -> None:
    tolerance = 0.05 * right[n].std() + 5e-3 if precision == "half" else 2e-4
    found = pending.result()
    for row, length in enumerate(some[n].tokens.lengths):
        real = slice(length) if found.ndim == 3 else slice(None)
        np.testing.assert_allclose(found[row][real], right[n][row][real], atol=tolerance)
    assert pending.times.device_ms > 0
    assert pending.times.copy_in_ms > 0
