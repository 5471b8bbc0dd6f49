"""The statistics of the gate: published values, the equation solved anew, and simulated candidates at the margin."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertopt.gate.intervals import (
    chances,
    design_effect,
    half_width,
    normal_quantile,
    rows_to_decide,
    rows_without_flips,
    score,
    tango,
    tost,
)

ALPHA = 0.05


# (worse, better, rows, alpha of each end, low, high)
PUBLISHED = [
    # Tango (1998), section 6.1, soft contact lenses: the lower limit of new - standard is -0.096
    (1, 0, 44, 0.05, None, 0.096),
    # PropCIs 0.3-0, scoreci.mp(25, 28, 618, conf.level = 0.90)
    (28, 25, 618, 0.05, -0.0148, 0.0247),
    # PropCIs 0.3-0, scoreci.mp(0, 7, 14, conf.level = 0.95)
    (7, 0, 14, 0.025, 0.1770, 0.7320),
]


@pytest.mark.parametrize(("worse", "better", "rows", "alpha", "low", "high"), PUBLISHED)
def test_tango_as_published(worse: int, better: int, rows: int, alpha: float, low: float | None, high: float) -> None:
    found = tango(worse, better, rows, alpha)
    decimals = 3 if low is None else 4
    assert round(found[1], decimals) == high
    assert low is None or round(found[0], decimals) == low


def test_tangos_statistic_as_published() -> None:
    assert round(-score(1, 0, 44, 0.1), 3) == 1.709  # his section 6.1, p = 0.044


def _profile_score(worse: int, better: int, rows: int, drop: float) -> float:
    """The score statistic from its definition: the flips' probability that is most likely under the drop, found on a grid."""
    p_better = np.linspace(max(0.0, -drop), (1 - drop) / 2, 200_001)[1:-1]
    likelihood = worse * np.log(p_better + drop) + better * np.log(p_better)
    rest = rows - worse - better
    likelihood += rest * np.log1p(-2 * p_better - drop)
    best = float(p_better[np.argmax(likelihood)])
    return (worse - better - rows * drop) / math.sqrt(rows * (2 * best + drop * (1 - drop)))


@pytest.mark.parametrize(("worse", "better", "rows"), [(2, 1, 872), (12, 3, 400), (3, 12, 400), (30, 25, 200), (1, 1, 25)])
def test_tango_solves_the_score_equation(worse: int, better: int, rows: int) -> None:
    low, high = tango(worse, better, rows, ALPHA)
    z = normal_quantile(1 - ALPHA)
    assert _profile_score(worse, better, rows, low) == pytest.approx(z, abs=2e-3)
    assert _profile_score(worse, better, rows, high) == pytest.approx(-z, abs=2e-3)


def test_no_flips_is_no_certainty() -> None:
    low, high = tango(0, 0, 872, ALPHA)
    z = normal_quantile(1 - ALPHA)
    assert high == pytest.approx(z * z / (872 + z * z))
    assert low == pytest.approx(-high)
    assert rows_without_flips(0.005, ALPHA) == 599  # 0.995^598 is 0.0499
    assert tost(0, 0, 597, 0.005, ALPHA).decision == "inconclusive"
    assert tost(0, 0, 599, 0.005, ALPHA).decision == "passed"


@pytest.mark.parametrize(("rows", "points"), [(20, 13.15), (872, 1.99), (2000, 1.31)])
def test_half_width_of_an_accuracy_of_90(rows: int, points: float) -> None:
    assert 100 * half_width(0.90, rows) == pytest.approx(points, abs=0.005)


@pytest.mark.parametrize(
    ("worse", "better", "rows", "decision"),
    [
        (1, 0, 20, "inconclusive"),
        (0, 1, 20, "inconclusive"),
        (2, 1, 872, "inconclusive"),
        (0, 0, 1, "inconclusive"),
        (0, 0, 2693, "passed"),
        (4, 3, 2693, "passed"),
        (60, 10, 2693, "failed"),
        (13, 0, 2693, "inconclusive"),
    ],
)
def test_verdicts_at_half_a_point(worse: int, better: int, rows: int, decision: str) -> None:
    assert tost(worse, better, rows, 0.005, ALPHA).decision == decision


@pytest.mark.parametrize(
    ("agreement", "net", "decision"),
    [(91.79, 49, "failed"), (97.40, 4, "inconclusive"), (99.48, -2, "passed"), (99.15, 1, "passed"), (99.96, 1, "passed")],
)
def test_plans_as_measured_on_sst2(agreement: float, net: int, decision: str) -> None:
    """ONNX Runtime's default, the same without MatMul outputs, SmoothQuant 0.95, NNCF, BF16; all flips of two labels count."""
    flips = round(2693 * (1 - agreement / 100))
    assert tost((flips + net) / 2, (flips - net) / 2, 2693, 0.005, ALPHA).decision == decision


counts = st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(81, 3000))


@settings(deadline=None)
@given(counts, st.sampled_from([0.01, 0.05, 0.2]))
def test_swapping_sides_mirrors_the_interval(flips: tuple[int, int, int], alpha: float) -> None:
    worse, better, rows = flips
    low, high = tango(worse, better, rows, alpha)
    assert tango(better, worse, rows, alpha) == pytest.approx((-high, -low), abs=1e-12)
    assert -1 <= low < (worse - better) / rows < high <= 1


@settings(deadline=None)
@given(counts)
def test_one_more_flip_for_the_worse_never_helps(flips: tuple[int, int, int]) -> None:
    worse, better, rows = flips
    first, second = tango(worse, better, rows, ALPHA), tango(worse + 1, better, rows, ALPHA)
    assert second[0] > first[0]
    assert second[1] > first[1]


ORDER = {"passed": 0, "inconclusive": 1, "failed": 2}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 25), st.integers(0, 25), st.integers(60, 1500), st.sampled_from([0.005, 0.01, 0.03]))
def test_verdict_is_monotone_in_the_flips(worse: int, better: int, rows: int, margin: float) -> None:
    here = ORDER[tost(worse, better, rows, margin, ALPHA).decision]
    assert ORDER[tost(worse + 1, better, rows, margin, ALPHA).decision] >= here
    assert ORDER[tost(worse, better + 1, rows, margin, ALPHA).decision] <= here


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(61, 800), st.sampled_from([0.0, 0.005, 0.02]))
def test_chances_cover_each_other(worse: int, better: int, rows: int, drop: float) -> None:
    good, bad = chances(worse, better, rows, drop)
    assert 0 < good <= 1
    assert 0 < bad <= 1
    assert good + bad >= 1  # the outcome seen is in both
    if drop == 0:
        assert chances(better, worse, rows, drop) == pytest.approx((bad, good))


# How often a candidate at the margin passes or fails


@functools.cache
def _decision(worse: int, better: int, rows: int, margin: float) -> str:
    """The verdict; exact chances are asked for only where Tango's interval excludes the margin: nothing else is decided."""
    if abs(score(worse, better, rows, margin)) < normal_quantile(1 - ALPHA) - 1e-6:
        return "inconclusive"
    return tost(worse, better, rows, margin, ALPHA).decision


@pytest.mark.parametrize("flips", [1.0, 2.0, 4.0, 10.0])  # as multiples of the margin: 1 is flips for the worse alone
def test_false_pass_rate_of_simulated_pairs(flips: float) -> None:
    margin, rows, pairs = 0.01, 400, 4000
    share = flips * margin
    cells = [(share + margin) / 2, (share - margin) / 2, 1 - share]
    drawn = np.random.default_rng(7).multinomial(rows, cells, pairs)
    verdicts = [_decision(int(worse), int(better), rows, margin) for worse, better, _ in drawn]
    noise = 2.33 * math.sqrt(ALPHA * (1 - ALPHA) / pairs)  # 99 % of draws of a rate of 5 % lie below
    assert verdicts.count("passed") / pairs <= ALPHA + noise
    assert verdicts.count("failed") / pairs <= ALPHA + noise


@pytest.mark.parametrize(("rows", "margin"), [(20, 0.005), (100, 0.02), (539, 0.005), (872, 0.0025)])
def test_false_rates_are_at_most_5_percent_exactly(rows: int, margin: float) -> None:
    """Every outcome weighed with its probability: Tango's interval alone passes 6.7 % at 539 rows and half a point."""
    few = 20
    outcomes = [(w, b) for w, b in itertools.product(range(few), range(few)) if w + b <= min(rows, few)]
    verdicts = [_decision(w, b, rows, margin) for w, b in outcomes]
    worst_pass = worst_fail = 0.0
    for share in margin * np.geomspace(1.0, max(1.0, 6.0 / (rows * margin)), 12):
        p_worse, p_better = (share + margin) / 2, (share - margin) / 2
        chance = [_trinomial(w, b, rows, p_worse, p_better) for w, b in outcomes]
        worst_pass = max(worst_pass, sum(c for c, v in zip(chance, verdicts, strict=True) if v == "passed"))
        worst_fail = max(worst_fail, sum(c for c, v in zip(chance, verdicts, strict=True) if v == "failed"))
    assert worst_pass <= ALPHA
    assert worst_fail <= ALPHA


def _trinomial(worse: int, better: int, rows: int, p_worse: float, p_better: float) -> float:
    if better and p_better <= 0:
        return 0.0
    ways = math.comb(rows, worse) * math.comb(rows - worse, better)
    return float(ways) * p_worse**worse * p_better**better * (1 - p_worse - p_better) ** (rows - worse - better)


def test_tango_alone_would_pass_too_many() -> None:
    """Why there are exact chances at all: with no flip among 539 rows the interval ends under half a point."""
    assert tango(0, 0, 539, ALPHA)[1] < 0.005
    assert 0.995**539 > 0.067
    assert tost(0, 0, 539, 0.005, ALPHA).decision == "inconclusive"


@pytest.mark.parametrize(("worse", "better", "rows"), [(20, 10, 2693), (2, 1, 872), (0, 0, 20), (0, 0, 590), (2, 0, 120)])
def test_the_rows_needed_decide_when_flips_go_on_as_they_are(worse: int, better: int, rows: int) -> None:
    assert tost(worse, better, rows, 0.005, ALPHA).decision == "inconclusive"
    needed = rows_to_decide(worse, better, rows, 0.005, ALPHA)
    assert needed is not None
    factor = 1.15 * needed / rows
    there = tost(worse * factor, better * factor, rows * factor, 0.005, ALPHA)
    assert there.decision == ("failed" if (worse - better) / rows > 0.005 else "passed")


def test_no_number_of_rows_decides_at_the_margin() -> None:
    assert rows_to_decide(20, 0, 4000, 0.005, ALPHA) is None


def test_design_effect() -> None:
    groups = np.repeat(np.arange(100), 5)
    values = np.random.default_rng(3).normal(size=100)
    assert design_effect(values[groups], groups) == pytest.approx(5.0, rel=0.05)  # five copies of one row are one row
    assert design_effect(np.random.default_rng(4).normal(size=500), groups) < 1.4
    assert design_effect(np.zeros(500), groups) == 1.0
    assert design_effect(np.arange(100.0), np.repeat(np.arange(4), 25)) == 25.0  # four documents are four observations
