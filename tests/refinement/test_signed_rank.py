"""The exact signed-rank test, held to SciPy's, and its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from doppler.refinement.signed_rank import (
    center_interval,
    p_value,
    smallest_sample,
    z_value,
)

SAMPLES = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30)


def above(sample) -> int:
    """Count the Walsh averages that are not below 0."""
    return sum((x + y) / 2 >= 0 for i, x in enumerate(sample) for y in sample[: i + 1])


@pytest.mark.parametrize("n", [1, 2, 5, 6, 13, 40])
def test_the_p_value_is_that_of_scipy(n: int) -> None:
    rng = np.random.default_rng(n)
    for shift in (-1.0, -0.3, 0.0, 0.4):
        sample = rng.normal(shift, 1.0, n)
        expected = stats.wilcoxon(sample, alternative="less", method="exact").pvalue
        assert p_value(n, above(sample)) == pytest.approx(expected, rel=1e-9)


@given(SAMPLES, st.sampled_from([0.25, 0.05, 0.025, 0.005]))
def test_interval_and_p_value_say_the_same(sample: list[float], error: float) -> None:
    estimate, low, high = center_interval(sample, error)
    assert low <= estimate <= high
    assert math.isinf(low) == math.isinf(high) == (len(sample) < smallest_sample(error))
    tail = error * (1 + 1e-12)
    assert (high < 0) == (p_value(len(sample), above(sample)) <= tail)
    assert (low > 0) == (p_value(len(sample), above([-x for x in sample])) <= tail)


@given(SAMPLES, st.sampled_from([-2.0, -1.0, 0.5, 4.0]))
def test_the_interval_follows_a_change_of_sign_and_scale(sample, factor) -> None:
    plain = center_interval(sample, 0.05)
    scaled = center_interval([factor * x for x in sample], 0.05)
    expected = sorted(factor * x for x in plain[1:])
    assert scaled[0] == pytest.approx(factor * plain[0])
    assert list(scaled[1:]) == pytest.approx(expected)


def test_the_estimate_is_the_median_of_the_walsh_averages() -> None:
    sample = [1.0, 2.0, 9.0]
    averages = [1, 1.5, 5, 2, 5.5, 9]
    assert center_interval(sample, 0.5)[0] == np.median(averages)


@pytest.mark.parametrize(("error", "n"), [(0.25, 2), (0.05, 5), ((1 - 0.95) / 2, 6), (0.005, 8)])
def test_the_smallest_sample(error: float, n: int) -> None:
    assert smallest_sample(error) == n
    assert math.isinf(center_interval(range(n - 1), error)[1])
    assert math.isfinite(center_interval(range(n), error)[1])


@pytest.mark.parametrize("n", [20, 100])
def test_the_approximation_is_near_the_exact_p_value(n: int) -> None:
    rng = np.random.default_rng(n)
    for shift in (-0.5, 0.0, 0.3):
        sample = rng.normal(shift, 1.0, n)
        exact = p_value(n, above(sample))
        assert stats.norm.sf(z_value(n, above(sample))) == pytest.approx(exact, abs=0.01)


def test_the_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    samples = 1.0 + rng.standard_t(2, (2000, 15))
    found = [center_interval(sample, 0.05) for sample in samples]
    covered = [low <= 1.0 <= high for _, low, high in found]
    # 0.9 within the error of 2000 draws; the steps of the distribution may make it a little more.
    assert 0.88 <= np.mean(covered) <= 0.93
