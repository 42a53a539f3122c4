"""Priorities from the devices alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import problems, random_placement, weighty_graph

from doppler import Cluster, Graph, Problem
from doppler.schedule.urgency import STEPS, urgencies, urgent_first

quick = settings(max_examples=100)


def plain_levels(problem: Problem, devices: np.ndarray) -> np.ndarray:
    """Longest path from each op to the end, placed transfers included."""
    arrays = problem.arrays
    consumers: dict[int, list[int]] = {op: [] for op in range(problem.n_ops)}
    for u, v in zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True):
        consumers[u].append(v)
    level = np.zeros(problem.n_ops)
    for op in reversed(arrays.order.tolist()):
        home = devices[op]
        waits = [0.0]
        for consumer in consumers[op]:
            target = devices[consumer]
            sent = 0.0
            if target != home:
                sent = (
                    arrays.latency[home, target] + arrays.volume[op] * arrays.factor[home, target]
                )
            waits.append(level[consumer] + sent)
        level[op] = arrays.compute[op, home] + max(waits)
    return level


@quick
@given(problem=problems(), seed=st.integers(0, 1000))
def test_levels_are_the_longest_paths_and_priorities_follow_them(
    problem: Problem, seed: int
) -> None:
    devices = random_placement(problem, seed).devices.copy()
    level, priority = np.empty(problem.n_ops), np.empty(problem.n_ops, np.int32)
    urgencies(problem.arrays, devices, level, priority)
    expected = plain_levels(problem, devices)
    np.testing.assert_allclose(level, expected, rtol=1e-12)
    assert (priority >= 0).all()
    assert (priority <= STEPS).all()
    top = expected.max()
    for one in range(problem.n_ops):
        later = expected < expected[one] - 2 * top / STEPS
        assert (priority[later] > priority[one]).all()
        same = level == level[one]
        assert (priority[same] == priority[one]).all()


@quick
@given(problem=problems(), seed=st.integers(0, 1000))
def test_ranks_are_the_priorities_with_equal_ones_by_id(problem: Problem, seed: int) -> None:
    devices = random_placement(problem, seed).devices
    level, priority = np.empty(problem.n_ops), np.empty(problem.n_ops, np.int32)
    urgencies(problem.arrays, devices.copy(), level, priority)
    rank = urgent_first(problem, devices)
    assert rank.dtype == np.int32
    assert sorted(rank.tolist()) == list(range(problem.n_ops))
    order = np.argsort(rank).tolist()
    assert order == sorted(range(problem.n_ops), key=lambda op: (priority[op], op))


@quick
@given(seed=st.integers(0, 1000), n_devices=st.integers(1, 4))
def test_producers_are_more_urgent_than_what_waits_for_them(seed: int, n_devices: int) -> None:
    graph = weighty_graph(seed, 40)
    assert (graph.compute_s > 0).all()
    problem = Problem(graph, Cluster.uniform(n_devices))
    rank = urgent_first(problem, random_placement(problem, seed).devices)
    assert (rank[graph.src] < rank[graph.dst]).all()


def test_without_time_the_ids_decide() -> None:
    problem = Problem(Graph.from_arrays([0], [1], [0.0] * 3, [0.0] * 3), Cluster.uniform(2))
    assert urgent_first(problem, np.array([0, 1, 0], np.int32)).tolist() == [0, 1, 2]


def test_a_transfer_makes_its_producer_urgent() -> None:
    # Both feed an op on device 0; only the second has to be sent there.
    graph = Graph.from_arrays([0, 1], [2, 2], [1.0] * 3, [5.0] * 3)
    problem = Problem(graph, Cluster.uniform(2))
    assert urgent_first(problem, np.array([0, 1, 0], np.int32)).tolist() == [1, 0, 2]
    assert urgent_first(problem, np.array([1, 0, 0], np.int32)).tolist() == [0, 1, 2]
