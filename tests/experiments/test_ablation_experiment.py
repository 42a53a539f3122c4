"""The ablation: every variant learns from the same start, by as many episodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from doppler import Cluster, Problem
from doppler.baselines.doppler_paper import PUBLISHED, PublishedPolicy, published_inputs
from doppler.baselines.stepwise import StepwiseLearner, repeated
from doppler.experiments import ablation
from doppler.graph.workloads.settings import WorkloadSettings
from doppler.heuristics.critical_path import critical_path_schedule
from doppler.policy.frozen import Sizes
from doppler.simulator import makespan_of
from doppler.training.dual_learner import DualLearner, DualSettings
from doppler.training.single import costs_of, learn

SMALL = WorkloadSettings(
    workload="chainmm", sizes={name: 8000 for name in ("m", "k", "n", "p", "q")}, tiles=2
)
GRAPHS = {"small": SMALL}
TINY = Sizes(8, 2, 8, 2)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(SMALL.build(), Cluster.load("p100x4"))


def test_cells_differ_and_run() -> None:
    grid = {"graphs": ["small"], "clusters": ["p100x4"]}
    messages = {"cases": [grid], "episodes": 4, "batch": 2, "seeds": 1}
    settings = ablation.SETTINGS.model_validate(
        {"cases": [grid], "episodes": 8, "batch": 4, "seeds": 1, "messages": messages}
    )
    cells = list(ablation.cells(settings, GRAPHS))
    assert [cell.given["family"] for cell in cells] == ["paper", "ours", "messages"]
    assert len({cell.name for cell in cells}) == 3
    for cell in cells:
        result = ablation.run(cell.given)
        assert [run["variant"] for run in result["runs"]] == [
            *ablation.FAMILIES[cell.given["family"]]
        ]
        for run in result["runs"]:
            assert run["makespan_s"] <= run["greedy_s"] * (1 + 1e-12)
            assert run["curve"]["episodes"][-1] == cell.given["episodes"]


def test_a_head_that_does_not_learn_chooses_as_critical_path_does(problem: Problem) -> None:
    """With neither learning, episodes cost what its schedules cost."""
    learner = DualLearner(problem, ablation.new_policy(0), DualSettings(select=False, place=False))
    episodes = learner.roller.play(
        learner._weights(learner.policy(learner.inputs)), 1, range(200), recorded=False
    )
    shown = [critical_path_schedule(problem, seed) for seed in range(200)]
    order = np.stack([order for order, _, _ in shown])
    devices = np.stack([placed for _, placed, _ in shown])
    priority = np.argsort(order, axis=1).astype(np.int32)
    expected = costs_of(problem, devices, priority)
    assert np.median(episodes.costs) == pytest.approx(np.median(expected), rel=0.03)


@pytest.mark.parametrize("head", ["select", "place"])
def test_only_the_head_that_learns_changes(problem: Problem, head: str) -> None:
    policy = ablation.new_policy(0, sizes=TINY)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    settings = DualSettings(select=head == "select", place=head == "place")
    learn(problem, DualLearner(problem, policy, settings), episodes=16, batch=8)
    changed = {
        name.split(".")[0]
        for name, value in policy.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert {"select_out", "select_hidden", "select_direct"} & changed == (
        {"select_out", "select_hidden", "select_direct"} if head == "select" else set()
    )
    assert {"first", "second"} & changed == ({"first", "second"} if head == "place" else set())


def test_copies_of_a_graph_are_embedded_alike(problem: Problem) -> None:
    inputs = published_inputs(problem)
    torch.manual_seed(0)
    policy = PublishedPolicy(TINY)
    with torch.no_grad():
        one = policy(inputs)
        three = policy(repeated(inputs, 3))
    for single, many in zip(one[:3], three[:3], strict=True):
        assert torch.allclose(torch.cat([single] * 3), many, atol=1e-5)


def test_message_passing_per_step_learns_and_repeats(problem: Problem) -> None:
    found = [
        learn(problem, StepwiseLearner(problem, PUBLISHED, TINY, seed=1), episodes=8, batch=4)
        for _ in range(2)
    ]
    assert np.array_equal(found[0].curve.mean, found[1].curve.mean)
    assert found[0].makespan == makespan_of(problem, found[0].placement, "fifo")
