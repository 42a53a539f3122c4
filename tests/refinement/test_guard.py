from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.errors import DopplerError
from doppler.refinement.guard import ENOUGH, RESERVE, WINDOW, Ledger, has_slowed
from doppler.refinement.settings import Guard


@pytest.mark.parametrize("name", ["max_regret", "margin"])
@pytest.mark.parametrize("value", [0.0, -0.1, float("inf"), float("nan")])
def test_a_guard_needs_positive_numbers(name: str, value: float) -> None:
    with pytest.raises(DopplerError, match=f"Guard: {name} is .*, must be"):
        Guard(**{name: value})


def test_nothing_is_explored_before_the_worst_assumed_is_paid_for() -> None:
    ledger = Ledger(Guard(max_regret=0.05))
    while not ledger.allows(0.5):
        ledger.record(0, 1.0)
    assert ledger.runs == 19
    assert ledger.record(1, 1.0 + RESERVE) == pytest.approx(RESERVE)
    assert ledger.mean == ledger.mean_first == pytest.approx(0.05)
    assert not ledger.allows(0.5)


def test_the_baseline_is_a_median_that_no_outlier_moves() -> None:
    ledger = Ledger(Guard())
    for seconds in [1.0, 1.01, 50.0, 0.99, 1.0]:
        assert ledger.baseline is None
        ledger.record(0, seconds)
    assert ledger.baseline == 1.0
    ledger.promote(1, [0.5] * ENOUGH)
    assert ledger.baseline == ledger.standing == 0.5


def test_a_failed_run_counts_as_one_more_run_of_the_champion() -> None:
    ledger = Ledger(Guard())
    for _ in range(ENOUGH):
        ledger.record(0, 2.0)
    assert ledger.record(1, None) == 1.0
    assert ledger.mean == pytest.approx(1 / 6)


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.3), st.floats(1.0, 8.0))
def test_the_running_mean_stays_within_the_bound_but_for_one_run(
    seed: int, bound: float, worst: float
) -> None:
    rng = np.random.default_rng(seed)
    ledger = Ledger(Guard(max_regret=bound))
    excess = 0.0
    for _ in range(400):
        if ledger.allows(1.0):
            seconds = float(rng.choice([0.9, 1.1, worst]))
            excess = max(excess, seconds - 1.0 - RESERVE)
            ledger.record(1, seconds)
        else:
            ledger.record(0, 1.0)
        assert ledger.total <= bound * ledger.runs + excess + 1e-9
        assert ledger.total_first <= bound * ledger.runs + excess + 1e-9


@given(st.lists(st.floats(1.001, 1.03), min_size=2, max_size=8))
def test_champions_that_each_are_a_little_slower_do_not_go_unseen(slower: list[float]) -> None:
    # As if the test of each had erred.
    ledger, took, number = Ledger(Guard(max_regret=0.05)), 1.0, 0
    truth = 0.0
    for factor in slower:
        for _ in range(30):
            seconds = took if number and not ledger.allows(1.0) else 1.0 if not number else took
            ledger.record(number, seconds)
            truth += seconds - 1.0
        took, number = took * factor, number + 1
        ledger.promote(number, [took] * WINDOW)
    assert ledger.total == 0.0
    assert ledger.total_first == pytest.approx(truth)
    for _ in range(2000):
        if not ledger.allows(1.0):
            ledger.record(number, took)
            continue
        ledger.record(-2, 2.0 * took)
        # Both bounds hold whenever something is explored.
        assert ledger.mean <= 0.05 + 1e-9
        assert ledger.mean_first <= 0.05 + 1e-9


def test_a_former_champion_is_tested_again_when_the_present_one_takes_longer() -> None:
    ledger = Ledger(Guard(max_regret=0.05))
    for _ in range(WINDOW):
        ledger.record(0, 1.0)
    ledger.promote(3, [0.9] * WINDOW)
    ledger.promote(5, [0.7] * WINDOW)
    for _ in range(3 * WINDOW):
        ledger.record(5, 0.85)
    assert ledger.overtaking is None
    for _ in range(WINDOW):
        ledger.record(5, 1.2)
    assert ledger.overtaking == 3
    # Nothing unknown is explored now, but the way back is open.
    while ledger.mean_first < 0.05:
        ledger.record(5, 1.2)
    assert not ledger.allows(1.0, placement=9)
    assert ledger.allows(1.0, placement=3)
    # It has become slow, too; the first one has not.
    ledger.keep(3, [1.3] * ENOUGH)
    assert ledger.overtaking == 0
    ledger.promote(0, [1.0] * WINDOW)
    assert ledger.overtaking is None
    assert ledger.standing == 1.0
    ledger.drop(3)
    assert not ledger.allows(1.0, placement=3) or ledger.mean_first <= 0.05


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.2))
def test_noise_alone_hardly_ever_has_a_former_champion_tested(seed: int, noise: float) -> None:
    rng = np.random.default_rng(seed)
    found = sum(
        has_slowed(
            np.exp(noise * rng.normal(size=200)).tolist(),
            np.exp(noise * rng.normal(size=WINDOW)).tolist(),
        )
        for _ in range(20)
    )
    assert found <= 3
