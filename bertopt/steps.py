"""`bertopt.record_steps()`: where the time of any PyTorch training loop goes, and the card that says what to do about it.

    with bertopt.record_steps(warmup=100) as steps:
        for batch in steps.over(loader):
            with steps.phase("copy"):
                batch = {name: tensor.to("cuda", non_blocking=True) for name, tensor in batch.items()}
            with steps.phase("forward"):
                loss = model(**batch).loss
            with steps.phase("backward"):
                loss.backward()
            with steps.phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            steps.done(batch["attention_mask"])

Nobody's classes are patched. On CUDA a phase ends with an event on the current stream, and no event is ever waited for in the
loop: steps are folded into sums when the device has passed them. Between two events lies one phase, so the phases add up to the
step, and what is timed ends with the last step's last phase. Warm-up steps are left out; two of them are looked at with the
profiler and PyTorch's own check for synchronizations.
"""

from __future__ import annotations

import collections
import contextlib
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from bertopt.measure.gpu import GpuProbe
from bertopt.records_diagnosis import Diagnosis, Observation

BLOCKS = 5  # of the measured steps, whose means show the spread
Batch = TypeVar("Batch")


class _Marks:
    """The ends of one step's phases: events on a card, clock readings on a CPU."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.at: list[Any] = []


class Steps:
    """See the module. `record` is there when the block has ended."""

    record: Diagnosis | None = None

    def __init__(
        self,
        *,
        warmup: int = 10,
        device: str | None = None,
        precision: str = "fp32",
        input_phase: str = "tokenize",
        flops_per_step: float | None = None,
        about: dict[str, str] | None = None,
        out: Path | str | None = None,
        command: str | None = None,
        profile: bool = True,
        quiet: bool = False,
    ) -> None:
        if input_phase not in ("tokenize", "collate"):
            raise ValueError(f"input_phase is {input_phase!r}: what the loader does is tokenize or collate")
        import torch

        self._torch = torch
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.warmup, self.precision, self.flops = warmup, precision, flops_per_step
        self.input_phase, self.about, self.out, self.command, self.quiet = input_phase, about or {}, out, command, quiet
        self._profile = profile and self.device == "cuda"
        self._count = 0  # steps done
        self._open = _Marks()
        self._previous: Any = None  # the end of the step before
        self._waiting: collections.deque[tuple[Any, _Marks]] = collections.deque()
        self._free: list[Any] = []
        self._sums: list[dict[str, float]] = []  # a measured step each, milliseconds by phase
        self._input_s, self._host_s = [0.0], 0.0  # host clock: waiting for the loader, launching
        self._rows = self._computed = 0
        self._real: list[Any] = []
        self._length = 0
        self._cost_s = 0.0
        self._pinned: bool | None = None
        self._synchronizations: float | None = None
        self._busy: tuple[float | None, float | None] = (None, None)  # milliseconds in which a kernel ran, kernels
        self._watching = contextlib.ExitStack()
        self._gpu = GpuProbe(self.device)
        self._began_s = self._seconds = 0.0

    # What the loop calls

    def over(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of `loader`; waiting for each is the step's input."""
        source = iter(loader)
        while True:
            start = time.perf_counter()
            try:
                batch = next(source)
            except StopIteration:
                return
            self._input_s[-1] += time.perf_counter() - start
            if self._count < self.warmup and self._pinned is None:
                self._pinned = self._is_pinned(batch)
            yield batch

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A part of the step: "copy", "forward", "backward", "optimizer", or a name of one's own."""
        start = time.perf_counter()
        if not self._open.names:
            self._mark("input")
        began = time.perf_counter()
        self._cost_s += began - start
        yield
        ended = time.perf_counter()
        self._host_s += ended - began
        self._mark(name)
        self._cost_s += time.perf_counter() - ended

    def done(self, mask: Any = None, *, rows: int | None = None) -> None:
        """The step is over. `mask` is its attention mask [rows, length], 1 on real tokens, on either device."""
        start = time.perf_counter()
        if self._count >= self.warmup:
            self._count_work(mask, rows)
            self._waiting.append((self._previous, self._open))
            self._fold(wait=False)
        else:
            self._length = max(self._length, int(mask.shape[1]) if mask is not None else 0)
        self._previous = self._open.at[-1] if self._open.at else self._previous
        self._open = _Marks()
        self._count += 1
        self._cost_s += time.perf_counter() - start
        if self._count <= self.warmup:
            self._warm()

    # What happens around it

    def __enter__(self) -> Steps:
        self._warm()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._watching.close()
        measuring = self._count >= self.warmup and bool(self._began_s)
        if measuring:
            self._wait()
            self._seconds = time.perf_counter() - self._began_s
            self._gpu.__exit__(None, None, None)
        if kind is not None:
            return
        self._fold(wait=True)
        from bertopt.diagnose import training

        self.record = training.conclude(self)

    def _warm(self) -> None:
        """Before each step up to the first measured one: what is looked at in it."""
        self._watching.close()
        left = self.warmup - self._count
        if left == 0:
            self._wait()  # once, outside what is measured
            self._cost_s = self._host_s = 0.0
            self._input_s = [0.0]
            if self.device == "cuda":
                self._torch.cuda.reset_peak_memory_stats()
                self._previous = self._event()
            else:
                self._previous = time.perf_counter()
            self._gpu.__enter__()
            self._began_s = time.perf_counter()
        elif self.device == "cuda" and self._count > 0:
            if left == 1:
                self._watching.enter_context(self._synchronizations_counted())
            elif left == 2 and self._profile:
                self._watching.enter_context(self._kernels_counted())

    @contextlib.contextmanager
    def _synchronizations_counted(self) -> Iterator[None]:
        cuda = self._torch.cuda
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                cuda.set_sync_debug_mode("default")
        self._synchronizations = float(sum("synchroniz" in str(w.message) for w in caught))

    @contextlib.contextmanager
    def _kernels_counted(self) -> Iterator[None]:
        from torch.profiler import ProfilerActivity, profile

        from bertopt.measure.activity import kernel_time

        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            yield
            self._wait()
        ran_ms, kernels = kernel_time(profiler.events())
        if kernels:
            self._busy = ran_ms, float(kernels)

    # Marks

    def _event(self) -> Any:
        event = self._free.pop() if self._free else self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _mark(self, name: str) -> None:
        self._open.names.append(name)
        self._open.at.append(self._event() if self.device == "cuda" else time.perf_counter())

    def _wait(self) -> None:
        if self.device == "cuda":
            self._torch.cuda.synchronize()

    def _fold(self, wait: bool) -> None:
        """Sums of the steps that the device has passed; `wait` only after the loop."""
        while self._waiting:
            before, marks = self._waiting[0]
            if not marks.at:
                self._waiting.popleft()
                continue
            if self.device == "cuda" and not wait and not marks.at[-1].query():
                return
            self._waiting.popleft()
            step: dict[str, float] = collections.defaultdict(float)
            for name, start, end in zip(marks.names, [before, *marks.at], marks.at, strict=False):
                step[name] += start.elapsed_time(end) if self.device == "cuda" else 1e3 * (end - start)
            self._sums.append(dict(step))
            if self.device == "cuda":
                self._free += [before, *marks.at[:-1]]  # the last one begins the next step

    def _count_work(self, mask: Any, rows: int | None) -> None:
        if mask is None:
            self._rows += rows or 0
            return
        self._rows += int(mask.shape[0])
        self._length = max(self._length, int(mask.shape[1]))
        self._computed += int(mask.shape[0]) * int(mask.shape[1])
        self._real.append(mask.sum())  # a tensor: on a card nothing is waited for until the end

    def _is_pinned(self, batch: Any) -> bool | None:
        tensors = (
            list(batch.values()) if isinstance(batch, dict) else list(batch) if isinstance(batch, (list, tuple)) else [batch]
        )
        found = [t.is_pinned() for t in tensors if isinstance(t, self._torch.Tensor) and t.device.type == "cpu"]
        return all(found) if found and self.device == "cuda" else None

    def observation(self) -> Observation:
        """What the measured steps say. Only after the loop."""
        import numpy as np

        steps = len(self._sums)
        if not steps:
            return Observation(device=self.device, training=True, missing={"batch_ms": "no step was measured"})
        names = list(dict.fromkeys(name for step in self._sums for name in step))
        mean = {name: float(np.mean([step.get(name, 0.0) for step in self._sums])) for name in names}
        totals = [sum(step.values()) for step in self._sums]
        idle, waited = mean.pop("input", 0.0), 1e3 * self._input_s[0] / steps
        # The device may stand still for the loader, or because the host was held up elsewhere
        loader = min(idle, waited)
        real = float(sum(float(r) for r in self._real))
        missing = {} if self.device == "cuda" else {"card": "a CPU has no counters of power and clocks"}
        if self.device == "cuda" and self._busy[0] is None:
            missing["kernel_busy"] = "no warm-up step was profiled"
        return Observation(
            device=self.device,
            training=True,
            rows=self._rows / steps,
            batches=steps,
            batch_ms=float(np.mean(totals)),
            repeats_ms=[float(np.mean(block)) for block in np.array_split(totals, min(BLOCKS, steps))],
            pinned=self._pinned,
            precision=self.precision,
            tokenize_ms=loader if self.input_phase == "tokenize" else None,
            collate_ms=loader if self.input_phase == "collate" else None,
            copy_in_ms=mean.get("copy"),
            launch_ms=1e3 * self._host_s / steps,
            device_ms=sum(ms for name, ms in mean.items() if name != "copy"),
            loop_ms={"input": loader, "stalled": idle - loader, **mean},
            synchronizations=self._synchronizations,
            launch_wait_ms=idle - loader,
            kernel_busy=None if self._busy[0] is None else min(1.0, self._busy[0] * steps / sum(totals)),
            kernels=self._busy[1],
            flops=self.flops,
            card=self._gpu.reading() if self.device == "cuda" else None,
            tokens=real / steps if self._real else None,
            padding_fraction=1.0 - real / self._computed if self._computed else None,
            probe_cost_fraction=1e3 * (self._cost_s + self._gpu.cost_s) / sum(totals),
            missing=missing,
        )

    @property
    def outside_s(self) -> float:
        """Seconds between the end of the last step and that of the block: a loader that ends its workers takes some."""
        return max(0.0, self._seconds - sum(sum(step.values()) for step in self._sums) / 1e3)

    @property
    def length(self) -> int:
        """The longest padded length that was seen."""
        return self._length


def record_steps(**settings: Any) -> Steps:
    """Record a training loop; see `bertopt.steps` for how it is used.

    warmup: steps that are left out. device: "cuda" or "cpu" (what there is). precision: what the loop computes in. input_phase:
    what its loader does, "tokenize" or "collate". flops_per_step: of forward and backward, for the share of the ceiling. about:
    what sets this run apart, for `bertopt compare`. out: the run's folder (runs/<time>-steps). profile: whether a warm-up
    step is profiled. quiet: print no card.
    """
    return Steps(**settings)
