"""The search: never worse than greedy, never beyond memory, honest about how it went."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policies import encode, problems, quick, random_policy, weighty_graph

from doppler import Cluster, Graph, Placement, Problem, load_graph, simulate
from doppler.errors import MemoryLimitError
from doppler.policy.rollout import GREEDY, Roller
from doppler.portfolio import search

LAYERS = Path(__file__).parents[2] / "shared" / "graphs" / "layers"
POLICY = random_policy(0)
both = pytest.mark.parametrize("runtime", ["priority", "fifo"])


def greedy(problem: Problem, runtime: str = "priority") -> float:
    """Makespan of the greedy episode, infinite if it does not fit."""
    _, weights = encode(POLICY, problem)
    episodes = Roller(problem, 1).play(weights, GREEDY, [0], runtime=runtime)
    return float(episodes.makespans[0]) if episodes.overflow[0] == 0 else np.inf


@both
@quick
@given(problem=problems(), seed=st.integers(0, 1000))
def test_solutions_fit_and_beat_greedy(runtime: str, problem: Problem, seed: int) -> None:
    first = greedy(problem, runtime)
    if not np.isfinite(first):
        return
    for budget, samples in ((0.0, None), (0.0, 3), (0.02, None)):
        solution = search(
            problem, POLICY, budget=budget, seed=seed, runtime=runtime, samples=samples
        )
        result = simulate(problem, solution.placement, runtime=runtime)
        assert solution.makespan == result.makespan <= first
        assert (result.peak_memory <= problem.arrays.capacity).all()
        assert solution.makespan >= problem.lower_bound * (1 - 1e-9)
        if budget == 0 and samples is None:
            assert solution.makespan == first
            assert solution.evaluations == 1
            assert solution.origin == "greedy episode"


def test_samples_are_counted() -> None:
    problem = Problem(weighty_graph(), Cluster.uniform(4))
    for samples in (0, 1, 16, 40):
        solution = search(problem, POLICY, samples=samples, seed=3)
        assert solution.evaluations == samples + 1
    again = search(problem, POLICY, samples=40, seed=3)
    assert again.makespan == solution.makespan
    assert np.array_equal(again.placement.devices, solution.placement.devices)
    other = search(problem, POLICY, samples=40, seed=4)
    assert not np.array_equal(other.placement.priority, solution.placement.priority)


@both
def test_the_runtime_asked_for_is_the_one_that_improves(runtime: str) -> None:
    problem = Problem(weighty_graph(1, 80), Cluster.uniform(4))
    solution = search(problem, POLICY, budget=0.5, runtime=runtime)
    assert solution.makespan < greedy(problem, runtime)
    assert solution.makespan == simulate(problem, solution.placement, runtime=runtime).makespan
    assert solution.origin == "local search from the policy's episodes"


def test_it_stops_at_the_lower_bound() -> None:
    problem = Problem(Graph.from_arrays([], [], [1.0] * 8, [0.0] * 8), Cluster.uniform(4))
    solution = search(problem, POLICY, budget=600.0)
    assert solution.makespan == problem.lower_bound == 2.0


def some_placement_fits(problem: Problem) -> bool:
    """Try every assignment to equal devices, in one order."""
    order = np.argsort(problem.arrays.order)
    for rest in itertools.product(range(problem.n_devices), repeat=problem.n_ops - 1):
        devices = np.array((0, *rest))
        held = np.bincount(devices, problem.arrays.param_bytes, minlength=problem.n_devices)
        if (held <= problem.arrays.capacity).all():
            peak = simulate(problem, Placement(devices, order)).peak_memory
            if (peak <= problem.arrays.capacity).all():
                return True
    return False


def test_a_fit_is_found_where_the_greedy_episode_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("doppler.portfolio.RESCUE_SECONDS", 0.2)
    rescued = 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        graph = Graph.build(
            7,
            [0, 1, 2, 3],
            [5, 5, 6, 6],
            flops=rng.integers(1, 5, 7) * 1e12,
            param_bytes=rng.integers(1, 4, 7) * 1e9,
            output_bytes=rng.integers(0, 3, 7) * 1e9,
        )
        memory = graph.param_bytes.sum() / 3 + 3e9
        problem = Problem(graph, Cluster.uniform(3, memory=memory))
        if np.isfinite(greedy(problem)) or not some_placement_fits(problem):
            continue
        rescued += 1
        solution = search(problem, POLICY, budget=0.0, seed=seed)
        assert solution.evaluations > 1
        assert solution.origin != "greedy episode"
        peak = simulate(problem, solution.placement).peak_memory
        assert (peak <= problem.arrays.capacity).all()
    assert rescued >= 3


def test_bins_that_fill_to_the_last_byte() -> None:
    sizes = [5e9, 1e9, 4e9, 2e9, 3e9, 3e9]
    graph = Graph.from_arrays([], [], [1.0] * 6, [0.0] * 6, param_bytes=sizes)
    problem = Problem(graph, Cluster.uniform(3, memory=6e9))
    peak = simulate(problem, search(problem, POLICY, budget=0.0).placement).peak_memory
    assert peak.tolist() == [6e9] * 3


@pytest.mark.parametrize("samples", [None, 2])
def test_what_fits_nowhere_names_what_is_missing(samples: int | None) -> None:
    graph = Graph.from_arrays([], [], [1.0] * 3, [0.0] * 3, name="big", param_bytes=[3e9] * 3)
    problem = Problem(graph, Cluster.uniform(2, memory=4e9))
    with pytest.raises(
        MemoryLimitError, match=r"big: .*device 'gpu\d' lacks \d GB \(needs \d GB, has 4 GB\)"
    ):
        search(problem, POLICY, budget=0.0, samples=samples)


@both
@pytest.mark.parametrize(
    "name", ["bert24_inference", "gnmt_inference", "inceptionv3_inference", "resnet50_inference"]
)
def test_the_layer_graphs_fit_in_memory_and_groups(name: str, runtime: str) -> None:
    path = LAYERS / f"{name}.json"
    if not path.exists():
        pytest.skip("needs ../shared/graphs/layers")
    problem = Problem(load_graph(path))
    solution = search(problem, POLICY, budget=0.2, runtime=runtime)
    solution.placement.validate(problem)
    result = simulate(problem, solution.placement, runtime=runtime)
    assert (result.peak_memory <= problem.arrays.capacity).all()
    assert solution.makespan == result.makespan


@pytest.mark.parametrize("seed", range(3))
def test_a_packing_that_leaves_no_byte_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cuts = [np.sort(rng.choice(np.arange(1, 100), 7, replace=False)) for _ in range(4)]
    sizes = np.concatenate([np.diff([0, *cut, 100]) for cut in cuts])
    rng.shuffle(sizes)
    ops = np.arange(sizes.size)
    graph = Graph.build(
        ops.size, ops[:-1], ops[1:], flops=np.full(ops.size, 1e9), param_bytes=sizes
    )
    problem = Problem(graph, Cluster.uniform(4, memory=100.0))
    devices = search(problem, POLICY, budget=2.0).placement.devices
    assert np.bincount(devices, sizes, 4).tolist() == [100.0] * 4
