"""What holds for every heuristic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import problems

from doppler import Cluster, Graph, Placement, Problem, simulate
from doppler.errors import MemoryLimitError
from doppler.heuristics import Solution
from doppler.methods import HEURISTICS

NAMES = sorted(HEURISTICS)
every = pytest.mark.parametrize("name", NAMES)
quick = settings(max_examples=40)


def check(problem: Problem, solution: Solution) -> None:
    """Valid, within memory, and as long as it says."""
    result = simulate(problem, solution.placement)
    assert solution.makespan == pytest.approx(result.makespan, rel=1e-12)
    assert (result.peak_memory <= problem.arrays.capacity).all()
    assert problem.lower_bound <= solution.makespan * (1 + 1e-9)
    assert solution.evaluations >= 1
    assert solution.origin


@every
@quick
@given(problem=problems(), seed=st.integers(0, 2**40))
def test_placements_are_valid_and_fit(name: str, problem: Problem, seed: int) -> None:
    try:
        solution = HEURISTICS[name](problem, seed=seed)
    except MemoryLimitError:
        assert problem.may_overflow
    else:
        check(problem, solution)


@every
@quick
@given(problem=problems(memory=False), seed=st.integers(0, 1000))
def test_same_seed_same_placement(name: str, problem: Problem, seed: int) -> None:
    first, second = (HEURISTICS[name](problem, seed=seed) for _ in range(2))
    assert np.array_equal(first.placement.devices, second.placement.devices)
    assert np.array_equal(first.placement.priority, second.placement.priority)
    assert first.makespan == second.makespan


@every
@pytest.mark.parametrize(
    "graph",
    [
        Graph.from_arrays([], [], [1.0], [1.0]),
        Graph.from_arrays([], [], [0.0], [0.0]),
        Graph.from_arrays([], [], [1.0] * 5, [0.0] * 5),
        Graph.from_arrays([0, 1], [1, 2], [1.0] * 3, [9.0] * 3),
        Graph.from_arrays([0, 3], [1, 4], [1.0] * 6, [0.5] * 6),
    ],
    ids=["one op", "one free op", "no edges", "chain", "parts"],
)
@pytest.mark.parametrize("count", [1, 3, 8])
def test_small_and_odd_problems(name: str, graph: Graph, count: int) -> None:
    problem = Problem(graph, Cluster.uniform(count))
    check(problem, HEURISTICS[name](problem))


@every
def test_more_time_is_never_worse(name: str) -> None:
    rng = np.random.default_rng(3)
    dst = np.repeat(np.arange(1, 60), 2)
    graph = Graph.from_arrays(
        (rng.random(dst.size) * dst).astype(int), dst, rng.uniform(1, 5, 60), rng.uniform(0, 3, 60)
    )
    problem = Problem(graph, Cluster.uniform(4))
    once = HEURISTICS[name](problem, seed=1)
    longer = HEURISTICS[name](problem, seed=1, budget=0.05)
    check(problem, longer)
    assert longer.makespan <= once.makespan
    assert longer.evaluations >= once.evaluations


@every
def test_a_graph_that_fits_nowhere_names_what_is_missing(name: str) -> None:
    graph = Graph.build(4, [0, 1, 2], [1, 2, 3], name="big", flops=[1e9] * 4, param_bytes=[3e9] * 4)
    problem = Problem(graph, Cluster.uniform(2, memory=2e9))
    with pytest.raises(
        MemoryLimitError, match=r"big: .*device 'gpu\d' lacks .* \(needs .*, has 2 GB\)"
    ):
        HEURISTICS[name](problem)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"single_device"}))
def test_parameters_go_where_there_is_room(name: str) -> None:
    # Each device holds two of the four, or both of the colocated two.
    graph = Graph.build(
        4, [], [], flops=[1e9] * 4, param_bytes=[1e9] * 4, colocation=[0, -1, -1, 0]
    )
    problem = Problem(graph, Cluster.uniform(2, memory=2e9))
    for seed in range(5):
        devices = HEURISTICS[name](problem, seed=seed).placement.devices
        assert np.bincount(devices, minlength=2).tolist() == [2, 2]
        assert devices[0] == devices[3]


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"single_device"}))
def test_room_is_left_for_outputs(name: str) -> None:
    # Parameters alone would fit two and two, but one output is as large as a device.
    graph = Graph.build(
        4,
        [],
        [],
        flops=[1e9] * 4,
        param_bytes=[1e9] * 4,
        output_bytes=[2e9, 0, 0, 0],
    )
    problem = Problem(graph, Cluster.uniform(2, memory=3e9))
    check(problem, HEURISTICS[name](problem))


def test_priority_is_the_order_of_choosing() -> None:
    graph = Graph.from_arrays([0, 1], [2, 2], [1.0, 5.0, 1.0], [1.0] * 3)
    problem = Problem(graph, Cluster.uniform(1))
    placement = HEURISTICS["critical_path"](problem).placement
    assert isinstance(placement, Placement)
    assert placement.priority is not None
    assert placement.priority.tolist() == [1, 0, 2]
