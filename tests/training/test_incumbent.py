"""The best placement of every case."""

from __future__ import annotations

import json

import numpy as np
import pytest
from random_problems import equal_cluster, untied_graph
from training_cases import small_case, small_policy

from doppler import Placement, Problem, simulate
from doppler.policy.rollout import SAMPLE, Episodes
from doppler.training.case import TrainingCase
from doppler.training.incumbent import Incumbents


def played(case: TrainingCase, seeds: range) -> Episodes:
    policy = small_policy()
    return case.roller.play(policy.weights(policy(case.inputs)), SAMPLE, list(seeds))


def test_the_best_of_all_batches_and_its_episode() -> None:
    case = small_case()
    incumbents = Incumbents()
    makespans: list[float] = []
    for first in range(0, 60, 6):
        batch = played(case, range(first, first + 6))
        incumbents.offer(case.name, batch)
        makespans += batch.makespans.tolist()
        best = incumbents.best[case.name]
        assert best.makespan == min(makespans)
        assert best.episode == makespans.index(min(makespans)) + 1
        assert incumbents.episodes == {case.name: len(makespans)}
        assert simulate(case.problem, best.placement).makespan == best.makespan


def test_what_overflows_memory_is_no_incumbent() -> None:
    graph = untied_graph(0, 10, param_bytes=np.full(10, 1e9))
    roomy = TrainingCase("case", Problem(graph, equal_cluster(2)))
    batch = played(roomy, range(8))
    incumbents = Incumbents()
    incumbents.offer("case", Episodes(batch.record, batch.makespans, np.ones(8), batch.noisy))
    assert not incumbents.best
    assert incumbents.episodes == {"case": 8}
    fits = np.ones(8)
    fits[batch.makespans.argmax()] = 0.0
    incumbents.offer("case", Episodes(batch.record, batch.makespans, fits, batch.noisy))
    best = incumbents.best["case"]
    assert best.makespan == batch.makespans.max()
    assert best.episode == 8 + batch.makespans.argmax() + 1
    incumbents.offer("case", batch)
    assert incumbents.best["case"].makespan == batch.makespans.min()


def test_through_a_checkpoint_and_back() -> None:
    incumbents = Incumbents()
    for case in (small_case(0), small_case(1, n_devices=2)):
        incumbents.offer(case.name, played(case, range(5)))
    restored = Incumbents()
    restored.restore(json.loads(json.dumps(incumbents.header())), incumbents.tensors())
    assert restored.header() == incumbents.header()
    for name, best in incumbents.best.items():
        assert np.array_equal(restored.best[name].devices, best.devices)
        assert np.array_equal(restored.best[name].priority, best.priority)
        assert isinstance(restored.best[name].placement, Placement)


def test_a_checkpoint_without_an_array_is_refused() -> None:
    incumbents = Incumbents()
    incumbents.offer("case", played(small_case(), range(2)))
    tensors = incumbents.tensors()
    del tensors["case/priority"]
    with pytest.raises(KeyError, match="case/priority"):
        Incumbents().restore(incumbents.header(), tensors)
