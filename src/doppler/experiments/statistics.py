"""Figures with the interval that chance leaves them: means, shares, exponents, correlations.

Times are compared by the logarithm of their ratio, so that twice as fast and twice as slow are
equally far from equal, and summed up by geometric means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from doppler.refinement.signed_rank import p_value as rank_p_value

Group = TypeVar("Group", bound=Hashable)

CONFIDENCE = 0.95
_DRAWS = 2_000


class Estimate(NamedTuple):
    """A figure and its interval.

    Attributes
    ----------
    value : float
    low, high : float or None
        None where one observation tells of no spread.
    points : int
        Independent observations behind it.
    """

    value: float
    low: float | None
    high: float | None
    points: int

    def map(self, function: Callable[[float], float]) -> Estimate:
        """Apply a monotone function to the figure and both ends."""
        low = None if self.low is None else function(self.low)
        high = None if self.high is None else function(self.high)
        if low is not None and high is not None and low > high:
            low, high = high, low
        return Estimate(function(self.value), low, high, self.points)


class PowerFit(NamedTuple):
    """``y = factor * x ** exponent``, fitted by least squares to the logarithms."""

    exponent: Estimate
    factor: float

    def at(self, x: float) -> float:
        """Return the fitted ``y``."""
        return float(self.factor * x**self.exponent.value)


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of some values, and half the width of Student's interval of it.

    The half is None for a single value.
    """
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return mean, None
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    return mean, _quantile(count - 1) * math.sqrt(variance / count)


@lru_cache(maxsize=256)
def _quantile(freedom: int) -> float:
    """Return Student's quantile of the two-sided interval."""
    from scipy.stats import t as student

    return float(student.ppf((1 + CONFIDENCE) / 2, freedom))


def mean_of(values: Sequence[float]) -> Estimate:
    """Estimate the mean, with Student's interval."""
    mean, half = interval(values)
    if half is None:
        return Estimate(mean, None, None, len(values))
    return Estimate(mean, mean - half, mean + half, len(values))


def geometric_mean(ratios: Sequence[float]) -> Estimate:
    """Estimate the geometric mean of positive ratios, with Student's interval on their logs."""
    return mean_of([math.log(ratio) for ratio in ratios]).map(math.exp)


def plain_geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean of positive values, without an interval."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def mean_by(values: Iterable[tuple[Group, float]]) -> dict[Group, float]:
    """Geometric mean of the values of each group, in order of the groups' first value."""
    groups: dict[Group, list[float]] = {}
    for group, value in values:
        groups.setdefault(group, []).append(value)
    return {group: plain_geometric_mean(members) for group, members in groups.items()}


def bootstrap_medians(
    samples: Mapping[Group, Sequence[tuple[float, float]]], seed: int = 0
) -> Estimate:
    """Estimate the ratio of the medians of paired samples, its geometric mean over the groups.

    The pairs of each group are drawn again with replacement; the groups stay, so that the interval
    says what other runs of the same groups would show (Efron and Tibshirani, An Introduction to the
    Bootstrap, 1993, section 13.3, percentile interval).

    Parameters
    ----------
    samples : mapping of group to sequence of pairs of float
        Numerator and denominator of each pair.
    seed : int
        Of the draws.

    Returns
    -------
    Estimate
        Without an interval if no group has two pairs.
    """
    rng = np.random.default_rng(seed)
    point = 0.0
    draws = np.zeros(_DRAWS)
    for pairs in samples.values():
        array = np.asarray(pairs, dtype=np.float64)
        above, below = np.median(array, axis=0)
        point += math.log(above / below)
        drawn = array[rng.integers(len(array), size=(_DRAWS, len(array)))]
        medians = np.log(np.median(drawn, axis=1))
        draws += medians[:, 0] - medians[:, 1]
    groups = len(samples)
    value = math.exp(point / groups)
    if all(len(pairs) < 2 for pairs in samples.values()):
        return Estimate(value, None, None, groups)
    ends = np.exp(np.quantile(draws / groups, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))
    # With few pairs the draws may all miss the figure itself.
    return Estimate(value, min(value, float(ends[0])), max(value, float(ends[1])), groups)


def share_of(successes: int, count: int) -> Estimate:
    """Estimate a share, with the exact interval of Clopper and Pearson (Biometrika 26, 1934)."""
    from scipy.stats import beta

    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if successes == 0 else float(beta.ppf(tail, successes, count - successes + 1))
    high = (
        1.0 if successes == count else float(beta.ppf(1 - tail, successes + 1, count - successes))
    )
    return Estimate(successes / count, low, high, count)


def falls(first: Sequence[float], last: Sequence[float]) -> float:
    """Return the one-sided p-value of the last not lying below the first, pair by pair.

    Wilcoxon's signed-rank test on the logarithms, exact; at best ``2 ** -n`` with ``n`` pairs.
    """
    logs = np.log(last) - np.log(first)
    i, j = np.triu_indices(logs.size)
    return rank_p_value(logs.size, int(((logs[i] + logs[j]) / 2 >= 0).sum()))


def fit_power(x: Sequence[float], y: Sequence[float]) -> PowerFit | None:
    """Fit a power law by least squares on logarithms, with Student's interval of the exponent.

    Parameters
    ----------
    x, y : sequence of float
        Positive.

    Returns
    -------
    PowerFit or None
        None for fewer than two different ``x``; without an interval for fewer than three points.
    """
    if len(set(x)) < 2:
        return None
    across, up = np.log(x), np.log(y)
    centered = across - across.mean()
    squares = float(centered @ centered)
    exponent = float(centered @ up) / squares
    factor = math.exp(float(up.mean()) - exponent * float(across.mean()))
    count = len(x)
    if count < 3:
        return PowerFit(Estimate(exponent, None, None, count), factor)
    rest = up - up.mean() - exponent * centered
    error = math.sqrt(float(rest @ rest) / (count - 2) / squares)
    half = _quantile(count - 2) * error
    return PowerFit(Estimate(exponent, exponent - half, exponent + half, count), factor)


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None for fewer than three points or a constant side."""
    from scipy.stats import spearmanr

    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return float(spearmanr(x, y).statistic)
