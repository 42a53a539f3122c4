"""The networks: what they depend on and what they must not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from policies import encode, random_policy
from random_problems import weighty_graph

from doppler import Cluster, Problem, workloads
from doppler.methods import HEURISTICS
from doppler.policy.features import DEVICE_FEATURES, FeatureSet
from doppler.policy.frozen import LOGIT_RANGE, Sizes
from doppler.policy.likelihood import log_probabilities
from doppler.policy.network import DualPolicy, policy_inputs
from doppler.policy.rollout import GREEDY, SAMPLE, Roller


@pytest.mark.parametrize("count", [1, 2, 16])
def test_one_network_serves_any_number_of_devices(count: int) -> None:
    policy = random_policy()
    problem = Problem(weighty_graph(), Cluster.uniform(count))
    heads, weights = encode(policy, problem)
    record = Roller(problem, 1).play(weights, SAMPLE, [0, 1], recorded=True).record
    with torch.no_grad():
        steps = log_probabilities(policy, heads, problem, record)
    assert steps.place.shape == (2, problem.n_ops, count)
    assert bool(torch.isfinite(steps.place).all())
    if count == 1:
        assert bool((steps.place == 0).all())


def test_score_of_a_device_does_not_depend_on_the_others() -> None:
    problem = Problem(weighty_graph(), Cluster.uniform(4))
    policy = random_policy()
    heads, _ = encode(policy, problem)
    order = torch.arange(5)
    features = torch.rand(5, 4, len(DEVICE_FEATURES))
    state = torch.rand(5, 4, policy.sizes.code)
    with torch.no_grad():
        whole = policy.score(heads, order, features, state)
        part = policy.score(heads, order, features[:, 1:3], state[:, 1:3])
    torch.testing.assert_close(part, whole[:, 1:3])


def test_logits_stay_in_range() -> None:
    policy = random_policy()
    with torch.no_grad():
        policy.select_out.weight *= 1000.0
    heads, weights = encode(policy, Problem(weighty_graph(), Cluster.uniform(2)))
    assert float(heads.logits.abs().max()) <= LOGIT_RANGE
    assert float(heads.logits.abs().max()) > 0.99 * LOGIT_RANGE
    assert weights.logits.dtype == np.float64


def test_a_fresh_network_is_near_the_list_schedule() -> None:
    """It is a start worth learning from: better than chance by far, before any training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = DualPolicy()
    problem = Problem(workloads.llama_layer(), Cluster.uniform(4))
    _, weights = encode(policy, problem)
    _, even = encode(random_policy(), problem)
    even = even._replace(logits=0 * even.logits, second=0 * even.second, direct=0 * even.direct)
    roller = Roller(problem, 1)
    fresh = float(roller.play(weights, GREEDY, [0]).makespans[0])
    chance = float(roller.play(even, SAMPLE, range(20)).makespans.mean())
    assert fresh < 0.6 * chance
    assert fresh < 1.2 * HEURISTICS["sibling_affinity"](problem).makespan


def test_unused_features_have_no_influence() -> None:
    problem = Problem(weighty_graph(), Cluster.load("p100x4"))
    policy = random_policy(features="paper")
    other = random_policy(features="paper")
    unused = ~torch.tensor(policy.features.used)
    assert unused.sum() == len(policy.features.used) - 5
    with torch.no_grad():
        other.first.weight[:, unused] = 1e6
        other.direct.weight[:, unused] = -1e6
    heads, weights = encode(policy, problem)
    _, changed = encode(other, problem)
    for found, wanted in zip(changed, weights, strict=True):
        assert np.array_equal(found, wanted)  # type: ignore[arg-type]
    roller = Roller(problem, 1)
    first = roller.play(weights, SAMPLE, range(4), recorded=True)
    second = roller.play(changed, SAMPLE, range(4))
    assert np.array_equal(first.record.choice, second.record.choice)
    record = first.record
    record.features[..., unused.numpy()] = 123.0
    with torch.no_grad():
        noisy = log_probabilities(other, heads, problem, record).place
        record.features[..., unused.numpy()] = 0.0
        plain = log_probabilities(policy, heads, problem, record).place
    torch.testing.assert_close(noisy, plain)
    gradient = torch.autograd.grad(
        log_probabilities(policy, heads, problem, record).place.square().sum(),
        [policy.first.weight, policy.direct.weight],
    )
    assert all(bool((part[:, unused] == 0).all()) for part in gradient)


@pytest.mark.parametrize("column", range(len(DEVICE_FEATURES)))
def test_every_used_feature_has_influence(column: int) -> None:
    problem = Problem(weighty_graph(), Cluster.uniform(2))
    policy = random_policy()
    heads, _ = encode(policy, problem)
    features = torch.zeros(1, 2, len(DEVICE_FEATURES))
    state = torch.zeros(1, 2, policy.sizes.code)
    changed = features.clone()
    changed[0, 0, column] = 1.0
    order = torch.zeros(1, dtype=torch.int64)
    with torch.no_grad():
        difference = policy.score(heads, order, changed, state) - policy.score(
            heads, order, features, state
        )
    assert difference[0, 0] != 0
    assert difference[0, 1] == 0


def test_weights_do_not_follow_the_parameters() -> None:
    problem = Problem(weighty_graph(), Cluster.uniform(2))
    policy = random_policy(sizes=Sizes(8, 1, 1, 1))
    _, weights = encode(policy, problem)
    before = [array.copy() for array in weights]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 1.0  # type: ignore[misc]
    for found, wanted in zip(weights, before, strict=True):
        assert np.array_equal(found, wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [Sizes(), Sizes(1, 1, 1, 1), Sizes(8, 3, 5, 2)])
def test_sizes(sizes: Sizes) -> None:
    problem = Problem(weighty_graph(), Cluster.uniform(3))
    policy = DualPolicy(sizes, FeatureSet.named("full"))
    heads, weights = encode(policy, problem)
    assert heads.node.shape == (problem.n_ops, sizes.hidden)
    assert heads.code.shape == (problem.n_ops, sizes.code)
    Roller(problem, 1).play(weights, GREEDY, [0])


def test_shape_of_the_inputs() -> None:
    inputs = policy_inputs(Problem(weighty_graph(0, 7), Cluster.uniform(3)))
    assert inputs.features.dtype == torch.float32
    assert inputs.producers.shape == inputs.consumers.shape == (7, 7)
