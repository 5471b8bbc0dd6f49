"""Every threshold of the rules, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """Shares are of one, times of a batch."""

    reached: float = 0.85  # share of a batch's time above which a stage is what binds
    worth: float = 0.08  # of a batch's time that mending a phase must give back to be worth saying
    structural: float = 0.01  # the same for faults that are seen themselves: a pageable buffer, a stray synchronization
    padding: float = 0.15  # share of computed tokens above which padding is worth removing
    kernels_idle: float = 0.6  # kernel-busy below which launching is what takes the time
    flat: float = 0.75  # time of a row in a larger batch over that in this one, below which this one is too small
    memory: float = 0.6  # share of the memory's bandwidth above which it binds
    low_arithmetic: float = 0.35  # share of the arithmetic's ceiling below which memory may be what binds
    throttled: float = 0.3  # share of the samples in which the card held its clocks back
    clocks_lost: float = 0.05  # of the maximum clock, below which throttling costs nothing to speak of
    contended: float = 0.15  # of the device's time that other work on the cores takes
    few_batches: int = 8  # below which a mean says nothing
    spread: float = 0.25  # of the repeats, above which a verdict has to hold in each of them and to bring more than that
    balanced: float = 0.25  # difference of the two slowest stages that still counts as balance
    held: float = 0.15  # difference of measured and predicted throughput within which a prediction held
