"""Pipeline stages: runs of neighboring meta-ops that fit in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from doppler import Cluster, Graph, Problem, place
from doppler.capture import capture
from doppler.errors import MemoryLimitError
from doppler.heuristics.stages import cut_stages, stages

SECONDS = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=12)


@given(SECONDS, st.integers(1, 4))
def test_the_longest_stage_is_as_short_as_it_can_be(seconds: list[float], count: int) -> None:
    times = np.repeat(np.array(seconds)[:, None], count, axis=1)
    cut = cut_stages(times, np.zeros(len(seconds)), np.ones(count))
    assert cut is not None
    assert (np.diff(cut) >= 0).all()
    longest = np.bincount(cut, seconds).max()
    # By trying all: the least length that so many stages suffice for.
    sums = np.cumsum([0.0, *seconds])
    best = {0: 0.0}
    for _ in range(count):
        best = {
            end: min(max(best[start], sums[end] - sums[start]) for start in best if start <= end)
            for end in range(len(seconds) + 1)
        }
    assert longest <= best[len(seconds)] * (1 + 1e-3)


def test_a_stage_keeps_to_its_room() -> None:
    times = np.ones((4, 2))
    assert cut_stages(times, np.array([3.0, 1.0, 1.0, 1.0]), np.array([3.0, 3.0])) is not None
    assert cut_stages(times, np.array([3.0, 1.0, 1.0, 2.0]), np.array([3.0, 3.0])) is None


def test_chains_of_a_batch_share_the_parameters_of_a_stage() -> None:
    layers = [nn.Linear(256, 256, bias=False) for _ in range(4)]
    graph = capture(nn.Sequential(*layers), (torch.zeros(8, 256),), shard={"batch": 4}).graph
    # Two layers each, and room for no third.
    problem = Problem(graph, Cluster.uniform(2, memory=2.5 * 4 * 256 * 256))
    found = stages(problem)
    homes = {
        name.split(".")[0]: int(d)
        for name, d in zip(graph.names, found.placement.devices, strict=True)
    }
    assert homes == {"0": 0, "1": 0, "2": 1, "3": 1}
    assert place(problem, budget=0.0).info["makespan_s"] <= found.makespan


def test_what_fits_nowhere_is_said() -> None:
    graph = Graph.from_arrays([0], [1], np.ones(2), np.ones(2), param_bytes=np.full(2, 9.0))
    with pytest.raises(MemoryLimitError, match="pipeline stages: the parameters of a stage"):
        stages(Problem(graph, Cluster.uniform(2, memory=8.0)))
