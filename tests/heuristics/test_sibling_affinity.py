"""The sibling-affinity list schedule, step by step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import problems
from reference_partial import PlainPartial

from doppler import Cluster, Graph, Placement, Problem, simulate, workloads
from doppler.errors import ParamsError, PlacementError
from doppler.heuristics.sibling_affinity import hinted_schedule, sibling_affinity_schedule
from doppler.methods import HEURISTICS
from doppler.schedule.ranks import rank_of

quick = settings(max_examples=60)


@quick
@given(problem=problems(), seed=st.integers(0, 2**40))
def test_schedules_are_valid(problem: Problem, seed: int) -> None:
    order, devices, tied = sibling_affinity_schedule(problem, seed)
    assert sorted(order.tolist()) == list(range(problem.n_ops))
    rank = rank_of(order)
    for u, v in zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True):
        assert rank[u] < rank[v]
    Placement(devices, rank).validate(problem)
    assert tied[np.arange(problem.n_ops), devices[order]].all()
    compute = problem.arrays.compute[order]
    assert not (tied & ~np.isfinite(compute)).any()
    again = sibling_affinity_schedule(problem, seed)
    assert all(np.array_equal(a, b) for a, b in zip(again, (order, devices, tied), strict=True))


@quick
@given(problem=problems(memory=False))
def test_every_step_takes_the_best_op_and_device(problem: Problem) -> None:
    order, devices, tied = sibling_affinity_schedule(problem, noise=0.0)
    level = problem.b_level(problem.mean_compute)
    group = problem.arrays.group
    plain = PlainPartial(problem)
    left = set(range(problem.n_ops))
    home: dict[int, int] = {}
    for step, op in enumerate(order.tolist()):
        ready = [v for v in left if not left & set(plain.inputs[v])]
        assert op in ready
        assert level[op] == max(level[v] for v in ready)
        left.remove(op)
        can = np.flatnonzero(np.isfinite(problem.arrays.compute[op])).tolist()
        if group[op] >= 0 and group[op] in home:
            can = [home[group[op]]]
        scores = {
            device: plain.start(op, device)
            + float(problem.arrays.compute[op, device])
            + plain.affinity(op, device)
            + sum(
                plain.transfer(plain.device[u], device, float(problem.arrays.volume[u]))
                for u in plain.inputs[op]
                if plain.device[u] != device and (u, device) not in plain.arrived
            )
            for device in can
        }
        best = min(scores.values())
        chosen = int(devices[op])
        assert scores[chosen] == pytest.approx(best, rel=1e-9, abs=1e-12)
        for device in range(problem.n_devices):
            near = device in scores and scores[device] <= best * (1 + 2e-9) + 1e-12
            assert not tied[step, device] or near
        plain.place(op, chosen)
        if group[op] >= 0:
            home[group[op]] = chosen


def test_siblings_meet() -> None:
    # Two pairs of heavy tensors, each pair for one consumer: a pair on one device moves nothing.
    graph = Graph.from_arrays([0, 1, 2, 3], [4, 4, 5, 5], [1.0] * 6, [10.0] * 4 + [0.0] * 2)
    solution = HEURISTICS["sibling_affinity"](Problem(graph, Cluster.uniform(2)))
    devices = solution.placement.devices
    assert devices[0] == devices[1] == devices[4]
    assert devices[2] == devices[3] == devices[5]
    assert devices[0] != devices[2]
    assert solution.makespan == 3.0
    assert solution.origin == "sibling-affinity list schedule"


def test_restarts_say_so_and_help() -> None:
    problem = Problem(workloads.llama_layer(), Cluster.uniform(4))
    once = HEURISTICS["sibling_affinity"](problem)
    longer = HEURISTICS["sibling_affinity"](problem, budget=0.1)
    assert longer.makespan <= once.makespan
    assert longer.evaluations > 1
    assert longer.origin.startswith("sibling-affinity list schedule, best of ")
    assert simulate(problem, longer.placement).makespan == longer.makespan


@quick
@given(problem=problems(memory=False), seed=st.integers(0, 1000), weight=st.floats(0, 20))
def test_a_hint_raises_the_score_of_every_other_device(
    problem: Problem, seed: int, weight: float
) -> None:
    hint = np.random.default_rng(seed).integers(-1, problem.n_devices, problem.n_ops)
    placement = hinted_schedule(problem, hint, weight)
    placement.validate(problem)
    raised = weight * problem.mean_compute.mean()
    plain = PlainPartial(problem)
    group, home = problem.arrays.group, dict[int, int]()
    assert placement.priority is not None
    for op in np.argsort(placement.priority).tolist():
        can = np.flatnonzero(np.isfinite(problem.arrays.compute[op])).tolist()
        if group[op] >= 0 and group[op] in home:
            can = [home[group[op]]]
        scores = {
            device: plain.start(op, device)
            + float(problem.arrays.compute[op, device])
            + plain.affinity(op, device)
            + sum(
                plain.transfer(plain.device[u], device, float(problem.arrays.volume[u]))
                for u in plain.inputs[op]
                if plain.device[u] != device and (u, device) not in plain.arrived
            )
            + (raised if hint[op] not in (-1, device) else 0.0)
            for device in can
        }
        chosen = int(placement.devices[op])
        assert scores[chosen] == pytest.approx(min(scores.values()), rel=1e-9, abs=1e-12)
        plain.place(op, chosen)
        if group[op] >= 0:
            home[group[op]] = chosen


def test_a_hint_is_ignored_at_weight_0_and_followed_at_a_large_one() -> None:
    problem = Problem(workloads.chainmm(), Cluster.uniform(4))
    hint = np.arange(problem.n_ops) % 4
    alone = HEURISTICS["sibling_affinity"](problem).placement
    assert np.array_equal(hinted_schedule(problem, hint, 0.0).devices, alone.devices)
    assert np.array_equal(hinted_schedule(problem, hint, 1e9).devices, hint)
    none = np.full(problem.n_ops, -1)
    assert np.array_equal(hinted_schedule(problem, none, 1e9).devices, alone.devices)


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        ([0, 1], "hint: must be a whole number for each of 3 ops, not int64 of shape"),
        ([0.0, 1.0, 1.0], "hint: must be a whole number for each of 3 ops, not float64"),
        ([0, 1, 2], "hint: devices must lie in -1 to 1"),
        ([0, -2, 1], "hint: devices must lie in -1 to 1"),
    ],
)
def test_a_hint_that_does_not_suit_is_refused(hint: list[int], message: str) -> None:
    problem = Problem(Graph.from_arrays([0, 1], [1, 2], [1.0] * 3, [1.0] * 3), Cluster.uniform(2))
    with pytest.raises(PlacementError, match=message):
        hinted_schedule(problem, hint, 1.0)


@pytest.mark.parametrize("weight", [-1.0, np.inf, np.nan])
def test_a_weight_out_of_range_is_refused(weight: float) -> None:
    problem = Problem(Graph.from_arrays([], [], [1.0], [1.0]), Cluster.uniform(2))
    with pytest.raises(ParamsError, match="weight of the hint is"):
        hinted_schedule(problem, [0], weight)
