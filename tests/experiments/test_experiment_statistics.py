"""Estimates and their intervals: right on what is known, and right as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from doppler.experiments.statistics import (
    Estimate,
    bootstrap_medians,
    falls,
    fit_power,
    geometric_mean,
    interval,
    mean_by,
    mean_of,
    rank_correlation,
    share_of,
)


def test_interval_is_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3
    assert half == pytest.approx(2.7764451 * math.sqrt(2.5 / 5))
    assert interval([2.0]) == (2.0, None)


def test_geometric_mean_treats_half_and_double_alike() -> None:
    found = geometric_mean([0.5, 2.0])
    assert found.value == pytest.approx(1)
    assert found.low * found.high == pytest.approx(1)
    assert geometric_mean([4.0]) == (pytest.approx(4), None, None, 1)


def test_intervals_hold_the_geometric_mean_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        found = geometric_mean(np.exp(rng.normal(0.2, 0.5, size=5)).tolist())
        held += found.low <= math.exp(0.2) <= found.high
    assert 0.92 < held / 400 < 0.98


def test_a_falling_function_turns_the_interval() -> None:
    assert Estimate(0.8, 0.7, 0.95, 5).map(lambda r: 1 - r) == pytest.approx((0.2, 0.05, 0.3, 5))
    assert Estimate(0.8, None, None, 1).map(lambda r: 1 - r).low is None


def test_means_of_groups() -> None:
    found = mean_by([("a", 1.0), ("b", 3.0), ("a", 4.0)])
    assert found == {"a": pytest.approx(2), "b": pytest.approx(3)}
    assert list(found) == ["a", "b"]


def test_bootstrap_of_pairs() -> None:
    rng = np.random.default_rng(2)
    base = 1 + 0.05 * rng.random((2, 15))
    samples = {
        graph: [(0.8 * x, x * (1 + 0.01 * rng.normal())) for x in row]
        for graph, row in zip("ab", base, strict=True)
    }

    found = bootstrap_medians(samples)
    assert found.low < found.value < found.high
    assert found.low > 0.78
    assert found.high < 0.82
    assert found == bootstrap_medians(samples), "the draws are seeded"
    assert bootstrap_medians({"a": [(1.0, 2.0)]}) == (pytest.approx(0.5), None, None, 1)


def test_exact_interval_of_a_share() -> None:
    found = share_of(40, 40)
    assert found.value == found.high == 1
    assert found.low == pytest.approx(0.025 ** (1 / 40))
    assert share_of(0, 40).low == 0
    assert share_of(20, 40).low == pytest.approx(0.338, abs=1e-3)


def test_five_pairs_that_all_fall_are_the_least_evidence() -> None:
    first = [2.0, 2.1, 2.2, 2.3, 2.4]
    last = [1.0, 1.2, 1.1, 1.5, 1.4]
    assert falls(first, last) == pytest.approx(2**-5)
    assert falls(last, first) == 1
    assert falls(first, first) == 1, "equal is no fall"
    assert falls(first, [*last[:4], 9.0]) > 0.05


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_planted_exponents_are_found(power: float) -> None:
    rng = np.random.default_rng(3)
    x = np.geomspace(1e3, 1e5, 9)
    fit = fit_power(x.tolist(), (3 * x**power * np.exp(0.05 * rng.normal(size=9))).tolist())
    assert fit.exponent.value == pytest.approx(power, abs=0.05)
    assert fit.exponent.low < power < fit.exponent.high
    assert fit.at(1e4) == pytest.approx(3 * 1e4**power, rel=0.1)


def test_too_few_points_for_a_fit() -> None:
    assert fit_power([1.0], [2.0]) is None
    assert fit_power([1.0, 1.0], [2.0, 3.0]) is None
    two = fit_power([1.0, 10.0], [2.0, 20.0])
    assert two.exponent == (pytest.approx(1), None, None, 2)


def test_mean_and_rank_correlation() -> None:
    assert mean_of([1.0, 3.0]).value == 2
    assert rank_correlation([1.0, 2.0, 3.0], [5.0, 7.0, 100.0]) == pytest.approx(1)
    assert rank_correlation([1.0, 2.0], [5.0, 7.0]) is None
    assert rank_correlation([1.0, 1.0, 1.0], [5.0, 7.0, 9.0]) is None
