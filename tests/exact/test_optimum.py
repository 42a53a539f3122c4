"""CP-SAT's optima: what the simulator reproduces, and brute force cannot beat."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import mixed_cluster, random_graph

from doppler import Cluster, Device, Graph, Link, Placement, Problem
from doppler.cluster.link import fully_connected
from doppler.errors import MissingPackageError, ProblemError
from doppler.exact import exact
from doppler.heuristics.heft import heft
from doppler.simulator import makespan_of, simulate_many

pytest.importorskip("ortools")


def whole_problem(seed: int, n_ops: int, n_devices: int) -> Problem:
    """Times of 1 to 9 seconds, and devices of two speeds every other time."""
    rng = np.random.default_rng(seed)
    count = np.minimum(rng.integers(0, 4, n_ops), np.arange(n_ops))
    dst = np.repeat(np.arange(n_ops), count)
    src = (rng.random(dst.size) * dst).astype(int)
    ratio = float(rng.choice([0.3, 1.0, 3.0]))
    compute = rng.integers(1, 10, n_ops).astype(float)
    moved = np.maximum(1.0, np.round(rng.integers(1, 10, n_ops) * ratio))
    devices = [Device(f"d{d}", slowdown=2.0 if d < seed % 2 else 1.0) for d in range(n_devices)]
    cluster = Cluster("two speeds", tuple(devices), fully_connected(n_devices, 1.0))
    return Problem(Graph.from_arrays(src, dst, compute, moved), cluster)


def brute_force(problem: Problem) -> float:
    """Simulate every placement with every order."""
    n_ops = problem.n_ops
    orders = np.array(list(itertools.permutations(range(n_ops))), np.int32)
    best = np.inf
    for devices in itertools.product(range(problem.n_devices), repeat=n_ops):
        placed = np.broadcast_to(np.array(devices, np.int32), orders.shape)
        best = min(best, float(simulate_many(problem, placed, orders, threads=1).min()))
    return best


@pytest.mark.parametrize("seed", range(8))
def test_nothing_beats_it_among_all_placements_and_orders(seed: int) -> None:
    problem = whole_problem(seed, 5, 2 + seed % 4 // 3)
    found = exact(problem, seed=seed)
    assert found.proven
    assert found.makespan == found.bound == brute_force(problem)


@settings(max_examples=12)
@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.integers(1, 3))
def test_the_simulator_reproduces_the_optimum(seed: int, n_ops: int, n_devices: int) -> None:
    problem = whole_problem(seed, n_ops, n_devices)
    found = exact(problem, threads=1)
    assert found.proven
    assert makespan_of(problem, found.placement) == found.makespan == found.bound
    assert found.makespan >= problem.lower_bound


@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1))
def test_times_without_a_common_unit_are_bounded_from_below(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = np.minimum(rng.integers(0, 3, 5), np.arange(5))
    dst = np.repeat(np.arange(5), count)
    src = (rng.random(dst.size) * dst).astype(int)
    graph = Graph.from_arrays(src, dst, rng.uniform(1, 5, 5), rng.uniform(0.1, 9, 5))
    problem = Problem(graph, Cluster.uniform(2))
    found, best = exact(problem, threads=1), brute_force(problem)
    assert found.bound <= best * (1 + 1e-9)
    assert found.makespan >= best * (1 - 1e-9)
    assert found.proven
    assert found.makespan == pytest.approx(best, rel=1e-4)


@settings(max_examples=12)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_transfers_that_take_turns_do_so_as_in_the_simulator(seed: int, whole: bool) -> None:
    rng = np.random.default_rng(seed)
    n_ops, n_devices = 5, 2 + seed % 2
    count = np.minimum(rng.integers(0, 4, n_ops), np.arange(n_ops))
    dst = np.repeat(np.arange(n_ops), count)
    src = (rng.random(dst.size) * dst).astype(int)
    times = rng.integers(1, 10, (2, n_ops)) if whole else rng.uniform(1, 10, (2, n_ops))
    channels = rng.integers(-1, n_devices, (n_devices, n_devices)) * (seed % 3 > 0)
    links = tuple(
        Link(a, b, hops=float(rng.integers(1, 3)), channel=int(channels[a, b]))
        for a in range(n_devices)
        for b in range(n_devices)
        if a != b
    )
    devices = tuple(Device(f"d{d}") for d in range(n_devices))
    cluster = Cluster("channels", devices, links, tuple(f"c{d}" for d in range(n_devices)))
    problem = Problem(Graph.from_arrays(src, dst, *times.astype(float)), cluster)
    found, best = exact(problem, threads=1), brute_force(problem)
    assert found.proven
    assert found.bound <= best * (1 + 1e-9)
    assert found.makespan == (best if whole else pytest.approx(best, rel=1e-4))


@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.booleans())
def test_pins_groups_ops_without_time_and_links_of_two_speeds(
    seed: int, n_ops: int, shared: bool
) -> None:
    rng = np.random.default_rng(seed)
    pinned = np.where(rng.random(n_ops) < 0.2, rng.integers(0, 2, n_ops), -1)
    colocation = np.where((rng.random(n_ops) < 0.5) & (pinned < 0), 0, -1)
    graph = random_graph(rng, n_ops, pinned=pinned, colocation=colocation)
    problem = Problem(graph, mixed_cluster(rng, 2, shared=shared))
    found, best = exact(problem, threads=1), brute_force_allowed(problem)
    found.placement.validate(problem)
    assert found.bound <= best * (1 + 1e-9)
    if (problem.arrays.compute > 0).all():
        assert found.makespan == pytest.approx(best)
        assert found.proven


def brute_force_allowed(problem: Problem) -> float:
    """Simulate every placement that respects pins and groups."""
    graph = problem.graph
    orders = np.array(list(itertools.permutations(range(problem.n_ops))), np.int32)
    best = np.inf
    for devices in itertools.product(range(problem.n_devices), repeat=problem.n_ops):
        placed = np.array(devices, np.int32)
        if ((graph.pinned >= 0) & (graph.pinned != placed)).any():
            continue
        if np.unique(placed[graph.colocation == 0]).size > 1:
            continue
        both = np.broadcast_to(placed, orders.shape)
        best = min(best, float(simulate_many(problem, both, orders, threads=1).min()))
    return best


def test_a_start_is_never_lost() -> None:
    problem = whole_problem(0, 12, 2)
    start = heft(problem).placement
    found = exact(problem, start=start, budget=0.0)
    assert found.makespan <= makespan_of(problem, start)
    assert found.bound >= problem.lower_bound * (1 - 1e-9)


def test_what_it_cannot_solve_is_refused() -> None:
    graph = Graph.from_arrays([0], [1], [1, 1], [1, 1], param_bytes=[4.0, 4.0])
    big = Graph.from_arrays([], [], np.ones(201), np.ones(201))
    for problem, message in (
        (Problem(graph, Cluster.uniform(2, memory=5.0)), "memory may not hold all"),
        (Problem(big, Cluster.uniform(2)), "201 ops; exact optima are for up to 200"),
    ):
        with pytest.raises(ProblemError, match=message):
            exact(problem)
    with pytest.raises(Exception, match="start is 3, must be a Placement"):
        exact(whole_problem(0, 4, 2), start=3)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="3 ops"):
        exact(whole_problem(0, 4, 2), start=Placement([0, 0, 0]))


def test_without_the_solver_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "doppler.exact.model", raising=False)
    monkeypatch.setitem(sys.modules, "ortools", None)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'doppler\[exact\]'"):
        exact(whole_problem(0, 4, 2))
