"""Bulk-synchronous execution: by hand, and against what bounds it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import any_problem, placed_problems, random_placement

from doppler import Cluster, Graph, Placement, Problem
from doppler.cluster import Device, Link
from doppler.errors import ParamsError, PlacementError
from doppler.simulator.bulk_synchronous import synchronous_makespan


def run(placed: list[int], channels: bool = False) -> float:
    """Run a diamond: 3 s, then 4 s and 5 s, then 6 s; a transfer takes 2 s."""
    graph = Graph.from_arrays([0, 0, 1, 2], [1, 2, 3, 3], [3, 4, 5, 6], [2, 2, 2, 2])
    count = 3
    links = tuple(
        Link(a, b, channel=0 if channels else -1)
        for a in range(count)
        for b in range(count)
        if a != b
    )
    devices = tuple(Device(f"d{d}") for d in range(count))
    cluster = Cluster("three", devices, links, ("bus",) if channels else ())
    return synchronous_makespan(Problem(graph, cluster), Placement(placed))


def test_one_device_computes_all_of_it() -> None:
    assert run([1, 1, 1, 1]) == 3 + 4 + 5 + 6


def test_everybody_waits_for_the_slowest() -> None:
    assert run([0, 0, 1, 0]) == 3 + (2 + 5) + (2 + 6)


def test_transfers_go_on_at_the_same_time() -> None:
    assert run([0, 1, 2, 0]) == 3 + (2 + 5) + (2 + 6)


def test_transfers_of_a_channel_take_turns() -> None:
    assert run([0, 1, 2, 0], channels=True) == 3 + (4 + 5) + (4 + 6)


def test_a_tensor_is_moved_to_a_device_once() -> None:
    assert run([0, 1, 1, 1], channels=True) == 3 + (2 + 9) + 6


@settings(max_examples=40)
@given(placed_problems())
def test_it_is_the_sum_of_its_supersteps(both: tuple[Problem, Placement]) -> None:
    problem, placement = both
    arrays, devices = problem.arrays, placement.devices
    level = np.zeros(problem.n_ops, int)
    for op in arrays.order.tolist():
        for other in arrays.pred[arrays.pred_ptr[op] : arrays.pred_ptr[op + 1]].tolist():
            level[op] = max(level[op], level[other] + 1)
    moved: set[tuple[int, int]] = set()
    total = 0.0
    for step in range(int(level.max()) + 1):
        busy = np.zeros(problem.n_devices)
        turns: dict[object, float] = {}
        for op in np.flatnonzero(level == step).tolist():
            home = int(devices[op])
            busy[home] += arrays.compute[op, home]
            for other in arrays.pred[arrays.pred_ptr[op] : arrays.pred_ptr[op + 1]].tolist():
                source = int(devices[other])
                if source == home or (other, home) in moved:
                    continue
                moved.add((other, home))
                seconds = (
                    arrays.latency[source, home]
                    + arrays.volume[other] * arrays.factor[source, home]
                )
                channel = int(arrays.channel[source, home])
                key = channel if channel >= 0 else (other, home)
                turns[key] = turns.get(key, 0.0) + seconds
        total += max(turns.values(), default=0.0) + busy.max()
    assert synchronous_makespan(problem, placement) == pytest.approx(total)


@given(st.integers(0, 2**32 - 1))
def test_it_is_never_below_the_lower_bound(seed: int) -> None:
    problem = any_problem(seed)
    makespan = synchronous_makespan(problem, random_placement(problem, seed))
    assert makespan >= problem.lower_bound * (1 - 1e-9)


def test_what_does_not_suit_is_refused() -> None:
    problem = Problem(Graph.from_arrays([0], [1], [1, 1], [1, 1]), Cluster.uniform(2))
    with pytest.raises(PlacementError, match="3 ops"):
        synchronous_makespan(problem, Placement([0, 0, 0]))
    with pytest.raises(ParamsError, match="must be a Placement"):
        synchronous_makespan(problem, [0, 0])  # type: ignore[arg-type]
