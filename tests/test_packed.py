"""Packed rows: the encoder against transformers, sequences that cannot see each other, and the blocks that are staged."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertopt.backends import packed
from bertopt.backends.base import Artifact, Options
from bertopt.backends.packed_encoder import Linear, Norm, PlainOperations, Tables
from bertopt.backends.packed_graphs import by_row, fill, sequences_of, size_of, views
from bertopt.backends.packed_weights import FAMILIES, load
from bertopt.batching import Batch, Packed, TokenBudget, batches
from bertopt.errors import BackendUnavailable, ModelError, UsageError
from bertopt.model import open_checkpoint
from bertopt.text import Requests
from bertopt.tokens import Tokens
from bertopt.workspace import Workspace

HEADS = ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "Model"]
LENGTHS = [5, 2, 17, 64, 9]
cuda = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0), reason="wants a GPU of compute capability 8.0"
)
fp8 = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="wants a GPU of compute capability 8.9"
)


def tokens_of(lengths: list[int], types: int = 2, seed: int = 0) -> Tokens:
    random = np.random.default_rng(seed)
    total, offsets = sum(lengths), np.cumsum([0, *lengths])
    kinds = random.integers(0, types, total).astype(np.uint8) if types > 1 else None
    return Tokens(random.integers(6, 100, total).astype(np.int32), offsets, kinds)


def batch_of(tokens: Tokens, budget: int, max_length: int = 64) -> Batch:
    return Batch(np.arange(len(tokens)), tokens, Packed(budget, max_length))


def padded_logits(checkpoint: Any, tokens: Tokens) -> list[np.ndarray]:
    """What transformers says of each row alone."""
    module, rows = checkpoint.torch_module(), []
    kinds = np.zeros_like(tokens.ids) if tokens.type_ids is None else tokens.type_ids
    with torch.inference_mode():
        for start, end in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True):
            ids, types = (torch.from_numpy(a[start:end].astype(np.int64))[None] for a in (tokens.ids, kinds))
            rows.append(module(ids, torch.ones_like(ids), types)[0].numpy())
    return rows


def answers(session: Any, batch: Batch) -> np.ndarray:
    result: np.ndarray = session.launch(session.stage(batch)).result()
    return result


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_every_family_and_head_gives_what_transformers_gives(
    kind: str, head: str, checkpoint_folder: Callable[..., Path]
) -> None:
    checkpoint = open_checkpoint(str(checkpoint_folder(kind, head=head)))
    tokens = tokens_of(LENGTHS, types=2 if checkpoint.uses_type_ids else 1)
    with packed.open(Artifact(checkpoint, "fp32"), Options(threads=1, pad_id=checkpoint.pad_id)) as session:
        found = answers(session, batch_of(tokens, 128))
    for row, right in enumerate(padded_logits(checkpoint, tokens)):
        mine = found[row, : len(right)] if right.ndim == 2 else found[row]
        np.testing.assert_allclose(mine, right, atol=2e-5)


@pytest.mark.parametrize("activation", ["gelu_new", "relu"])
def test_other_activations(activation: str, checkpoint_folder: Callable[..., Path]) -> None:
    checkpoint = open_checkpoint(str(checkpoint_folder("bert", hidden_act=activation)))
    tokens = tokens_of(LENGTHS)
    with packed.open(Artifact(checkpoint, "fp32"), Options(threads=1)) as session:
        found = answers(session, batch_of(tokens, 128))
    np.testing.assert_allclose(found, np.stack(padded_logits(checkpoint, tokens)), atol=2e-5)


def test_an_embedding_by_the_first_token_and_of_length_one(checkpoint_folder: Callable[..., Path], tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "embedder"
    shutil.copytree(checkpoint_folder("bert", head="Model"), folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (folder / "modules.json").write_text('[{"type": "m.Transformer"}, {"type": "m.Pooling"}, {"type": "m.Normalize"}]')
    checkpoint, tokens = open_checkpoint(str(folder)), tokens_of(LENGTHS)
    with packed.open(Artifact(checkpoint, "fp32"), Options(threads=1)) as session:
        found = answers(session, batch_of(tokens, 128))
    np.testing.assert_allclose(found, np.stack(padded_logits(checkpoint, tokens)), atol=2e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_no_sequence_sees_its_neighbour(head: str, checkpoint_folder: Callable[..., Path]) -> None:
    encoder = load(open_checkpoint(str(checkpoint_folder("bert", head=head))))
    check_isolation(encoder, "cpu", tolerance=1e-5)


def check_isolation(encoder: Any, device: str, tolerance: float) -> None:
    """Another content leaves every other sequence's logits bit-equal; another length within the tolerance."""

    def logits(ids: np.ndarray, lengths: list[int]) -> list[np.ndarray]:
        cu = np.cumsum([0, *lengths, 128 - sum(lengths), 0, 0]).astype(np.int32)
        row = np.zeros(128, np.int32)
        row[: len(ids)] = ids
        inputs = (torch.from_numpy(a).to(device) for a in (row, np.zeros_like(row), cu))
        out = encoder(*inputs, 64).cpu().numpy()
        bounds = np.cumsum([0, *lengths])
        return [out[a:b] if encoder.head.pooling == "token" else out[i] for i, (a, b) in enumerate(itertools.pairwise(bounds))]

    ids = tokens_of(LENGTHS).ids
    before = logits(ids, LENGTHS)
    changed = ids.copy()
    changed[7:24] = 99 - changed[7:24] + 6
    after = logits(changed, LENGTHS)
    assert not np.array_equal(before[2], after[2])
    for row in (0, 1, 3, 4):
        assert np.array_equal(before[row], after[row])
    shorter = logits(np.concatenate([ids[:10], ids[24:]]), [5, 2, 3, 64, 9])
    for row in (0, 1, 3, 4):
        np.testing.assert_allclose(shorter[row], before[row], atol=tolerance)


@given(st.lists(st.integers(2, 40), min_size=1, max_size=40), st.integers(40, 64), st.booleans())
def test_a_block_holds_the_rows_and_a_fill_that_no_row_can_notice(lengths: list[int], max_length: int, pairs: bool) -> None:
    tokens = tokens_of(lengths, types=2 if pairs else 1)
    policy = TokenBudget((64, 256, 512), max_length, max_rows=32)
    seen: list[int] = []
    for batch in batches([tokens], policy):
        block = np.full(size_of(batch.layout.budget), -1, np.int32)  # type: ignore[union-attr]
        fill(block, batch, pad_id=1)
        budget, used, rows = batch.computed_tokens, batch.real_tokens, batch.rows
        cu_seqlens, ids, types = views(block, budget)
        steps = np.diff(cu_seqlens)
        assert len(cu_seqlens) == sequences_of(budget) + 1
        assert cu_seqlens[0] == 0
        assert cu_seqlens[-1] == budget
        assert np.array_equal(steps[:rows], batch.tokens.lengths)
        assert ((steps[rows:] >= 0) & (steps[rows:] <= max_length)).all()
        assert np.array_equal(ids[:used], batch.tokens.ids)
        assert (ids[used:] == 1).all()
        assert (types[used:] == 0).all()
        assert np.array_equal(types[:used], batch.tokens.type_ids if pairs else np.zeros(used))
        seen += batch.positions.tolist()
    assert sorted(seen) == list(range(len(lengths)))


def test_a_batch_that_does_not_fit_is_refused_with_its_size() -> None:
    with pytest.raises(UsageError, match="2 rows of 100 tokens do not fit into a packed batch of 64 tokens"):
        fill(np.empty(size_of(64), np.int32), batch_of(tokens_of([50, 50]), 64), 0)


def test_per_token_logits_go_back_into_rows() -> None:
    flat = np.arange(12, dtype=np.float32).reshape(6, 2)
    rows = by_row(flat, batch_of(tokens_of([2, 3]), 6))
    assert rows.shape == (2, 3, 2)
    assert np.array_equal(rows[0], [[0, 1], [2, 3], [0, 0]])
    assert np.array_equal(rows[1], flat[2:5])


def test_calibration_sees_the_largest_input_and_fp8_stays_near(tiny: Path) -> None:
    checkpoint, tokens = open_checkpoint(str(tiny)), tokens_of(LENGTHS)
    encoder = load(checkpoint)
    parts = list(packed.calibration_batches(tokens, "cpu"))
    amax = encoder.calibrate(parts)
    assert set(amax) == {f"layers.{i}.{part}" for i in (0, 1) for part in ("qkv", "out", "up", "down")}
    x, _, _ = encoder.operations.embed(encoder.tables, *parts[0], 64, None)
    assert amax["layers.0.qkv"] == pytest.approx(float(x.abs().max()))

    before = encoder(*parts[0], 64)
    encoder.quantize(amax)
    assert encoder.layers[0].up.weight.dtype == torch.float8_e4m3fn
    after = encoder(*parts[0], 64)
    difference = float((after - before).abs().max() / before.std())
    assert 0.0 < difference < 0.5
    with pytest.raises(ModelError, match="no such product"):
        encoder.quantize({"layers.9.up": 1.0})


def test_ranges_belong_to_the_texts_that_they_were_observed_on(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTOPT_CACHE", str(tiny / "cache"))
    workspace = Workspace(open_checkpoint(str(tiny)))
    with pytest.raises(BackendUnavailable, match="representative texts"):
        packed.input_ranges(workspace)
    workspace.texts = ["the measured ones"]
    measured = packed.input_ranges(workspace)
    workspace.calibration_texts = Requests(["some others"])  # of the same number
    assert packed.input_ranges(workspace) != measured
    del workspace.calibration_texts
    assert packed.input_ranges(workspace) == measured


def test_calibration_batches_are_bounded_and_lose_no_row() -> None:
    tokens = tokens_of([60] * 300)
    parts = list(packed.calibration_batches(tokens, "cpu"))
    assert len(parts) > 1
    assert max(len(ids) for ids, _, _ in parts) <= packed.CALIBRATION_TOKENS + 60
    assert np.array_equal(torch.cat([ids for ids, _, _ in parts]).numpy(), tokens.ids)


def test_e4m3_puts_the_largest_value_on_448_and_saturates() -> None:
    linear = Linear(torch.eye(16), torch.zeros(16))
    linear.quantize(2.0)
    taken = linear.take(torch.tensor([[2.0, -2.0, 100.0, 0.5] + [0.0] * 12]))
    assert taken.dtype == torch.float8_e4m3fn
    assert taken[0, :4].float().tolist() == [448.0, -448.0, 448.0, 112.0]


def test_families_and_devices_that_cannot_are_skipped_with_the_reason(checkpoint_folder: Callable[..., Path]) -> None:
    albert = open_checkpoint(str(checkpoint_folder("albert")))
    with pytest.raises(BackendUnavailable, match="is a albert"):
        packed.prepare(SimpleNamespace(checkpoint=albert, device="cpu"), "half")
    with pytest.raises(ModelError, match="not albert"):
        load(albert)
    assert "OpenVINO" in (packed.available("cpu") or "")


# The kernels: in Triton's interpreter without a GPU, compiled on one


@pytest.fixture(scope="module")
def kernels() -> Any:
    return pytest.importorskip("bertopt.backends.packed_kernels", reason="Triton is not installed", exc_type=ImportError)


def pieces(device: str, quantized: bool) -> dict[str, Any]:
    """An encoder's parts, of a width that is no power of two."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, spread: float = 1.0) -> Any:
        return (torch.randn(shape, generator=generator) * spread).half().to(device)

    def linear(outputs: int, inputs: int, amax: float) -> Linear:
        made = Linear(draw(outputs, inputs, spread=0.2), draw(outputs))
        if quantized:
            made.quantize(amax)
        return made

    norm = Norm(draw(48), draw(48), 1e-12)
    cu = torch.tensor([0, 3, 20, 21, 50, 50, 50], dtype=torch.int32, device=device)
    return {
        "tables": Tables(draw(100, 48), draw(64, 48), draw(2, 48), norm, 2),
        "ids": torch.randint(0, 100, (50,), generator=generator).int().to(device),
        "types": torch.randint(0, 2, (50,), generator=generator).int().to(device),
        "cu": cu,
        "norm": norm,
        "qkv": linear(144, 48, 30.0),
        "out": linear(48, 48, 20.0),
        "up": linear(80, 48, 30.0),
        "down": linear(48, 80, 40.0),
    }


def check_kernels(kernels: Any, device: str, quantized: bool, choices: dict[str, Any]) -> None:
    """Every kernel against plain torch on the same inputs: FP16 within its rounding, E4M3 within one of its steps (1/8)."""
    p = pieces(device, quantized)
    plain, ours = PlainOperations(), kernels.KernelOperations(kernels.Choices(**choices))

    def near(a: Any, b: Any) -> None:
        step = 0.13 if a.dtype == torch.float8_e4m3fn else 4e-3
        assert a.dtype == b.dtype
        torch.testing.assert_close(a.float(), b.float(), rtol=step, atol=step)

    x, taken, rows = plain.embed(p["tables"], p["ids"], p["types"], p["cu"], 64, p["qkv"])
    found = ours.embed(p["tables"], p["ids"], p["types"], p["cu"], 64, p["qkv"])
    near(found[0], x)
    near(found[1], taken)
    assert torch.equal(found[2].starts, rows.starts)
    assert torch.equal(found[2].ends, rows.ends)
    qkv = p["qkv"](taken)
    context = plain.attention(qkv, rows, 3, p["out"])
    near(ours.attention(qkv, rows, 3, p["out"]), context)
    product = p["out"](context, add_bias=False)
    x, taken = plain.add_norm(product, p["out"], x, p["norm"], p["up"])
    for mine, right in zip(ours.add_norm(product, p["out"], found[0], p["norm"], p["up"]), (x, taken), strict=True):
        near(mine, right)
    near(ours.up(taken, p["up"], p["down"]), plain.up(taken, p["up"], p["down"]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the compiled kernels are tested instead")
def test_kernels_in_tritons_interpreter() -> None:
    pytest.importorskip("triton", reason="Triton is not installed; pip install triton lets its interpreter run without a GPU")
    script = """
from bertopt.backends import packed_kernels as kernels
from tests.test_packed import check_kernels
for up in (None, kernels.Tile(32, 32, 16, 4, 2)):
    for gelu in ("erf", "polynomial"):
        check_kernels(kernels, "cpu", False, {"up": up, "attention": kernels.Tile(16, 16, 0, 4, 2), "gelu": gelu})
"""
    # Its own process: the interpreter is chosen when Triton is imported. E4M3 is left out, whose rounding is wrong there.
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@cuda
def test_kernels_compiled_with_every_choice(kernels: Any) -> None:
    for gelu in ("erf", "polynomial", "tanh"):
        check_kernels(kernels, "cuda", False, {"up": None, "gelu": gelu})
        for overlap in (False, True):
            for warps in (1, 4):
                check_kernels(kernels, "cuda", False, {"gelu": gelu, "overlap": overlap, "norm_warps": warps})


@fp8
def test_kernels_compiled_in_fp8(kernels: Any) -> None:
    for up in (None, kernels.Tile(64, 64, 32, 4, 2)):
        check_kernels(kernels, "cuda", True, {"up": up})


@cuda
@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_the_cuda_session_agrees_with_the_host_session(kind: str, checkpoint_folder: Callable[..., Path]) -> None:
    for head in HEADS:
        checkpoint = open_checkpoint(str(checkpoint_folder(kind, head=head)))
        batch = batch_of(tokens_of(LENGTHS, types=2 if checkpoint.uses_type_ids else 1), 128)
        with packed.open(Artifact(checkpoint, "fp32"), Options(threads=1)) as host:
            right = answers(host, batch)
        with packed.open(Artifact(checkpoint, "fp16"), Options("cuda", in_flight=2, pinned=True)) as session:
            found = answers(session, batch)
        np.testing.assert_allclose(found, right, atol=0.05 * right.std() + 5e-3)


@cuda
def test_no_sequence_sees_its_neighbour_on_cuda(tiny: Path, kernels: Any) -> None:
    encoder = load(open_checkpoint(str(tiny)), torch.float16, "cuda")
    encoder.operations = kernels.KernelOperations()
    check_isolation(encoder, "cuda", tolerance=5e-3)


@cuda
def test_ten_thousand_batches_of_random_lengths_do_not_move_memory(tiny: Path) -> None:
    random = np.random.default_rng(0)
    with packed.open(Artifact(open_checkpoint(str(tiny)), "fp16"), Options("cuda", in_flight=2, pinned=True)) as session:
        sizes = (256, 512, 1024)
        some = []
        for _ in range(100):
            lengths = random.integers(2, 64, random.integers(1, 16))
            budget = next(b for b in sizes if b >= lengths.sum())
            some.append(batch_of(tokens_of(lengths.tolist(), seed=int(random.integers(1 << 30))), budget))
        right = [answers(session, batch) for batch in some]
        reserved, pinned = torch.cuda.memory_reserved(), torch.cuda.host_memory_stats()["allocated_bytes.current"]
        waiting = []
        for n in range(10_000):
            waiting.append((n % 100, session.launch(session.stage(some[n % 100]))))
            if len(waiting) == 2:
                which, pending = waiting.pop(0)
                assert np.array_equal(pending.result(), right[which])
        for _, pending in waiting:
            pending.result()
        assert torch.cuda.memory_reserved() == reserved
        assert torch.cuda.host_memory_stats()["allocated_bytes.current"] <= pinned + (4 << 20)
