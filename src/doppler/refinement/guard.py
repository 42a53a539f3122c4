"""What exploring may cost, and the account of what it has cost."""

from __future__ import annotations

import statistics
from collections import deque

from doppler.refinement.settings import Guard

# Champion runs that the baseline is the median of, and the fewest that make one.
WINDOW = 16
ENOUGH = 5
# What one exploring run is assumed to cost beyond a champion's at worst: as much again.
RESERVE = 1.0
# Exploring runs whose cost can raise that assumption.
REMEMBERED = 200


class Ledger:
    """The account of regret.

    Invariant: an exploring run is allowed only if the sum of regrets with the worst assumed of it
    stays within ``max_regret`` times the number of runs with it. So the running mean exceeds
    ``max_regret`` only by what a single run costs beyond the worst assumed (a champion run's
    seconds again, or the most that any of the latest exploring runs has cost), over the number of
    runs; and nothing is explored until it is back.

    Parameters
    ----------
    guard : Guard

    Attributes
    ----------
    runs : int
    total : float
        Sum of the regrets.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.runs = 0
        self.total = 0.0
        self._champion: deque[float] = deque(maxlen=WINDOW)
        self._costs: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def baseline(self) -> float | None:
        """Seconds of a champion run; None before there are enough."""
        return statistics.median(self._champion) if len(self._champion) >= ENOUGH else None

    @property
    def mean(self) -> float:
        """Running mean of the regret."""
        return self.total / self.runs if self.runs else 0.0

    def allows(self, ratio: float, ahead: int = 0) -> bool:
        """Say whether a run that may take ``ratio`` times the baseline may come next.

        Parameters
        ----------
        ratio : float
            A pessimistic one.
        ahead : int
            Champion runs that are under way and come before it.
        """
        if self.baseline is None:
            return False
        worst = max(RESERVE, ratio - 1.0, max(self._costs, default=0.0))
        return self.total + worst <= self.guard.max_regret * (self.runs + ahead + 1)

    def champion(self, seconds: float | None) -> None:
        """Record a run of the champion; None if it failed."""
        self.runs += 1
        if seconds is not None:
            self._champion.append(seconds)

    def explored(self, seconds: float | None) -> float:
        """Record an exploring run, None if it failed; returns its regret."""
        baseline = self.baseline
        regret = 1.0 if seconds is None or baseline is None else seconds / baseline - 1.0
        self.runs += 1
        self.total += regret
        self._costs.append(regret)
        return regret

    def crown(self, seconds: list[float]) -> None:
        """Take the runs of a new champion as its baseline."""
        self._champion = deque(seconds, maxlen=WINDOW)
