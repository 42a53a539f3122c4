"""What the tests of a month have spent of the error that they share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from doppler.refinement.settings import ErrorBudget


class Spent(NamedTuple):
    """What one test has spent.

    Attributes
    ----------
    time : str
        When it began or was decided: UTC, ISO 8601.
    error : float
        Chance at which it would have promoted a challenger that is no better.
    """

    time: str
    error: float


def error_left(budget: ErrorBudget, spent: Iterable[Spent], now: str) -> float:
    """Return what is left of the error of a month.

    Parameters
    ----------
    budget : ErrorBudget
    spent : iterable of Spent
        By tests of any time.
    now : str
        A moment of the month: UTC, ISO 8601.
    """
    return max(0.0, budget.error - sum(each.error for each in _of_month(spent, now)))


def next_error(budget: ErrorBudget, spent: Iterable[Spent], now: str) -> float:
    """Return what the next test of a month may spend; 0 if nothing is left."""
    before = _of_month(spent, now)
    return error_left(budget, before, now) / (budget.spread + len(before) + 1)


def _of_month(spent: Iterable[Spent], now: str) -> list[Spent]:
    # As 2026-12-01T02:00:00+00:00.
    return [each for each in spent if each.time[:7] == now[:7]]
