"""Local search: from a critical-path schedule to what fits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from random_problems import problems

from doppler import Cluster, Graph, Problem, simulate
from doppler.errors import MemoryLimitError
from doppler.heuristics.critical_path import critical_path
from doppler.search.local_search import local_search


@settings(max_examples=20)
@given(problem=problems())
def test_it_is_never_worse_than_where_it_starts(problem: Problem) -> None:
    try:
        start = critical_path(problem)
    except MemoryLimitError:
        return
    assert local_search(problem).makespan == start.makespan
    found = local_search(problem, budget=0.01)
    result = simulate(problem, found.placement)
    assert found.makespan == result.makespan <= start.makespan
    assert (result.peak_memory <= problem.arrays.capacity).all()


def test_a_problem_without_time_is_solved_at_once() -> None:
    problem = Problem(Graph.from_arrays([0], [1], [0.0] * 2, [0.0] * 2), Cluster.uniform(2))
    assert local_search(problem, budget=600.0).makespan == 0.0


def test_overflow_by_a_byte_is_overflow() -> None:
    graph = Graph.from_arrays([], [], [1.0], [0.0], param_bytes=[2.0**53])
    problem = Problem(graph, Cluster.uniform(1, memory=2.0**53 - 1))
    with pytest.raises(MemoryLimitError, match="device 'gpu0' lacks 1 B"):
        local_search(problem)


def test_local_search_names_what_is_missing() -> None:
    graph = Graph.from_arrays([], [], [1.0] * 3, [0.0] * 3, name="big", param_bytes=[3e9] * 3)
    problem = Problem(graph, Cluster.uniform(2, memory=4e9))
    with pytest.raises(
        MemoryLimitError,
        match=r"big: annealing .*: device 'gpu\d' lacks 2 GB \(needs 6 GB, has 4 GB\)",
    ):
        local_search(problem, budget=0.02)
