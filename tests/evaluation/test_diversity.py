"""Placements of many kinds, all different, all legal."""

from __future__ import annotations

import numpy as np
import pytest

from doppler import Cluster, Graph, Problem, workloads
from doppler.evaluation.diversity import diverse_placements


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(workloads.ffnn(64, 32, 64, 32), Cluster.uniform(2))


def test_placements_are_diverse_distinct_and_suit_the_problem(problem: Problem) -> None:
    found = diverse_placements(problem, 48)
    assert len(found) >= 48
    keys = set()
    for candidate in found:
        candidate.placement.validate(problem)
        order = candidate.placement.priority
        keys.add(
            (candidate.placement.devices.tobytes(), None if order is None else order.tobytes())
        )
    assert len(keys) == len(found)
    kinds = " ".join(candidate.kind for candidate in found)
    for word in (
        "single device gpu1",
        "heft",
        "policy, sampled",
        "local search",
        "moved",
        "random",
    ):
        assert word in kinds
    shares = sorted(float((c.placement.devices == 0).mean()) for c in found)
    assert shares[0] == 0.0
    assert shares[-1] == 1.0
    assert any(0.55 < share < 0.95 for share in shares)


def test_placements_heed_pins_and_colocation() -> None:
    rng = np.random.default_rng(0)
    graph = Graph.from_arrays(
        np.arange(19),
        np.arange(1, 20),
        rng.uniform(1, 2, 20),
        rng.uniform(1, 2, 20),
        pinned=[1] + [-1] * 19,
        colocation=[-1, -1, 0, 0, 0] + [-1] * 15,
    )
    problem = Problem(graph, Cluster.uniform(3))
    for candidate in diverse_placements(problem, 30):
        candidate.placement.validate(problem)


def test_a_graph_of_few_placements_ends() -> None:
    graph = Graph.from_arrays([], [], [1.0], [1.0])
    found = diverse_placements(Problem(graph, Cluster.uniform(2)), 40)
    assert 2 <= len(found) < 40
