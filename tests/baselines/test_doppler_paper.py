"""DOPPLER as published, held to what its description says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from random_problems import problems

from doppler import Cluster, Graph, Problem
from doppler.baselines.doppler_paper import (
    PublishedPolicy,
    doppler_paper,
    path_means,
    published_inputs,
    published_learner,
)
from doppler.errors import MemoryLimitError
from doppler.graph.workloads import llama_block
from doppler.policy.features import DEVICE_FEATURES, PAPER_FEATURES
from doppler.policy.frozen import Sizes
from doppler.policy.likelihood import log_probabilities
from doppler.policy.rollout import SAMPLE, Roller
from doppler.simulator import makespan_of
from doppler.training.single import learn


@given(problems(max_ops=12))
def test_paths_follow_the_longest_way(problem: Problem) -> None:
    inputs = published_inputs(problem)
    compute = problem.mean_compute
    below = problem.b_level(compute, transfers=True)
    above = problem.t_level(compute, transfers=True)
    consumers: dict[int, list[int]] = {}
    producers: dict[int, list[int]] = {}
    for source, target in zip(problem.graph.src.tolist(), problem.graph.dst.tolist(), strict=True):
        consumers.setdefault(source, []).append(target)
        producers.setdefault(target, []).append(source)
    arrives = above + compute + problem.mean_transfer
    for op in range(problem.n_ops):
        chosen = int(inputs.below[op])
        assert (chosen == op) == (op not in consumers)
        if chosen != op:
            assert below[chosen] == max(below[other] for other in consumers[op])
        chosen = int(inputs.above[op])
        assert (chosen == op) == (op not in producers)
        if chosen != op:
            assert arrives[chosen] == max(arrives[other] for other in producers[op])


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9])
def test_a_path_embedding_is_the_mean_to_its_end(length: int) -> None:
    embedded = torch.arange(length, dtype=torch.float32).unsqueeze(1)
    towards = torch.tensor([*range(1, length), length - 1])
    found = path_means(embedded, towards).squeeze(1)
    expected = [np.mean(range(first, length)) for first in range(length)]
    assert np.allclose(found.numpy(), expected)


def test_plc_reads_the_five_features_of_the_paper_and_nothing_around_the_hidden_layer() -> None:
    policy = PublishedPolicy(Sizes(8, 1, 8, 2))
    problem = Problem(llama_block(tiles=2), Cluster.uniform(3))
    weights = policy.weights(policy(policy.read(problem)))
    read = {DEVICE_FEATURES[row] for row in np.flatnonzero(np.abs(weights.first).sum(axis=1))}
    assert read == set(PAPER_FEATURES)
    assert not weights.direct.any()


def test_kernel_and_torch_give_the_same_probabilities() -> None:
    """Of a choice, the frequency over many episodes of the first step is its probability."""
    problem = Problem(Graph.from_arrays([], [], [1.0, 2.0], [0.0, 0.0]), Cluster.uniform(2))
    torch.manual_seed(1)
    policy = PublishedPolicy(Sizes(8, 1, 8, 2))
    heads = policy(policy.read(problem))
    played = Roller(problem, 1).play(policy.weights(heads), SAMPLE, range(4000), recorded=True)
    with torch.no_grad():
        found = log_probabilities(policy, heads, problem, played.record)
    first = played.record.order[:, 0]
    for op in range(2):
        mine = first == op
        likely = float(found.select[mine][0, 0].exp())
        assert mine.mean() == pytest.approx(likely, abs=0.05)
        device = float(found.place[mine][0, 0, 1].exp())
        assert played.record.choice[mine, 0].mean() == pytest.approx(device, abs=0.05)


def test_it_learns() -> None:
    problem = Problem(llama_block(tiles=2), Cluster.load("p100x4"))
    curves = [
        learn(problem, published_learner(problem, seed), episodes=960, seed=seed).curve
        for seed in range(3)
    ]
    # Episodes of the policy alone: the first fifth are the teacher's.
    own = [curve.mean[len(curve.mean) // 4 :] for curve in curves]
    first = np.mean([each[:5].mean() for each in own])
    last = np.mean([each[-5:].mean() for each in own])
    assert last < first


def test_the_answer_takes_as_long_as_stated_where_the_first_ready_runs_first() -> None:
    problem = Problem(llama_block(tiles=2), Cluster.uniform(3))
    found = doppler_paper(problem, budget=0.0, seed=1)
    assert found.placement.priority is None
    assert found.makespan == makespan_of(problem, found.placement, "fifo")
    assert found.evaluations == 17
    again = doppler_paper(problem, budget=0.0, seed=1)
    assert np.array_equal(found.placement.devices, again.placement.devices)


def test_what_does_not_fit_is_said() -> None:
    graph = Graph.from_arrays([0], [1], np.ones(2), np.ones(2), param_bytes=np.ones(2) * 2)
    with pytest.raises(MemoryLimitError, match="doppler-paper"):
        doppler_paper(Problem(graph, Cluster.uniform(2, memory=1.0)))
