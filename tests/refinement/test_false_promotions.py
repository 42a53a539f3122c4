"""Whole refinements in which nothing is faster: what they promote, against what they may."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from doppler.refinement.settings import ErrorBudget

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/false_promotions.py"))
SYSTEMS, month, power, refinement = (
    BENCHMARK[name] for name in ("SYSTEMS", "month", "power", "refinement")
)

# So much that what is wrong shows in few refinements.
BUDGET = ErrorBudget(error=0.5, spread=2.0)


@pytest.mark.parametrize("simulate", [refinement, month])
@pytest.mark.parametrize("name", list(SYSTEMS))
def test_chance_promotes_no_oftener_than_the_error_that_was_spent(name: str, simulate) -> None:
    length = 300 if simulate is refinement else 8
    found = [simulate(SYSTEMS[name], seed, length, BUDGET) for seed in range(120)]
    assert sum(each.tests for each in found) >= 60
    spent = float(np.mean([each.spent for each in found]))
    assert spent <= BUDGET.error
    promoted = sum(each.promoted for each in found)
    assert promoted <= binom.ppf(0.999, len(found), spent)


def test_a_gain_is_promoted() -> None:
    found = power(0.03, 0.02, 0.004, tests=60)
    assert found["promoted"] >= 0.95
    assert found["pairs"] <= 30
