"""No padding at all: sequences end to end, our own encoder, replayed from CUDA graphs over a few token budgets.

A budget is a fixed number of tokens and of cumulative lengths, so that one captured graph serves every batch that fits.
What a batch leaves over is filled with sequences that nobody reads. Nothing is compiled but the Triton kernels, whose code
Triton keeps between runs; a budget is captured at the first sight of it, in a fraction of a second.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertopt.backends.base import Artifact, Options
from bertopt.backends.cuda import CudaPending, CudaSession, Staged
from bertopt.backends.host import HostSession
from bertopt.backends.packed_graphs import Captured, by_row, fastest, fill, size_of, views
from bertopt.batching import Batch, Packed
from bertopt.errors import BackendUnavailable, UsageError
from bertopt.files import write_text
from bertopt.tokens import Tokens

if TYPE_CHECKING:
    import torch

LARGEST_BUDGET = 1 << 15  # tokens; the buffers that batches are staged in hold this many
CALIBRATION_TOKENS = 4096  # of a calibration batch; attention keeps its sequences apart, so any number gives the same ranges


def available(device: str) -> str | None:
    if device != "cuda":
        return CPU_REASON
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed: pip install 'bertopt[torch]'"
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device: nvidia-smi tells whether the driver does"
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    if capability < (8, 0):
        return f"{name} has compute capability {capability[0]}.{capability[1]}, and packing wants 8.0 (A100, L4) or newer"
    return None


CPU_REASON = "on a CPU length buckets waste little and OpenVINO is faster (benchmarks/results/packed-cpu.md)"


def prepare(workspace: Any, precision: str) -> Artifact:
    """Precisions: "half" (FP16), "bf16", "fp8" (E4M3 products, by calibrated ranges)."""
    from bertopt.backends.packed_weights import FAMILIES

    checkpoint = workspace.checkpoint
    if checkpoint.model_type not in FAMILIES:
        raise BackendUnavailable(f"packing serves {', '.join(FAMILIES)}, and {checkpoint.name} is a {checkpoint.model_type}")
    info = {}
    if precision == "fp8":
        import torch

        if torch.cuda.get_device_capability() < (8, 9):
            raise BackendUnavailable(f"{torch.cuda.get_device_name()} has no FP8: that wants compute capability 8.9 or newer")
        info = {"amax": input_ranges(workspace)}
    return Artifact(checkpoint, "fp16" if precision == "half" else precision, checkpoint.uses_type_ids, info)


def input_ranges(workspace: Any) -> dict[str, float]:
    """Largest input of each product over calibration texts, by `Encoder.sites`' names; kept in the workspace's cache.

    The texts are the workspace's `calibration_texts`, else the measured ones, which then prove nothing about themselves.
    """
    from bertopt.backends.packed_weights import load
    from bertopt.calibration import SAMPLES
    from bertopt.text import Requests

    requests = getattr(workspace, "calibration_texts", None) or Requests(workspace.texts, name="the measured texts")
    if not len(requests):
        raise BackendUnavailable("FP8 wants representative texts to calibrate on, and there are none")
    requests = requests.take(np.unique(np.linspace(0, len(requests) - 1, min(SAMPLES, len(requests))).astype(np.int64)))
    path = workspace.folder / f"e4m3-ranges-{requests.fingerprint}.json"
    if not path.exists():
        checkpoint = workspace.checkpoint
        tokens = checkpoint.tokenizer(checkpoint.max_positions).encode(requests.texts, requests.pairs)
        encoder = load(checkpoint, device=workspace.device)
        write_text(path, json.dumps(encoder.calibrate(calibration_batches(tokens, workspace.device)), indent=1))
    return dict(json.loads(path.read_text(encoding="utf-8")))


def calibration_batches(tokens: Tokens, device: str) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(ids, types, cu_seqlens) of consecutive rows, about CALIBRATION_TOKENS at a time."""
    import torch

    groups = (tokens.offsets[1:] - 1) // CALIBRATION_TOKENS  # by each row's last token
    for group in np.unique(groups):
        part = tokens.take(np.flatnonzero(groups == group))
        types = np.zeros_like(part.ids) if part.type_ids is None else part.type_ids.astype(np.int32)
        yield tuple(torch.from_numpy(a).to(device) for a in (part.ids, types, part.offsets.astype(np.int32)))  # type: ignore[misc]


def open(artifact: Artifact, options: Options) -> PackedCudaSession | PackedHostSession:
    return PackedCudaSession(artifact, options) if options.device == "cuda" else PackedHostSession(artifact, options)


class PackedHostSession(HostSession):
    """The encoder in plain torch on the CPU, FP32 or BF16: the reference of the GPU's, and what packing gives there."""

    layouts: ClassVar[tuple[str, ...]] = ("packed",)

    def __init__(self, artifact: Artifact, options: Options) -> None:
        super().__init__(options, artifact.uses_type_ids)
        import torch

        from bertopt.backends.packed_weights import load

        self._torch, self.precision = torch, artifact.precision
        self._encoder = load(artifact.content, torch.bfloat16 if self.precision == "bf16" else torch.float32)
        self.version = f"PyTorch {torch.__version__}, {self.threads} threads"

    def start_thread(self) -> None:
        self._torch.set_num_threads(self.threads)

    def stage(self, batch: Batch) -> Any:
        assert isinstance(batch.layout, Packed)
        block = np.empty(size_of(batch.layout.budget), np.int32)
        fill(block, batch, self._pad_id)
        return block, batch

    def compute(self, feeds: Any) -> NDArray[np.float32]:
        block, batch = feeds
        cu_seqlens, ids, types = views(self._torch.from_numpy(block), batch.layout.budget)
        with self._torch.inference_mode():
            logits: NDArray[np.float32] = self._encoder(ids, types, cu_seqlens, batch.layout.max_length).numpy()
        return by_row(logits, batch) if self._encoder.head.pooling == "token" else logits[: batch.rows]


@dataclass
class PackedPending:
    """The launched batch; per-token logits are put in rows when they are read."""

    pending: CudaPending
    batch: Batch
    per_token: bool

    def result(self) -> NDArray[np.float32]:
        logits = self.pending.result()
        return by_row(logits, self.batch) if self.per_token else logits

    @property
    def times(self) -> Any:
        return self.pending.times


class PackedCudaSession(CudaSession):
    """FP16, BF16 or FP8 on the current CUDA device. What a budget runs fastest with is measured when it is captured."""

    layouts: ClassVar[tuple[str, ...]] = ("packed",)

    def __init__(self, artifact: Artifact, options: Options) -> None:
        super().__init__(options, artifact.uses_type_ids)
        from bertopt.backends.packed_weights import load

        torch, self.precision = self.torch, artifact.precision
        self._encoder = load(artifact.content, torch.bfloat16 if self.precision == "bf16" else torch.float16, "cuda")
        if self.precision == "fp8":
            self._encoder.quantize(artifact.info["amax"])
        self._max_length = artifact.content.max_positions
        self._captured: dict[int, Captured] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._capture_s = 0.0
        self.version = self._libraries = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}"

    def stage(self, batch: Batch) -> Any:
        assert isinstance(batch.layout, Packed)
        budget = batch.layout.budget
        if budget > LARGEST_BUDGET:
            raise UsageError(f"a packed batch has at most {LARGEST_BUDGET} tokens, and this one is of {budget}")
        captured = self._captured.get(budget) or self._capture(budget)
        slot = self._slot((size_of(LARGEST_BUDGET) + 1) // 2)  # of int64
        host, device = (side.view(self.torch.int32)[: size_of(budget)] for side in (slot.host, slot.device))
        fill(host.numpy(), batch, self._options.pad_id)
        return self._copy(slot, device, host, {"captured": captured, "block": device, "batch": batch})

    def run(self, inputs: dict[str, Any]) -> Any:
        captured, batch = inputs["captured"], inputs["batch"]
        captured.inputs.copy_(inputs["block"])
        captured.graph.replay()
        return captured.logits[: batch.real_tokens if self._encoder.head.pooling == "token" else batch.rows].clone()

    def launch(self, staged: Staged) -> Any:
        return PackedPending(super().launch(staged), staged.inputs["batch"], self._encoder.head.pooling == "token")

    def _capture(self, budget: int) -> Captured:
        start = time.perf_counter()
        with self.torch.cuda.stream(self.stream), self.torch.inference_mode():
            self._captured[budget] = fastest(self._encoder, budget, self._max_length, self._pool)
        self._capture_s += time.perf_counter() - start
        self.version = f"{self._libraries}; {len(self._captured)} budgets captured in {self._capture_s:.1f} s"
        return self._captured[budget]

    def close(self) -> None:
        super().close()
        self._captured.clear()
