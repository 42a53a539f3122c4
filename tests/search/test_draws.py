"""Durations drawn before they are needed."""

from __future__ import annotations

import numpy as np
import pytest
from random_problems import mixed_cluster, random_graph

from doppler import Cluster, Graph, Problem
from doppler.search.draws import TRANSFER_FACTORS, draw


@pytest.fixture
def problem() -> Problem:
    rng = np.random.default_rng(0)
    return Problem(random_graph(rng, 30), mixed_cluster(rng, 3))


def test_without_jitter_it_is_one_run_without_factors(problem: Problem) -> None:
    draws = draw(problem, 0.0, 5, 0)
    assert draws.op.shape == (1, 0)
    assert draws.transfer.shape == (1, 0)
    fastest = problem.arrays.compute.min(axis=1)
    assert np.array_equal(draws.below, problem.b_level(fastest)[None])


def test_runs_differ_and_seeds_repeat(problem: Problem) -> None:
    draws = draw(problem, 0.1, 3, 7)
    assert draws.op.shape == (3, 30)
    assert draws.transfer.shape == (3, TRANSFER_FACTORS)
    assert draws.below.shape == (3, 30)
    for values in draws[:2]:
        assert (values > 0).all()
        assert np.unique(values).size == values.size
    for same in zip(draws, draw(problem, 0.1, 3, 7), strict=True):
        assert np.array_equal(*same)
    for seed in (8, [7, 1]):
        assert not np.array_equal(draws.op, draw(problem, 0.1, 3, seed).op)


@pytest.mark.parametrize("jitter", [0.05, 0.3])
def test_factors_are_lognormal_with_mean_1(jitter: float) -> None:
    problem = Problem(Graph.from_arrays([], [], [1.0] * 500, [0.0] * 500), Cluster.uniform(2))
    draws = draw(problem, jitter, 100, 0)
    for values in draws[:2]:
        count = values.size
        assert values.mean() == pytest.approx(1.0, abs=6 * jitter / np.sqrt(count))
        logs = np.log(values)
        assert logs.std() == pytest.approx(jitter, rel=6 / np.sqrt(count))
        assert logs.mean() == pytest.approx(-0.5 * jitter**2, abs=6 * jitter / np.sqrt(count))


def test_what_is_left_is_the_longest_path_of_the_drawn_times(problem: Problem) -> None:
    draws = draw(problem, 0.5, 4, 1)
    fastest = problem.arrays.compute.min(axis=1)
    consumers: list[list[int]] = [[] for _ in range(problem.n_ops)]
    for u, v in zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True):
        consumers[u].append(v)
    for factor, below in zip(draws.op, draws.below, strict=True):
        for op in range(problem.n_ops):
            longest = max((below[v] for v in consumers[op]), default=0.0)
            assert below[op] == pytest.approx(longest + fastest[op] * factor[op], rel=1e-12)
