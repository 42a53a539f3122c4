from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from random_problems import problems

from doppler import Cluster, Graph, Problem, simulate
from doppler.heuristics.heft import heft, heft_schedule, upward_order


def plain_heft(problem: Problem) -> tuple[list[int], list[float]]:
    """HEFT by the book: on every device, look through all gaps between the ops placed there."""
    a = problem.arrays
    devices = [-1] * problem.n_ops
    finish = [0.0] * problem.n_ops
    busy: list[list[tuple[float, float]]] = [[] for _ in range(problem.n_devices)]
    homes: dict[int, int] = {}
    for op in upward_order(problem).tolist():
        group = int(a.group[op])
        allowed = np.flatnonzero(np.isfinite(a.compute[op])).tolist()
        if group in homes:
            allowed = [homes[group]]
        best: tuple[float, int] | None = None
        for device in allowed:
            ready = 0.0
            for u in a.pred[a.pred_ptr[op] : a.pred_ptr[op + 1]].tolist():
                seconds = 0.0
                if devices[u] != device:
                    link = devices[u], device
                    seconds = a.latency[link] + a.volume[u] * a.factor[link]
                ready = max(ready, finish[u] + seconds)
            duration = float(a.compute[op, device])
            free = 0.0
            for start, end in busy[device]:
                if free < start and max(ready, free) + duration <= start:
                    break
                free = end
            begins = max(ready, free)
            if best is None or begins + duration < best[0]:
                best = begins + duration, device
        assert best is not None
        finish[op], devices[op] = best
        duration = float(a.compute[op, best[1]])
        if duration > 0:
            busy[best[1]] = sorted([*busy[best[1]], (best[0] - duration, best[0])])
        if group >= 0:
            homes[group] = best[1]
    return devices, finish


@settings(max_examples=150)
@given(problem=problems(memory=False))
def test_is_heft_by_the_book(problem: Problem) -> None:
    plan = heft_schedule(problem)
    expected_devices, expected_finish = plain_heft(problem)
    assert plan.devices.tolist() == expected_devices
    assert plan.finish == pytest.approx(np.array(expected_finish), rel=1e-9)
    own = problem.arrays.compute[np.arange(problem.n_ops), plan.devices]
    assert plan.start + own == pytest.approx(plan.finish, rel=1e-9)


@settings(max_examples=150)
@given(problem=problems(memory=False))
def test_the_order_is_that_of_the_planned_starts(problem: Problem) -> None:
    plan = heft_schedule(problem)
    assert (np.diff(plan.start[plan.order]) >= 0).all()
    position = np.argsort(plan.order)
    assert (position[problem.graph.src] < position[problem.graph.dst]).all()
    priority = heft(problem).placement.priority
    assert priority is not None
    assert np.array_equal(priority, position)


def test_fills_gaps() -> None:
    # Op 1 waits for op 0's output on either device, and op 2 fits in the time between.
    graph = Graph.from_arrays(
        [0, 1], [1, 3], [4.0, 4.0, 1.0, 9.0], [1.0, 1.0, 0.0, 0.0], pinned=[0, 1, 1, 0]
    )
    problem = Problem(graph, Cluster.uniform(2))
    plan = heft_schedule(problem)
    assert upward_order(problem).tolist().index(2) == 3
    assert plan.order.tolist().index(2) < plan.order.tolist().index(1)
    assert plan.finish[2] == 1.0
    assert simulate(problem, heft(problem).placement).makespan == 19.0


def test_many_gaps_are_forgotten_not_broken() -> None:
    # A chain that alternates between two devices leaves a gap after every op.
    count = 3000
    pinned = np.arange(count) % 2
    graph = Graph.from_arrays(
        [*range(count - 1)],
        [*range(1, count)],
        [1.0] * count + [0.75] * count,
        [0.5] * (2 * count),
        pinned=[*pinned, *([-1] * count)],
    )
    problem = Problem(graph, Cluster.uniform(2))
    plan = heft_schedule(problem)
    for device in range(2):
        mine = np.flatnonzero(plan.devices == device)
        ends = np.sort(plan.finish[mine])
        starts = np.sort(plan.start[mine])
        assert (starts[1:] >= ends[:-1] - 1e-9).all()
