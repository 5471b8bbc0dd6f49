"""`bertopt plan-host`: how many workers a device wants, how far ahead they should work, and what padding costs.

Two times suffice: what preparing a batch costs a core, and what the device needs for it. Each figure is one formula of
`measure.arithmetic`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertopt.batching import Bucketed, Dynamic, Fixed, Policy, choose_edges, waste
from bertopt.errors import DataError, UsageError
from bertopt.measure import arithmetic
from bertopt.records import RungRecord
from bertopt.records_diagnosis import Observation


@dataclass(frozen=True)
class Option:
    """One number of workers; 0 is the loop that prepares each batch itself."""

    workers: int
    utilization: float
    batch_ms: float
    gain: float  # throughput over the serial loop


@dataclass(frozen=True)
class HostPlan:
    """What the two times of a batch call for."""

    host_ms: float
    device_ms: float
    workers: int  # those that keep the device busy, or as many as there are cores for
    needed: int  # those that keep the device busy
    prefetch: int  # batches that are prepared ahead
    options: list[Option]

    def lines(self) -> list[str]:
        """The plan as plain lines."""
        shown = [
            f"{self.host_ms:.4g} ms of host work over {self.device_ms:.4g} ms on the device, a batch",
            "",
            "workers  device busy  a batch   over serial",
        ]
        for o in self.options:
            mark = "  <- enough" if o.workers == self.needed else ""
            name = str(o.workers) if o.workers else "serial"
            shown.append(f"{name:>7}  {o.utilization:>10.0%}  {o.batch_ms:>5.1f} ms  {o.gain:>10.2f}x{mark}")
        ahead = f"Prefetch {self.prefetch} batches: one in the making for each worker, one that waits."
        return [*shown, "", f"{self._enough()} {ahead}"]

    def _enough(self) -> str:
        if self.workers < self.needed:
            idle = 1 - arithmetic.overlapped_utilization(self.host_ms, self.device_ms, self.workers)
            return f"{self.needed} workers would keep the device busy; with {self.workers} it waits {idle:.0%} of the time."
        if self.workers == 1:
            return "1 worker on a core of its own keeps the device busy; more do not help."
        return f"{self.workers} workers on cores of their own keep the device busy; more do not help."


def plan(host_ms: float, device_ms: float, cores: int | None = None) -> HostPlan:
    """What `host_ms` of preparing a batch on one core and `device_ms` on the device call for.

    Raises UsageError where a time is not positive. `cores` bounds the workers.
    """
    for option, value in (("--host-ms", host_ms), ("--device-ms", device_ms)):
        if not value > 0 or math.isinf(value):
            raise UsageError(f"{option} {value:g}: a time in milliseconds above 0")
    enough = arithmetic.workers_needed(host_ms, device_ms)
    workers = min(enough, cores) if cores else enough
    serial_ms = host_ms + device_ms
    options = [Option(0, arithmetic.serial_utilization(host_ms, device_ms), serial_ms, 1.0)]
    for count in _shown(enough):
        busy = arithmetic.overlapped_utilization(host_ms, device_ms, count)
        options.append(Option(count, busy, device_ms / busy, serial_ms / (device_ms / busy)))
    return HostPlan(host_ms, device_ms, workers, enough, workers + 1, options)


def _shown(enough: int) -> list[int]:
    """One worker to one too many; where that is a long list, powers of two up to the interesting end."""
    if enough <= 8:
        return list(range(1, enough + 2))
    return [*(2**i for i in range(int(math.log2(enough)) + 1) if 2**i < enough - 1), enough - 1, enough, enough + 1]


def times_of(record: RungRecord | Observation) -> tuple[float, float]:
    """(host, device) milliseconds of a batch, of a rung of a run or of a diagnosis. Raises UsageError where one is unknown."""
    parts = (record.tokenize_ms, record.collate_ms, record.postprocess_ms)
    device = getattr(record, "device_alone_ms", None) or record.device_ms
    host = sum(part for part in parts if part is not None)
    if device is None or not host:
        raise UsageError("the run has no times of tokenizing and of the device: give --host-ms and --device-ms")
    return host, device


def read_lengths(path: Path) -> NDArray[np.int64]:
    """Lengths in tokens, a number a line; a header and blank lines are skipped. Raises DataError where there are none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as lengths: {error}") from None
    lengths = []
    for row, line in enumerate(text.splitlines(), 1):
        word = line.split(",")[0].strip()
        if not word or (row == 1 and not word.isdigit()):
            continue
        if not word.isdigit() or int(word) < 1:
            raise DataError(f"{path}, row {row}: {word!r} is no length in tokens")
        lengths.append(int(word))
    if not lengths:
        raise DataError(f"{path} holds no lengths")
    return np.asarray(lengths, dtype=np.int64)


def padding_lines(
    lengths: NDArray[np.int64],
    batch_size: int,
    longest: int,
    *,
    hidden: int,
    intermediate: int,
    layers: int,
    window: int = 1024,
) -> list[str]:
    """What each batching policy wastes on these lengths, and what the encoder then computes."""
    cut = np.minimum(lengths, longest)
    edges = choose_edges(cut, longest, batch_size=batch_size, window=max(window, batch_size))
    policies: Sequence[Policy] = (
        Fixed(batch_size, longest),
        Dynamic(batch_size),
        Bucketed(batch_size, edges, max(window, batch_size)),
    )
    useful = arithmetic.encoder_flops(float(cut.sum()), float((cut**2).sum()), hidden, intermediate, layers)
    shown = [
        f"{len(cut):,} requests, mean {cut.mean():.1f} tokens, median {np.median(cut):.0f}, longest {cut.max()}, "
        f"padded to at most {longest}",
        "",
        f"{'policy':<18}{'padding':>9}{'attention':>11}{'GFLOP a request':>17}{'over useful':>13}",
    ]
    for policy in policies:
        tokens, pairs = waste(cut, policy)
        spent = arithmetic.encoder_flops(cut.sum() / (1 - tokens), (cut**2).sum() / (1 - pairs), hidden, intermediate, layers)
        shown.append(f"{policy.name:<18}{tokens:>9.1%}{pairs:>11.1%}{spent / len(cut) / 1e9:>17.2f}{spent / useful:>12.2f}x")
    return shown
