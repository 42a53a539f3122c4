from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.errors import ParamsError
from doppler.refinement.budget import Spent, error_left, next_error
from doppler.refinement.settings import ErrorBudget

NOW = "2026-12-01T02:00:00+00:00"


@given(st.floats(0.001, 0.5), st.floats(1.0, 50.0), st.integers(1, 200))
def test_the_tests_of_a_month_never_spend_more_than_its_error(
    error: float, spread: float, tests: int
) -> None:
    budget = ErrorBudget(error=error, spread=spread)
    spent = [Spent("2026-11-30T23:59:59+00:00", 0.5)]
    for k in range(1, tests + 1):
        now = next_error(budget, spent, NOW)
        assert now == pytest.approx(error * spread / ((spread + k - 1) * (spread + k)))
        spent.append(Spent(NOW, now))
    assert math.fsum(each.error for each in spent[1:]) <= error
    assert error_left(budget, spent, NOW) == pytest.approx(error * spread / (spread + tests))
    # The next month begins anew.
    assert error_left(budget, spent, "2027-01-01T00:00:00+00:00") == error


def test_what_is_overspent_leaves_nothing() -> None:
    spent = [Spent(NOW, 0.1)]
    assert error_left(ErrorBudget(), spent, NOW) == 0.0
    assert next_error(ErrorBudget(), spent, NOW) == 0.0


@pytest.mark.parametrize(
    "wrong",
    [{"error": 0.0}, {"error": 0.6}, {"error": math.nan}, {"spread": 0.5}, {"spread": math.inf}],
)
def test_out_of_range(wrong: dict[str, float]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ParamsError, match=f"ErrorBudget: {name} is {value}, must be"):
        ErrorBudget(**wrong)
