"""Champion against challenger: an exact paired test that is fed run by run.

Both run in pairs whose order is drawn, so that a machine that warms up, is busy for a while or
changes its speed treats both alike. At equal speed the log-ratio of a pair is then as likely above
0 as below at every size, which is all that Wilcoxon's signed-rank test asks for
(:mod:`doppler.refinement.signed_rank`).

The test is group sequential (Lan and DeMets, Discrete sequential boundaries for clinical trials,
Biometrika 70, 1983): it looks at fixed numbers of pairs, and a look may spend the share of the
error that its new pairs are of all pairs. By the union bound all looks together keep the error,
whatever their dependence. Between the looks a challenger can only be given up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Literal

import numpy as np
from scipy.special import ndtri

from doppler.errors import PromotionError
from doppler.refinement.signed_rank import center_interval, p_value, smallest_sample, z_value

Side = Literal["champion", "challenger"]
SIDES: tuple[Side, Side] = ("champion", "challenger")

#: Defaults: pairs at most, and how often to look.
PAIRS, LOOKS = 100, 7
MOST_PAIRS = 1000
# Pairs before a challenger is given up, and by how many standard errors it may be better than it
# has shown: if even then the last look would not promote it, there is no hope.
FEWEST, HOPE = 5, 1.5


class Verdict(Enum):
    """What a trial has come to."""

    OPEN = "open"
    PROMOTED = "promoted"
    REJECTED = "rejected"


class Trial:
    """Whether a challenger is faster than the champion; pure, one run at a time.

    Run :attr:`turn`, tell :meth:`observe` what it took, until :attr:`verdict` is not open. What
    runs between two pairs does not matter, if it is decided before either run of a pair begins;
    within a pair nothing else should run.

    Parameters
    ----------
    error : float
        Chance of promoting a challenger that is not faster by ``min_gain``, over all looks.
    pairs : int
        At most.
    looks : int
        How often to look, each time after about 1.4 times as many pairs as before, the last time
        after all. With one look all pairs run, however hopeless.
    min_gain : float
        Share by which the challenger must be faster.
    seed : int or sequence of int
        Of the order within the pairs.

    Attributes
    ----------
    differences : list of float
        Of each pair, the logarithm of the challenger's seconds over the champion's.
    first : list of {"champion", "challenger"}
        Who ran first in each pair.
    verdict : Verdict

    Raises
    ------
    PromotionError
        If an argument is out of range, or so few pairs can never tell.
    """

    def __init__(
        self,
        error: float,
        *,
        pairs: int = PAIRS,
        looks: int = LOOKS,
        min_gain: float = 0.0,
        seed: int | Sequence[int] = 0,
    ) -> None:
        self.error = error
        self.pairs = pairs
        self.shares = plan_looks(error, pairs, looks)
        self.bound = _log_bound(min_gain)
        self.differences: list[float] = []
        self.first: list[Side] = []
        self.verdict = Verdict.OPEN
        self._gives_up = looks > 1
        self._needed = -float(ndtri(self.shares[pairs]))
        self._order = np.random.default_rng(seed).random(pairs) < 0.5
        self._half: float | None = None
        # Walsh averages that are not below the bound.
        self._above = 0

    @property
    def between(self) -> bool:
        """Whether no pair has begun that lacks a run."""
        return self._half is None

    @property
    def turn(self) -> Side:
        """Who runs next."""
        champion_first = bool(self._order[min(len(self.differences), self.pairs - 1)])
        return "champion" if champion_first is self.between else "challenger"

    def observe(self, seconds: float | None) -> Verdict:
        """Take the run of whose turn it was, and say what that has come to.

        Parameters
        ----------
        seconds : float or None
            None: it failed. Then a challenger is rejected, and of a champion the pair does not
            count.
        """
        side = self.turn
        if seconds is None:
            self._half = None
            if side == "challenger":
                self.verdict = Verdict.REJECTED
        elif self._half is None:
            self._half = math.log(seconds)
        else:
            now, before = math.log(seconds), self._half
            self._half = None
            self.first.append(SIDES[side == "champion"])
            difference = now - before if side == "challenger" else before - now
            self.differences.append(difference)
            self._above += sum((each + difference) / 2 >= self.bound for each in self.differences)
            self.verdict = self._judge()
        return self.verdict

    def interval(self) -> tuple[float, float, float] | None:
        """Estimate the ratio of the challenger's seconds to the champion's.

        Returns
        -------
        tuple of float or None
            Estimate, low and high, by the share of the error of the latest look or, before the
            first, of the first: then from 0 to infinity. None without a pair.
        """
        count = len(self.differences)
        if not count:
            return None
        share = self.shares[max((n for n in self.shares if n <= count), default=min(self.shares))]
        estimate, low, high = center_interval(self.differences, share)
        return math.exp(estimate), math.exp(low), math.exp(high)

    @property
    def p_value(self) -> float | None:
        """One-sided and exact, of the challenger not being faster by the least gain."""
        count = len(self.differences)
        return p_value(count, self._above) if count else None

    def _judge(self) -> Verdict:
        count = len(self.differences)
        share = self.shares.get(count)
        if share is not None and p_value(count, self._above) <= share:
            return Verdict.PROMOTED
        if count == self.pairs:
            return Verdict.REJECTED
        # Whether the last look would keep the champion even if all were better than it seems.
        hoped = (z_value(count, self._above) + HOPE) * math.sqrt(self.pairs / count)
        hopeless = self._gives_up and count >= FEWEST and hoped < self._needed
        return Verdict.REJECTED if hopeless else Verdict.OPEN


def plan_looks(error: float, pairs: int = PAIRS, looks: int = LOOKS) -> Mapping[int, float]:
    """Plan after how many pairs to look, and what error each look may spend.

    Returns
    -------
    mapping of int to float
        The errors sum to ``error``. Where nothing can be told yet there is no look; the first one
        then has the share of those left out, too.

    Raises
    ------
    PromotionError
        If an argument is out of range, or so few pairs can never tell.
    """
    if not 0 < error <= 0.25:
        raise PromotionError(f"error is {error!r}, must be above 0 and at most 0.25")
    if looks < 1:
        raise PromotionError(f"looks is {looks!r}, must be at least 1")
    if not smallest_sample(error) <= pairs <= MOST_PAIRS:
        raise PromotionError(
            f"pairs is {pairs!r}, must be {smallest_sample(error)} to {MOST_PAIRS} at an error of "
            f"{error:.2g}: fewer cannot tell"
        )
    shares: dict[int, float] = {}
    spent = 0
    for count in sorted({math.ceil(pairs * 2.0 ** (-look / 2)) for look in range(looks)}):
        share = error * (count - spent) / pairs
        if smallest_sample(share) <= count:
            shares[count] = share
            spent = count
    # Of very few pairs the last look may need all of the error.
    return shares if pairs in shares else {pairs: error}


def _log_bound(min_gain: float) -> float:
    if not 0 <= min_gain < 1:
        raise PromotionError(f"min_gain is {min_gain!r}, must be at least 0 and below 1")
    return math.log1p(-min_gain)
