from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.errors import DopplerError
from doppler.refinement.guard import ENOUGH, RESERVE, Ledger
from doppler.refinement.settings import Guard


@pytest.mark.parametrize("name", ["max_regret", "margin"])
@pytest.mark.parametrize("value", [0.0, -0.1, float("inf"), float("nan")])
def test_a_guard_needs_positive_numbers(name: str, value: float) -> None:
    with pytest.raises(DopplerError, match=f"Guard: {name} is .*: input should be"):
        Guard(**{name: value})


def test_nothing_is_explored_before_the_worst_assumed_is_paid_for() -> None:
    ledger = Ledger(Guard(max_regret=0.05))
    while not ledger.allows(0.5):
        ledger.champion(1.0)
    assert ledger.runs == 19
    assert ledger.explored(1.0 + RESERVE) == pytest.approx(RESERVE)
    assert ledger.mean == pytest.approx(0.05)
    assert not ledger.allows(0.5)


def test_the_baseline_is_a_median_that_no_outlier_moves() -> None:
    ledger = Ledger(Guard())
    for seconds in [1.0, 1.01, 50.0, 0.99, 1.0]:
        assert ledger.baseline is None
        ledger.champion(seconds)
    assert ledger.baseline == 1.0
    ledger.crown([0.5] * ENOUGH)
    assert ledger.baseline == 0.5


def test_a_failed_run_counts_as_one_more_run_of_the_champion() -> None:
    ledger = Ledger(Guard())
    for _ in range(ENOUGH):
        ledger.champion(2.0)
    assert ledger.explored(None) == 1.0
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
            ledger.explored(seconds)
        else:
            ledger.champion(1.0)
        assert ledger.total <= bound * ledger.runs + excess + 1e-9
