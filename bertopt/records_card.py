"""What a card's counters said of one window: activity, power, energy, clocks, and why the clocks were held back."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class CardReading:
    """Means over a window. None means not read, and `reasons` says why; `samples` is how often the card was polled."""

    seconds: float  # length of the window
    samples: int = 0
    sm_active: float | None = None  # share of the multiprocessors that had work, over time
    tensor_active: float | None = None
    dram_active: float | None = None  # share of the memory's peak bandwidth
    nvidia_smi: float | None = None
    power_w: float | None = None  # from the energy counter where there is one, else the mean of the samples
    power_from: str | None = None  # "energy counter" or "samples"
    power_limit_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    memory_used_mib: float | None = None  # of the whole card, highest sample
    throttled: dict[str, float] = field(default_factory=dict)  # reason -> share of the samples in which it was active
    reasons: list[str] = field(default_factory=list)

    def energy_j_per_1000(self, sequences: float) -> float | None:
        """Joules for 1,000 sequences, where `sequences` were served in this window."""
        return None if self.energy_j is None or sequences <= 0 else 1000 * self.energy_j / sequences
