"""Champion against challenger, run by turns until statistics decide."""

from __future__ import annotations

import math
from enum import Enum

import numpy as np
from scipy.special import stdtrit

# Pairs before the first verdict, and when a challenger that has not won is given up.
FEWEST, MOST = 5, 40
# One-sided, of each look; there are some tens of looks.
CONFIDENCE = 0.999
# By so many standard errors the truth may be better than it looks when a challenger is given up,
# since even so all pairs would hardly decide for it.
HOPE = 1.5
# Differences beyond so many standard deviations (by the median deviation) are pulled in.
OUTLIER = 3.0


class Verdict(Enum):
    """What a trial has come to."""

    OPEN = "open"
    PROMOTED = "promoted"
    REJECTED = "rejected"


class Trial:
    """Paired runs of a champion and a challenger.

    A pair is a run of the challenger and the champion's runs since the one before. The challenger
    wins when the upper confidence bound of the mean difference of the logarithms (Student's t,
    outliers pulled in to three median deviations) is below 0.

    Parameters
    ----------
    challenger : int
        Number of its placement.

    Attributes
    ----------
    seconds : list of float
        Of the challenger's runs.
    """

    def __init__(self, challenger: int) -> None:
        self.challenger = challenger
        self.seconds: list[float] = []
        self._differences: list[float] = []
        self._champion: list[float] = []

    def champion(self, seconds: float) -> None:
        """Record a run of the champion."""
        self._champion.append(seconds)

    @property
    def owes_champion(self) -> bool:
        """Whether the champion has its turn."""
        return not self._champion

    def challenged(self, seconds: float) -> None:
        """Record a run of the challenger; it counts if the champion ran before it."""
        self.seconds.append(seconds)
        if self._champion:
            logs = [math.log(each) for each in self._champion]
            self._differences.append(math.log(seconds) - float(np.median(logs)))
            self._champion.clear()

    def verdict(self) -> Verdict:
        """Decide, if the pairs suffice."""
        count = len(self._differences)
        if count < FEWEST:
            return Verdict.OPEN
        differences = np.array(self._differences)
        middle = np.median(differences)
        deviation = 1.4826 * np.median(np.abs(differences - middle))
        reach = OUTLIER * max(deviation, 1e-6)
        pulled = np.clip(differences, middle - reach, middle + reach)
        mean, spread = float(pulled.mean()), max(float(pulled.std(ddof=1)), 1e-6)
        error = spread / math.sqrt(count)
        if mean + stdtrit(count - 1, CONFIDENCE) * error < 0.0 and middle < 0.0:
            return Verdict.PROMOTED
        least = float(stdtrit(MOST - 1, CONFIDENCE)) * spread / math.sqrt(MOST)
        if count >= MOST or mean - HOPE * error > -least:
            return Verdict.REJECTED
        return Verdict.OPEN
