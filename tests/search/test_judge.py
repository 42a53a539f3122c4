"""The judge: one set of durations for all, memory first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import mixed_cluster, problems, random_graph, random_placement, weighty_graph

from doppler import Cluster, Device, Graph, Placement, Problem, simulate
from doppler.cluster.link import fully_connected
from doppler.search.judge import Judge
from doppler.simulator.kernel import make_workspace, run_drawn

quick = settings(max_examples=60)
FIFO = np.empty(0, np.int32)


@pytest.mark.parametrize("runtime", ["priority", "fifo"])
@quick
@given(problem=problems(), seed=st.integers(0, 1000))
def test_without_jitter_it_is_the_simulation(runtime: str, problem: Problem, seed: int) -> None:
    placement = random_placement(problem, seed)
    judge = Judge(problem, 0.0, 5, 0)
    score = judge.score(placement.devices, placement.priority if runtime == "priority" else FIFO)
    result = simulate(problem, placement, runtime=runtime)
    assert score.makespan == result.makespan
    over = np.maximum(result.peak_memory - problem.arrays.capacity, 0.0)
    excess = np.divide(over, problem.arrays.capacity, where=over > 0, out=np.zeros_like(over))
    assert score.overflow == pytest.approx(excess.sum(), rel=1e-12)
    assert score.fits == bool((over == 0).all())


@quick
@given(problem=problems(), seed=st.integers(0, 1000))
def test_under_jitter_it_is_the_mean_over_the_same_runs(problem: Problem, seed: int) -> None:
    judge = Judge(problem, 0.2, 3, [seed, 1])
    twin = Judge(problem, 0.2, 3, [seed, 1])
    work = make_workspace(problem.n_ops, problem.n_devices, 0)
    placements = [random_placement(problem, seed + number) for number in range(3)]
    scores = [judge.score(one.devices, one.priority) for one in placements]
    for placement, score in zip(placements, scores, strict=True):
        makespans = [
            run_drawn(
                problem.arrays,
                placement.devices.copy(),
                placement.priority.copy(),
                *each,
                np.inf,
                work,
            )
            for each in zip(*judge.draws, strict=True)
        ]
        assert score.makespan == np.mean(makespans)
    assert judge.evaluations == 3
    # Neither the order in which they come nor what was scored before makes a difference.
    for placement, score in zip(placements[::-1], scores[::-1], strict=True):
        assert twin.score(placement.devices, placement.priority) == score
        assert judge.score(placement.devices, placement.priority) == score


def test_an_op_takes_the_same_time_wherever_it_runs() -> None:
    # Equal devices without transfers: who swaps all devices changes nothing, whatever the noise.
    graph = weighty_graph(0, 40)
    alone = Graph.from_arrays(graph.src, graph.dst, graph.compute_s, np.zeros(40))
    problem = Problem(alone, Cluster.uniform(3))
    judge = Judge(problem, 0.5, 4, 0)
    placement = random_placement(problem, 1)
    turned = (placement.devices + 1) % 3
    assert judge.score(placement.devices, placement.priority) == judge.score(
        turned, placement.priority
    )


def test_what_fits_is_better_than_what_is_fast() -> None:
    devices = (Device("fast", memory=3e9), Device("slow", memory=9e9, slowdown=1e9))
    cluster = Cluster("two", devices, fully_connected(2))
    graph = Graph.from_arrays([], [], [1.0] * 2, [0.0] * 2, param_bytes=[2e9] * 2)
    for jitter in (0.0, 0.1):
        judge = Judge(Problem(graph, cluster), jitter, 4, 0)
        fast = judge.score(np.array([0, 0], np.int32), FIFO)
        slow = judge.score(np.array([0, 1], np.int32), FIFO)
        assert fast.makespan < slow.makespan
        assert slow < fast


def test_the_mean_comes_near_the_expected_makespan() -> None:
    rng = np.random.default_rng(3)
    problem = Problem(random_graph(rng, 60), mixed_cluster(rng, 3))
    placement = random_placement(problem, 0)
    score = Judge(problem, 0.1, 400, 0).score(placement.devices, placement.priority)
    plain = [
        simulate(problem, Placement(placement.devices, placement.priority), jitter=0.1, seed=seed)
        for seed in range(400)
    ]
    makespans = np.array([each.makespan for each in plain])
    error = makespans.std() * np.sqrt(2 / 400)
    assert score.makespan == pytest.approx(makespans.mean(), abs=5 * error)
