"""Every method by name, and what place() says of its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import doppler
from doppler import Cluster, Graph, Problem, simulate
from doppler.errors import CheckpointError, MemoryLimitError, ParamsError, UnknownNameError
from doppler.methods import BASELINES, HEURISTICS, METHODS, SEARCHED, place, solve
from doppler.policy.checkpoint import save_policy
from doppler.policy.features import FeatureSet
from doppler.policy.frozen import Sizes
from doppler.policy.network import DualPolicy


@pytest.fixture(scope="module")
def policy() -> DualPolicy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return DualPolicy(Sizes(16, 2, 8, 4), FeatureSet.named("full"))


@pytest.fixture(scope="module")
def problem() -> Problem:
    rng = np.random.default_rng(0)
    dst = np.repeat(np.arange(1, 40), 2)
    src = (rng.random(dst.size) * dst).astype(int)
    graph = Graph.from_arrays(src, dst, rng.uniform(1, 5, 40), rng.uniform(0, 3, 40), name="forty")
    return Problem(graph, Cluster.uniform(3))


def test_methods_are_the_learned_one_the_heuristics_and_the_baselines() -> None:
    assert METHODS[0] == "doppler"
    assert METHODS[1:] == (*HEURISTICS, *BASELINES)
    assert METHODS[: len(SEARCHED)] == SEARCHED
    assert not set(SEARCHED) & set(BASELINES)
    assert doppler.place is place


@pytest.mark.parametrize("runtime", ["priority", "fifo"])
@pytest.mark.parametrize("method", METHODS)
def test_place_says_what_it_knows(
    problem: Problem, policy: DualPolicy, method: str, runtime: str
) -> None:
    placement = place(problem, method, policy=policy, budget=0.02, seed=5, runtime=runtime)
    info = dict(placement.info)
    assert info["method"] == method
    assert (info["graph"], info["cluster"]) == ("forty", "uniform:3")
    assert info["makespan_s"] == simulate(problem, placement).makespan
    assert info["makespan_fifo_s"] == simulate(problem, placement, runtime="fifo").makespan
    assert (
        info["lower_bound_s"]
        == problem.lower_bound
        <= min(info["makespan_s"], info["makespan_fifo_s"])
    )
    assert info["origin"]
    assert info["evaluations"] >= 1
    assert info["seconds"] > 0
    assert (info["budget_s"], info["seed"]) == (0.02, 5)


def test_the_placement_can_be_saved(problem: Problem, policy: DualPolicy, tmp_path: Path) -> None:
    placement = place(problem, policy=policy, budget=0.0)
    loaded = doppler.Placement.load(placement.save(tmp_path / "placement.json"))
    assert np.array_equal(loaded.devices, placement.devices)
    assert np.array_equal(loaded.priority, placement.priority)
    assert dict(loaded.info) == dict(placement.info)


def test_a_policy_may_come_from_a_file(
    problem: Problem, policy: DualPolicy, tmp_path: Path
) -> None:
    path = save_policy(policy, tmp_path / "policy.safetensors")
    for given in (path, str(path)):
        solution = solve(problem, policy=given, budget=0.0)
        assert solution.makespan == solve(problem, policy=policy, budget=0.0).makespan


def test_the_runtime_decides_what_a_solution_states(problem: Problem, policy: DualPolicy) -> None:
    for method in METHODS:
        solution = solve(problem, method, policy=policy, budget=0.0, runtime="fifo")
        fifo = simulate(problem, solution.placement, runtime="fifo").makespan
        assert solution.makespan == fifo


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"method": "dopler"}, UnknownNameError, "unknown method 'dopler': did you mean 'doppler'"),
        ({"budget": -1.0}, ParamsError, r"budget is -1.0, must be a finite number >= 0"),
        ({"budget": float("nan")}, ParamsError, "budget is nan"),
        ({"budget": float("inf")}, ParamsError, "budget is inf"),
        ({"seed": -1}, ParamsError, "seed is -1, must be a whole number >= 0"),
        ({"runtime": "lifo"}, UnknownNameError, "unknown runtime 'lifo': did you mean 'fifo'"),
        ({"policy": "/nowhere/policy"}, CheckpointError, "policy: no such policy file"),
    ],
)
def test_wrong_arguments(
    problem: Problem, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        place(problem, **changes)


@pytest.mark.parametrize("runtime", ["priority", "fifo"])
@pytest.mark.parametrize("method", METHODS)
def test_nothing_that_overflows_is_returned(policy: DualPolicy, method: str, runtime: str) -> None:
    graph = Graph.from_arrays([], [], [1.0] * 3, [0.0] * 3, name="big", param_bytes=[3e9] * 3)
    problem = Problem(graph, Cluster.uniform(2, memory=4e9))
    with pytest.raises(MemoryLimitError, match=r"big: .*device 'gpu\d' lacks \d GB"):
        place(problem, method, policy=policy, budget=0.0, runtime=runtime)


def test_one_op_on_more_devices_than_ops(policy: DualPolicy) -> None:
    problem = Problem(Graph.from_arrays([], [], [2.0], [1.0]), Cluster.uniform(8))
    placement = place(problem, policy=policy, budget=0.05)
    assert placement.info["makespan_s"] == 2.0
