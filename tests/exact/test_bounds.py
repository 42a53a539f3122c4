"""Lower bounds that count communication: nothing is below them, and they are no weaker."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import any_problem, explicit_problems, random_placement

from doppler import Cluster, Graph, Problem
from doppler.exact.bounds import lower_bound
from doppler.graph.workloads import make
from doppler.heuristics.critical_path import critical_path
from doppler.simulator import makespan_of, simulate_many

ROUNDING = 1 + 1e-9


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_no_placement_is_below_it(seed: int) -> None:
    problem = any_problem(seed)
    bound = lower_bound(problem)
    assert bound >= problem.lower_bound
    for each in range(20):
        assert bound <= makespan_of(problem, random_placement(problem, each)) * ROUNDING


@settings(max_examples=40)
@given(explicit_problems())
def test_no_schedule_of_explicit_costs_is_below_it(problem: Problem) -> None:
    bound = lower_bound(problem)
    assert problem.lower_bound <= bound
    assert bound <= critical_path(problem, budget=0.005).makespan * ROUNDING


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_no_placement_and_order_of_a_few_ops_is_below_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_ops = int(rng.integers(2, 6))
    count = np.minimum(rng.integers(0, 4, n_ops), np.arange(n_ops))
    dst = np.repeat(np.arange(n_ops), count)
    src = (rng.random(dst.size) * dst).astype(int)
    graph = Graph.from_arrays(src, dst, rng.integers(0, 9, n_ops), rng.integers(0, 20, n_ops))
    problem = Problem(graph, Cluster.uniform(2))
    orders = np.array(list(itertools.permutations(range(n_ops))), np.int32)
    best = np.inf
    for devices in itertools.product(range(2), repeat=n_ops):
        placed = np.broadcast_to(np.array(devices, np.int32), orders.shape)
        best = min(best, float(simulate_many(problem, placed, orders, threads=1).min()))
    assert lower_bound(problem) <= best * ROUNDING


def bound(edges: list[tuple[int, int]], compute: list[float], moved: float, devices: int) -> float:
    src, dst = [u for u, _ in edges], [v for _, v in edges]
    graph = Graph.from_arrays(src, dst, compute, [moved] * len(compute))
    return lower_bound(Problem(graph, Cluster.uniform(devices)))


def test_one_device_has_no_communication() -> None:
    assert bound([(0, 1)], [1.0, 2.0], 5.0, 1) == 3.0


def test_a_join_waits_for_one_transfer_or_runs_on_one_device() -> None:
    # Either both inputs were made on one device, or one of them was sent.
    assert bound([(0, 2), (1, 2)], [4.0, 4.0, 1.0], 2.0, 2) == pytest.approx(7.0)
    assert bound([(0, 2), (1, 2)], [4.0, 4.0, 1.0], 9.0, 2) == pytest.approx(9.0)


def test_a_fork_waits_for_one_transfer_or_runs_on_one_device() -> None:
    assert bound([(0, 1), (0, 2)], [1.0, 4.0, 4.0], 2.0, 2) == pytest.approx(7.0)


def test_a_diamond_with_heavy_transfers_runs_on_one_device() -> None:
    edges = [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert bound(edges, [1.0, 3.0, 3.0, 1.0], 50.0, 2) == pytest.approx(8.0, rel=1e-2)


def test_what_cannot_share_a_device_pays_for_the_transfer() -> None:
    graph = Graph.build(
        2,
        [0],
        [1],
        transfer_s=[5.0, 0.0],
        compute_s=[1.0, 1.0],
        pinned=[0, 1],
    )
    assert lower_bound(Problem(graph, Cluster.uniform(2))) == pytest.approx(7.0)


def test_a_workload_gains() -> None:
    problem = Problem(make("llama_block"), Cluster.load("p100x4"))
    assert problem.lower_bound < lower_bound(problem) <= critical_path(problem).makespan
