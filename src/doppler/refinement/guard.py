"""What exploring may cost, and the account of what it has cost."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from doppler.refinement.settings import Guard

# Number of the placement that is the first champion.
FIRST = 0
# Champion runs that the baseline is the median of, and the fewest that make one.
WINDOW = 16
ENOUGH = 5
# What one exploring run is assumed to cost beyond a champion's at worst: as much again.
RESERVE = 1.0
# Exploring runs whose cost can raise that assumption.
REMEMBERED = 200
# A former champion is tested again if so many runs of the champion's window took longer, by this
# share, than half of its own.
SLOWER, SLOW_RUNS = 0.02, 14


class Ledger:
    """The account of regret, against the present champion and against the first one.

    Of an exploring run the regret against the present champion is what it took beyond that one's
    baseline, as a share of it; of a failed one 1; of a run of the champion 0. Against the first
    champion every run counts: the champion's by the ratio of the two baselines, so that a champion
    that is slower than what it began with is seen, and a stall of the machine is not held against
    it.

    Invariant: an exploring run is allowed only if, with the worst assumed of it, both sums stay
    within ``max_regret`` times the number of runs. So exploring takes neither running mean beyond
    ``max_regret``, but by what a single run costs beyond the worst assumed (a champion run's
    seconds again, or the most that any of the latest exploring runs has cost), over the number of
    runs; and nothing is explored until it is back.

    Parameters
    ----------
    guard : Guard

    Attributes
    ----------
    runs : int
    total, total_first : float
        Sums of the regrets against the present champion and against the first.
    champion : int
        Number of the present champion; the first one's is :data:`FIRST`.
    """

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.champion = FIRST
        self.runs = 0
        self.total = self.total_first = 0.0
        self._windows: dict[int, deque[float]] = {FIRST: deque(maxlen=WINDOW)}
        self._costs: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def baseline(self) -> float | None:
        """Seconds of a run of the champion; None before there are enough."""
        return self._baseline(self.champion)

    @property
    def standing(self) -> float:
        """Seconds of the champion over those of the first one, as far as they are known."""
        first, present = self._baseline(FIRST), self.baseline
        return 1.0 if first is None or present is None else present / first

    @property
    def mean(self) -> float:
        """Running mean of the regret against the present champion."""
        return self.total / self.runs if self.runs else 0.0

    @property
    def mean_first(self) -> float:
        """Running mean of the regret against the first champion."""
        return self.total_first / self.runs if self.runs else 0.0

    @property
    def overtaking(self) -> int | None:
        """The former champion to test again, by its number: it took less than the champion does.

        Of several the one that took least, see :func:`has_slowed`.
        """
        recent = self._windows[self.champion]
        faster = [
            number
            for number, window in self._windows.items()
            if number != self.champion and has_slowed(window, recent)
        ]
        return min(faster, key=lambda each: statistics.median(self._windows[each]), default=None)

    def allows(self, ratio: float, placement: int = -1) -> bool:
        """Say whether a run that may take ``ratio`` times the baseline may come next.

        Parameters
        ----------
        ratio : float
            A pessimistic one.
        placement : int
            Its number. That of a former champion needs to stay within the bound against the
            present one alone: it is the way back to where the other holds.
        """
        if self.baseline is None:
            return False
        worst = max(RESERVE, ratio - 1.0, max(self._costs, default=0.0))
        limit = self.guard.max_regret * (self.runs + 1)
        standing = self.standing
        first = self.total_first + (1.0 + worst) * standing - 1.0
        return self.total + worst <= limit and (first <= limit or placement in self._windows)

    def record(self, placement: int, seconds: float | None) -> float:
        """Account for a run, None if it failed; returns its regret against the champion."""
        champion = placement == self.champion
        baseline = self.baseline
        if champion:
            regret = 0.0
        elif seconds is None or baseline is None:
            regret = 1.0
        else:
            regret = seconds / baseline - 1.0
        if placement in self._windows and seconds is not None:
            self._windows[placement].append(seconds)
        self.runs += 1
        self.total += regret
        # What the first champion takes costs nothing against it.
        self.total_first += 0.0 if placement == FIRST else (1.0 + regret) * self.standing - 1.0
        if not champion:
            self._costs.append(regret)
        return regret

    def promote(self, placement: int, seconds: Sequence[float]) -> None:
        """Make a placement the champion, with its latest runs as its baseline."""
        self.champion = placement
        self.keep(placement, seconds)

    def keep(self, placement: int, seconds: Sequence[float]) -> None:
        """Take the latest runs of a champion, present or former, for what it takes by now."""
        self._windows[placement] = deque(seconds, maxlen=WINDOW)

    def drop(self, placement: int) -> None:
        """Forget a placement if it is a former champion: it has failed."""
        if placement not in (FIRST, self.champion):
            self._windows.pop(placement, None)

    def _baseline(self, placement: int) -> float | None:
        window = self._windows.get(placement, ())
        return statistics.median(window) if len(window) >= ENOUGH else None


def has_slowed(former: Sequence[float], recent: Sequence[float]) -> bool:
    """Whether a champion has become so slow that a former one should be tested again.

    Nearly all of its latest runs took longer, by more than :data:`SLOWER`, than half of the former
    one's. As long as it is not slower by so much, each of them does with a chance of a half at
    most, so nearly all of them with one of 0.2%.

    Parameters
    ----------
    former, recent : sequence of float
        Seconds of the latest runs of either.
    """
    if len(former) < ENOUGH or len(recent) < WINDOW:
        return False
    limit = (1.0 + SLOWER) * statistics.median(former)
    return sum(seconds > limit for seconds in recent) >= SLOW_RUNS
