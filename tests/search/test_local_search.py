"""Annealing: honest costs, exact undoing, memory, and the end."""

from __future__ import annotations

import numpy as np
import pytest
from heuristic_problems import mixed_cluster, problems, random_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doppler import Cluster, Device, Graph, Placement, Problem, simulate
from doppler.cluster.cluster import fully_connected
from doppler.errors import MemoryLimitError
from doppler.heuristics.base import Deadline
from doppler.heuristics.critical_path import critical_path_trace
from doppler.search.local_search import (
    Annealer,
    anneal,
    local_search,
    longest_makespan,
    objective,
    rank_of,
    ranks,
)
from doppler.search.recreate import make_recreation
from doppler.simulator.kernel import make_workspace

quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
both = pytest.mark.parametrize("runtime", ["priority", "fifo"])


def start_of(problem: Problem, seed: int = 0) -> Placement:
    order, devices, _ = critical_path_trace(problem, seed)
    return Placement(devices, rank_of(order))


class Chain:
    """The state of :func:`anneal`, laid bare."""

    def __init__(self, problem: Problem, runtime: str = "priority") -> None:
        start = start_of(problem)
        self.problem = problem
        self.runtime = runtime
        self.devices = start.devices.copy()
        self.priority = ranks(problem, start)
        self.by_rank = np.argsort(self.priority).astype(np.int32)
        self.work = make_workspace(problem.n_ops, problem.n_devices, problem.graph.n_edges)
        self.scratch = make_recreation(problem.arrays)
        self.best_devices = self.devices.copy()
        self.best_priority = self.priority.copy()
        self.cost = self.best = self.objective(self.devices, self.priority)

    def objective(self, devices: np.ndarray, priority: np.ndarray) -> float:
        return objective(
            self.problem.arrays,
            devices,
            priority if self.runtime == "priority" else priority[:0],
            self.problem.may_overflow,
            longest_makespan(self.problem),
            self.work,
        )

    def anneal(self, seed: int, steps: int, temperature: float, recreate: float = 0.0) -> None:
        annealer = Annealer(self.problem, 1)
        self.cost, self.best = anneal(
            self.problem.arrays,
            annealer._members_ptr,
            annealer._members,
            self.problem.may_overflow,
            longest_makespan(self.problem),
            self.runtime == "priority",
            seed,
            steps,
            temperature,
            self.devices,
            self.priority,
            self.by_rank,
            self.cost,
            self.best_devices,
            self.best_priority,
            self.best,
            self.work,
            float(self.problem.mean_compute.mean()),
            recreate,
            self.scratch,
        )

    def check(self) -> None:
        n_ops = self.problem.n_ops
        Placement(self.devices, self.priority).validate(self.problem)
        Placement(self.best_devices, self.best_priority).validate(self.problem)
        assert np.array_equal(self.priority[self.by_rank], np.arange(n_ops))
        assert sorted(self.best_priority.tolist()) == list(range(n_ops))
        assert self.cost == self.objective(self.devices, self.priority)
        assert self.best == self.objective(self.best_devices, self.best_priority)
        assert self.best <= self.cost


@both
@quick
@given(
    problem=problems(),
    seed=st.integers(0, 2**31 - 1),
    hot=st.booleans(),
    recreate=st.sampled_from([0.0, 0.5]),
)
def test_the_books_are_exact(
    runtime: str, problem: Problem, seed: int, hot: bool, recreate: float
) -> None:
    """After any number of accepted and undone moves the state costs what is written."""
    chain = Chain(problem, runtime)
    chain.check()
    order = chain.priority.copy()
    first = chain.best
    for turn in range(3):
        chain.anneal(seed + turn, 100, max(first, 1e-9) * (1e3 if hot else 1e-9), recreate)
        chain.check()
    assert chain.best <= first
    if runtime == "fifo":
        assert np.array_equal(chain.priority, order)


@both
@pytest.mark.parametrize("recreate", [0.0, 0.5])
def test_what_is_not_taken_is_undone(runtime: str, recreate: float) -> None:
    colocation = np.where(np.arange(30) % 4 == 0, np.arange(30) % 3, -1)
    graph = random_graph(np.random.default_rng(0), 30, colocation=colocation)
    chain = Chain(Problem(graph, Cluster.uniform(3)), runtime)
    chain.anneal(1, 500, 1e9, recreate)
    chain.check()
    devices_before, priority_before = chain.devices.copy(), chain.priority.copy()
    by_rank_before, cost = chain.by_rank.copy(), chain.cost
    # From a cost that nothing can match, every move is refused.
    chain.cost = -1.0
    chain.anneal(2, 5000, 1e-12, recreate)
    assert chain.cost == -1.0
    assert np.array_equal(chain.devices, devices_before)
    assert np.array_equal(chain.priority, priority_before)
    assert np.array_equal(chain.by_rank, by_rank_before)
    chain.cost = cost
    chain.check()


def test_one_group_of_all_ops_moves_as_one() -> None:
    graph = random_graph(np.random.default_rng(0), 40, colocation=[5] * 40)
    problem = Problem(graph, mixed_cluster(np.random.default_rng(1), 4))
    chain = Chain(problem)
    seen = set()
    for turn in range(20):
        chain.anneal(turn, 20, 1e9)
        chain.check()
        assert len(set(chain.devices.tolist())) == 1
        seen.add(int(chain.devices[0]))
    assert seen == {0, 1, 2, 3}


def test_a_clique_of_groups_moves_in_regions() -> None:
    # Regions of large groups note many changes in one move.
    n_ops = 60
    src, dst = zip(*[(u, v) for v in range(n_ops) for u in range(max(0, v - 6), v)], strict=True)
    graph = Graph.build(
        n_ops, src, dst, flops=[1e12] * n_ops, colocation=[op % 6 for op in range(n_ops)]
    )
    chain = Chain(Problem(graph, Cluster.uniform(5)))
    for turn in range(10):
        chain.anneal(turn, 500, 1e9)
        chain.check()


@quick
@given(problem=problems(), seed=st.integers(0, 1000))
def test_no_makespan_exceeds_the_longest(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    longest = longest_makespan(problem)
    compute = problem.arrays.compute
    home = rng.random(compute.shape)[problem.arrays.group]
    wish = np.where((problem.arrays.group >= 0)[:, None], home, rng.random(compute.shape))
    devices = np.where(np.isfinite(compute), wish, -1).argmax(axis=1)
    for runtime in ("priority", "fifo"):
        placement = Placement(devices, rng.permutation(problem.n_ops))
        assert simulate(problem, placement, runtime=runtime).makespan <= longest * (1 + 1e-12)


@both
@quick
@given(problem=problems(), seed=st.integers(0, 100))
def test_refined_placements(runtime: str, problem: Problem, seed: int) -> None:
    starts = [start_of(problem, number) for number in range(3)]
    annealer = Annealer(problem, threads=2, runtime=runtime, recreate_share=0.3)
    placement, cost, evaluations = annealer.refine(starts, Deadline(0.01), seed)
    placement.validate(problem)
    result = simulate(problem, placement, runtime=runtime)
    fits = bool((result.peak_memory <= problem.arrays.capacity).all())
    assert evaluations >= 0
    if fits:
        assert cost == result.makespan
    else:
        assert cost > longest_makespan(problem)
    for start in starts:
        first = simulate(problem, start, runtime=runtime)
        if (first.peak_memory <= problem.arrays.capacity).all():
            assert fits
            assert result.makespan <= first.makespan


def test_a_start_without_priorities_keeps_its_order() -> None:
    problem = Problem(random_graph(np.random.default_rng(0), 30), Cluster.uniform(3))
    start = Placement(start_of(problem).devices)
    fifo = simulate(problem, start)
    assert ranks(problem, start)[fifo.trace.op].tolist() == list(range(30))
    placement, cost, evaluations = Annealer(problem).refine([start], Deadline(0.0), 0)
    assert evaluations == 0
    assert cost == simulate(problem, placement).makespan


@pytest.mark.parametrize("threads", [1, 3])
def test_it_stops_at_the_lower_bound(threads: int) -> None:
    # Eight equal ops on four devices: the first good placement is as good as any.
    problem = Problem(Graph.from_arrays([], [], [1.0] * 8, [0.0] * 8), Cluster.uniform(4))
    worst = Placement([0] * 8, range(8))
    placement, cost, _ = Annealer(problem, threads).refine([worst] * 2, Deadline(600.0), 0)
    assert cost == 2.0 == problem.lower_bound
    assert np.bincount(placement.devices).tolist() == [2, 2, 2, 2]


def test_a_problem_without_time_is_solved_at_once() -> None:
    problem = Problem(Graph.from_arrays([0], [1], [0.0] * 2, [0.0] * 2), Cluster.uniform(2))
    assert local_search(problem, budget=600.0).makespan == 0.0


def test_what_fits_is_better_than_what_is_fast() -> None:
    # The fast device cannot hold both; the other is a billion times slower.
    devices = (Device("fast", memory=3e9), Device("slow", memory=9e9, slowdown=1e9))
    cluster = Cluster("two", devices, fully_connected(2))
    graph = Graph.from_arrays([], [], [1.0] * 2, [0.0] * 2, param_bytes=[2e9] * 2)
    problem = Problem(graph, cluster)
    start = Placement([0, 0], [0, 1])
    placement, cost, _ = Annealer(problem, 1).refine([start], Deadline(0.05), 0)
    assert cost == 1e9
    assert sorted(placement.devices.tolist()) == [0, 1]


def test_it_finds_its_way_out_of_an_overflow() -> None:
    # Bins that fill exactly: 5 + 1, 4 + 2, 3 + 3.
    sizes = [3e9, 3e9, 1e9, 2e9, 4e9, 5e9]
    graph = Graph.from_arrays([], [], [1.0] * 6, [0.0] * 6, param_bytes=sizes)
    problem = Problem(graph, Cluster.uniform(3, memory=6e9))
    worst = Placement([0] * 6, range(6))
    placement, _, _ = Annealer(problem).refine([worst], Deadline(2.0), 0)
    assert (simulate(problem, placement).peak_memory <= 6e9).all()


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
