"""SEL and PLC learning one problem, in the harness that all learned methods share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from policies import random_policy

from doppler import Cluster, Graph, Placement, Problem
from doppler.errors import ParamsError
from doppler.graph.workloads import chainmm
from doppler.policy.frozen import Sizes
from doppler.policy.likelihood import LogProbabilities
from doppler.policy.network import DualPolicy
from doppler.policy.rollout import SAMPLE, Record
from doppler.simulator import makespan_of
from doppler.training.case import new_policy
from doppler.training.dual_learner import DualLearner, DualSettings
from doppler.training.gradient import Objective
from doppler.training.objectives import Imitation, PolicyGradient
from doppler.training.single import costs_of, learn

SMALL = Sizes(embedding=8, layers=1, hidden=8, code=2)


def small_policy(seed: int = 0) -> DualPolicy:
    return new_policy(seed, sizes=SMALL)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(chainmm(8192, 8192, 8192, 8192, 8192, tiles=2), Cluster.uniform(3))


@pytest.mark.parametrize("settings", [DualSettings(), DualSettings(runtime="fifo", imitation=0.5)])
def test_the_same_seed_learns_the_same(problem: Problem, settings: DualSettings) -> None:
    found = [
        learn(problem, DualLearner(problem, small_policy(), settings), episodes=24, batch=8, seed=3)
        for _ in range(2)
    ]
    assert np.array_equal(found[0].curve.mean, found[1].curve.mean)
    assert np.array_equal(found[0].placement.devices, found[1].placement.devices)
    assert found[0].greedy == found[1].greedy


@pytest.mark.parametrize("runtime", ["priority", "fifo"])
def test_the_best_placement_takes_as_long_as_stated(problem: Problem, runtime: str) -> None:
    learner = DualLearner(problem, small_policy(), DualSettings(runtime=runtime))
    found = learn(problem, learner, episodes=20, batch=8, seed=0)
    assert found.makespan == makespan_of(problem, found.placement, runtime)
    assert found.makespan <= found.greedy
    assert found.curve.episodes.tolist() == [8, 16, 20]
    assert (np.diff(found.curve.best) <= 0).all()
    assert (found.curve.best <= found.curve.mean).all()
    assert (found.placement.priority is None) == (runtime == "fifo")


def test_imitation_learns_the_teacher(problem: Problem) -> None:
    settings = DualSettings(imitation=1.0, learning_rate=1e-2, final_learning_rate=1e-3)
    learner = DualLearner(problem, small_policy(), settings)
    learner.policy.direct.weight.data.zero_()
    before = makespan_of(problem, learner.greedy())
    learn(problem, learner, episodes=400, batch=8, seed=0)
    assert makespan_of(problem, learner.greedy()) < before


def test_a_budget_ends_learning_but_not_before_one_batch(problem: Problem) -> None:
    found = learn(problem, DualLearner(problem, small_policy()), budget=0.0, batch=4)
    assert found.curve.episodes.tolist() == [4]
    with pytest.raises(ParamsError, match="give episodes, or a budget"):
        learn(problem, DualLearner(problem, small_policy()))


def test_what_overflows_memory_costs_more() -> None:
    graph = Graph.from_arrays([0], [1], np.ones(2), np.ones(2), param_bytes=np.ones(2))
    problem = Problem(graph, Cluster.uniform(2, memory=1.0))
    fits, overflows = costs_of(problem, np.array([[0, 1], [0, 0]], np.int32))
    assert fits == makespan_of(problem, Placement([0, 1]), "fifo")
    assert overflows > makespan_of(problem, Placement([0, 0]), "fifo")


def test_a_judge_decides_what_episodes_cost(problem: Problem) -> None:
    free = DualLearner(problem, small_policy())
    judged = DualLearner(
        problem,
        small_policy(),
        judge=lambda episodes: replace(episodes, makespans=4.0 * episodes.makespans),
    )
    # What counts is how episodes compare, which a factor leaves as it is.
    for seeds in ([0, 1, 2], [3, 4, 5]):
        assert np.array_equal(judged.update(seeds, 0.0).costs, 4.0 * free.update(seeds, 0.0).costs)


@pytest.mark.parametrize("head", ["select", "place"])
def test_a_head_that_does_not_learn_has_no_say_in_the_loss(head: str) -> None:
    """Else it would move the encoder that the other head reads."""
    learns = {"select": head == "select", "place": head == "place"}
    order = choice = np.zeros((2, 1), np.int32)
    allowed = np.ones((2, 1, 3), np.bool_)
    record = Record(order, choice, allowed, np.zeros((2, 1, 3, 0), np.float32), np.zeros((2, 0)))
    tied = np.array([[[True, False, True]], [[False, True, False]]])
    objectives: list[Objective] = [
        PolicyGradient(torch.tensor([1.0, -0.5]), 0.5, 0.1, **learns),
        Imitation(tied, **learns),
    ]
    for objective in objectives:
        select = torch.tensor([[-0.5], [-1.0]], requires_grad=True)
        scores = torch.tensor([[[0.0, 1.0, 2.0]], [[2.0, 1.0, 0.0]]], requires_grad=True)
        found = LogProbabilities(select, torch.log_softmax(scores, dim=-1), torch.zeros(2))
        loss, _ = objective(found, record, slice(0, 2))
        gradients = torch.autograd.grad(loss, [select, scores], materialize_grads=True)
        moved = {name: bool(each.any()) for name, each in zip(learns, gradients, strict=True)}
        assert moved == learns


def test_more_steps_for_each_batch_that_is_watched_learn_the_teacher_sooner(
    problem: Problem,
) -> None:
    likely = []
    for steps in (1, 8):
        settings = DualSettings(imitation=1.0, imitation_steps=steps)
        learner = DualLearner(problem, random_policy(0), settings)
        learn(problem, learner, episodes=32, batch=8)
        with torch.no_grad():
            weights = learner.policy.weights(learner.policy(learner.inputs))
        likely.append(learner.roller.play(weights, SAMPLE, range(64)).costs.mean())
    assert likely[1] < likely[0]
