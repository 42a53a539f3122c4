"""The pool: the best few, in either order, and no more than two of a kind to start from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import problems, random_placement, weighty_graph

from doppler import Cluster, Graph, Placement, Problem, simulate
from doppler.errors import MemoryLimitError
from doppler.search import pool as pools
from doppler.search.pool import ALIKE, KEPT, Pool

quick = settings(max_examples=30)
both = pytest.mark.parametrize("runtime", ["priority", "fifo"])


@both
@quick
@given(problem=problems(), seed=st.integers(0, 1000))
def test_without_jitter_the_winner_is_no_worse_than_any_that_was_offered(
    runtime: str, problem: Problem, seed: int
) -> None:
    pool = Pool(problem, runtime, 0.0, seed)
    offered = [random_placement(problem, seed + number) for number in range(KEPT + 6)]
    for number, placement in enumerate(offered):
        pool.offer(placement, f"kind {number}")
    runs = [simulate(problem, placement, runtime=runtime) for placement in offered]
    fitting = [run.makespan for run in runs if (run.peak_memory <= problem.arrays.capacity).all()]
    assert pool.fits or not fitting
    if pool.fits:
        found = pool.solution(1.0)
        assert found.makespan == simulate(problem, found.placement, runtime=runtime).makespan
        assert found.makespan <= min(fitting, default=np.inf)
        assert found.seconds == 1.0


@both
def test_starts_differ_and_few_are_of_a_kind(runtime: str) -> None:
    problem = Problem(weighty_graph(0, 40), Cluster.uniform(3))
    pool = Pool(problem, runtime, 0.1, 0)
    for number in range(5):
        pool.offer(random_placement(problem, number), f"one, number {number}")
    pool.offer(random_placement(problem, 9), "other")
    pool.offer(random_placement(problem, 9), "again")
    starts = pool.starts(10)
    assert [origin.split(",")[0] for _, origin in starts].count("one") == ALIKE
    assert len({placement.devices.tobytes() for placement, _ in starts}) == len(starts) == 3
    assert len(pool.starts(2)) == 2


def test_a_placement_without_priorities_stays_so_where_that_is_better() -> None:
    problem = Problem(weighty_graph(3, 60), Cluster.uniform(2))
    for seed in range(10):
        pool = Pool(problem, "priority", 0.0, 0)
        placement = random_placement(problem, seed, ordered=False)
        pool.offer(placement, "random")
        found = pool.solution(0.0)
        first_ready = simulate(problem, placement).makespan
        assert found.makespan <= first_ready
        if found.placement.priority is None:
            assert found.makespan == first_ready


def test_a_huge_graph_keeps_its_own_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(weighty_graph(0, 40), Cluster.uniform(3))
    monkeypatch.setattr(pools, "MOST_URGENT_OPS", 39)
    pool = Pool(problem, "priority", 0.0, 0)
    placement = random_placement(problem, 0)
    pool.offer(placement, "random")
    found = pool.solution(0.0)
    assert found.evaluations == 1
    assert np.array_equal(found.placement.priority, placement.priority)


def test_it_is_settled_at_the_lower_bound_only_without_noise() -> None:
    problem = Problem(Graph.from_arrays([], [], [1.0] * 4, [0.0] * 4), Cluster.uniform(2))
    for jitter in (0.0, 0.1):
        pool = Pool(problem, "priority", jitter, 0)
        assert pool.empty
        assert not pool.settled
        pool.offer(Placement([0, 0, 0, 1]), "three and one")
        assert not pool.settled
        pool.offer(Placement([0, 0, 1, 1]), "two and two")
        assert pool.settled == (jitter == 0.0)
        pool.clear()
        assert pool.empty


def test_what_does_not_fit_is_kept_but_no_solution() -> None:
    graph = Graph.from_arrays([], [], [1.0] * 2, [0.0] * 2, param_bytes=[2e9] * 2)
    problem = Problem(graph, Cluster.uniform(2, memory=3e9))
    pool = Pool(problem, "priority", 0.1, 0)
    pool.offer(Placement([0, 0]), "both on one")
    assert not pool.fits
    assert [origin for _, origin in pool.starts(1)] == ["both on one"]
    with pytest.raises(MemoryLimitError, match=r"both on one: .*lacks 1 GB"):
        pool.solution(0.0)
