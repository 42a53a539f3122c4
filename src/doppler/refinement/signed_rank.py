"""Wilcoxon's signed-rank test, and the interval of the center that it implies.

The estimate is the median of the Walsh averages ``(x_i + x_j) / 2``, ``i <= j`` (Hodges and
Lehmann, Estimates of location based on rank tests, Annals of Mathematical Statistics 34, 1963);
the interval runs between two of them, chosen by the exact null distribution of the statistic
(Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd edition, sections 3.1 to 3.3).
It asks of the values only that they are independent and symmetric about their center. Up to 29% of
them may be outliers before the estimate follows them.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def center_interval(values: npt.ArrayLike, error: float) -> tuple[float, float, float]:
    """Estimate the center of symmetry of a sample.

    Parameters
    ----------
    values : array-like of float, shape [n]
    error : float
        Chance of the center lying beyond either end, at most: ties and the steps of the
        distribution make it smaller.

    Returns
    -------
    estimate, low, high : float
        The interval is infinite where ``n`` is below :func:`smallest_sample`.
    """
    averages = _walsh_averages(values)
    below = _cumulative(np.size(values))
    # The least rank that the statistic misses with at most the error. A hair more, so that half of
    # 1 - 0.95 is not less than 0.025.
    rank = int(np.searchsorted(below, error * (1 + 1e-12), side="right"))
    estimate = float(np.median(averages))
    if rank == 0:
        return estimate, -math.inf, math.inf
    return estimate, float(averages[rank - 1]), float(averages[-rank])


def p_value(count: int, above: int) -> float:
    """Return the exact one-sided p-value of the center not being below a bound.

    It is at most ``error`` exactly when the interval of that error ends below the bound.

    Parameters
    ----------
    count : int
        Size of the sample.
    above : int
        How many of its Walsh averages are not below the bound: the statistic.
    """
    return float(min(1.0, _cumulative(count)[above]))


def z_value(count: int, above: int) -> float:
    """Return the evidence for the center being below a bound, in standard deviations.

    By the normal approximation of the statistic; above 0 where the values rather lie below.
    """
    deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    return (count * (count + 1) / 4 - above) / deviation


def smallest_sample(error: float) -> int:
    """Return the least number of values with which an interval is finite."""
    return max(1, math.ceil(-math.log2(error * (1 + 1e-12))))


def _walsh_averages(values: npt.ArrayLike) -> FloatArray:
    sample = np.asarray(values, dtype=np.float64)
    i, j = np.triu_indices(sample.size)
    return np.sort((sample[i] + sample[j]) / 2)


@lru_cache(maxsize=16)
def _cumulative(n: int) -> FloatArray:
    """P(W <= w) for the sum W of the ranks 1..n that have a positive sign, w = 0..n(n+1)/2."""
    chances = np.zeros(n * (n + 1) // 2 + 1)
    chances[0] = 1.0
    for rank in range(1, n + 1):
        shifted = np.zeros_like(chances)
        shifted[rank:] = chances[:-rank]
        chances = (chances + shifted) / 2
    return np.cumsum(chances)
