"""PLACETO and GDP as methods: what they may choose, that they learn, and that seeds decide."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from random_problems import any_problem, mixed_cluster, random_problem, weighty_graph

from doppler import Cluster, Graph, Problem, simulate
from doppler.baselines.decisions import make_decisions
from doppler.baselines.gdp import GdpLearner, GdpSettings, gdp
from doppler.baselines.placeto import PlacetoLearner, PlacetoSettings, placeto
from doppler.errors import MemoryLimitError
from doppler.heuristics.base import Heuristic
from doppler.simulator import makespan_of
from doppler.training.single import EpisodeLearner, learn

METHODS = [placeto, gdp]
LEARNERS: list[Callable[..., EpisodeLearner]] = [PlacetoLearner, GdpLearner]


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(weighty_graph(0, 20), Cluster.uniform(3))


@pytest.mark.parametrize("make", LEARNERS)
def test_learning_lowers_the_run_time(
    problem: Problem, make: Callable[..., EpisodeLearner]
) -> None:
    first, last = [], []
    for seed in range(3):
        learner = make(problem, seed=seed)
        mean = learn(problem, learner, episodes=800, batch=8, seed=seed).curve.mean
        first.append(mean[:6].mean())
        last.append(mean[-6:].mean())
    assert (np.array(last) < first).all()
    assert np.mean(last) < 0.95 * np.mean(first)


@pytest.mark.parametrize("make", LEARNERS)
def test_the_same_seed_learns_the_same(
    problem: Problem, make: Callable[..., EpisodeLearner]
) -> None:
    first, second, other = (
        learn(problem, make(problem, seed=seed), episodes=24, batch=8, seed=seed)
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first.curve.mean, second.curve.mean)
    assert np.array_equal(first.placement.devices, second.placement.devices)
    assert not np.array_equal(first.curve.mean, other.curve.mean)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(12))
def test_pins_groups_and_memory_are_respected(seed: int, method: Heuristic) -> None:
    problem = any_problem(100 + seed)
    try:
        solution = method(problem, seed=seed)
    except MemoryLimitError:
        assert problem.may_overflow
        return
    solution.placement.validate(problem)
    assert solution.placement.priority is None
    result = simulate(problem, solution.placement)
    assert result.makespan == solution.makespan == makespan_of(problem, solution.placement, "fifo")
    assert (result.peak_memory <= problem.arrays.capacity).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_placement_that_fits_is_taken_before_a_faster_one(method: Heuristic) -> None:
    # All on one device is fastest and a little too much for it.
    graph = Graph.from_arrays([0, 1], [1, 2], np.ones(3), np.full(3, 9.0), param_bytes=np.ones(3))
    solution = method(Problem(graph, Cluster.uniform(2, memory=2.9)), budget=0.3)
    assert len(set(solution.placement.devices.tolist())) == 2


@pytest.mark.parametrize("method", METHODS)
def test_nothing_that_overflows_is_returned(method: Heuristic) -> None:
    graph = Graph.from_arrays([], [], np.ones(3), np.ones(3), name="big", param_bytes=[3e9] * 3)
    with pytest.raises(MemoryLimitError, match=r"big: \w+, best of 17 episodes: .*'gpu\d' lacks"):
        method(Problem(graph, Cluster.uniform(2, memory=4e9)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "problem",
    [
        Problem(Graph.from_arrays([], [], [2.0], [1.0]), Cluster.uniform(1)),
        Problem(Graph.from_arrays([], [], [2.0], [1.0]), Cluster.uniform(8)),
        Problem(Graph.from_arrays([], [], [0.0] * 3, [0.0] * 3), Cluster.uniform(2)),
        Problem(Graph.from_arrays([], [], np.arange(1.0, 6.0), np.zeros(5)), Cluster.uniform(2)),
        Problem(weighty_graph(1, 9), Cluster.uniform(1)),
        Problem(weighty_graph(1, 9), Cluster.uniform(40)),
        Problem(weighty_graph(1, 9), mixed_cluster(np.random.default_rng(0), 3)),
    ],
    ids=["one-op", "more-devices", "no-time", "no-edges", "one-device", "forty", "mixed"],
)
def test_odd_problems(problem: Problem, method: Heuristic) -> None:
    solution = method(problem, seed=3)
    solution.placement.validate(problem)
    assert solution.makespan == simulate(problem, solution.placement).makespan
    assert solution.evaluations == 17


def test_groups_are_decided_as_one_and_in_topological_order() -> None:
    problem = random_problem(3, 30, 3, pins=True, groups=True, limited=False)
    decisions = make_decisions(problem)
    group, unit = problem.arrays.group, decisions.unit.numpy()
    for number in range(problem.arrays.n_groups):
        assert len(set(unit[group == number].tolist())) <= 1
    assert decisions.n_units == len(set(group[group >= 0].tolist())) + (group < 0).sum()
    rank = np.argsort(problem.arrays.order)
    assert (np.diff(rank[decisions.first]) > 0).all()
    assert unit[decisions.first].tolist() == list(range(decisions.n_units))
    assert decisions.size.sum() == problem.n_ops
    chosen = decisions.of_ops(torch.arange(decisions.n_units)[None])
    assert np.array_equal(chosen[0], unit)


def test_what_a_policy_learns_with_its_settings(problem: Problem) -> None:
    assert GdpLearner(problem, GdpSettings(width=8, heads=2)).network.out.in_features == 8
    assert PlacetoLearner(problem, PlacetoSettings(hidden=8)).network.out.in_features == 8
