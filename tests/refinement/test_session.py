"""Refining on an engine: how it ends and resumes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from doppler import Cluster, Placement, Problem, workloads
from doppler.engine import CpuBackend, EmulatedBackend, Engine
from doppler.errors import EngineError
from doppler.graph import Graph
from doppler.refinement.refiner import Refiner
from doppler.refinement.session import refine, run_metrics


@pytest.fixture
def graph() -> Graph:
    return workloads.chainmm(8, 8, 8, 8, 8, tiles=1)


@pytest.fixture
def problem(graph: Graph) -> Problem:
    return Problem(graph, Cluster.uniform(2))


def split(graph: Graph) -> Placement:
    return Placement((np.arange(graph.n_ops) % 2).astype(np.int32))


def make_refiner(problem: Problem, directory: Path | None = None) -> Refiner:
    return Refiner(problem, split(problem.graph), directory=directory, background=False)


def test_it_ends_after_its_episodes_and_a_later_one_counts_them(
    problem: Problem, tmp_path: Path
) -> None:
    told: list[int] = []
    with Engine(problem.graph, EmulatedBackend(problem, time_scale=1e-6)) as engine:
        for episodes in (5, 8):
            with make_refiner(problem, tmp_path / "state") as refiner:
                refine(refiner, engine, episodes=episodes, progress=told.append)
            assert len(refiner.history) == episodes
    assert told == [1, 2, 3, 4, 5, 6, 7, 8]


def test_it_ends_when_its_time_is_up(problem: Problem) -> None:
    with Engine(problem.graph, CpuBackend(2)) as engine, make_refiner(problem) as refiner:
        refine(refiner, engine, seconds=-1.0)
        assert len(refiner.history) == 0
        refine(refiner, engine, seconds=0.05)
    assert len(refiner.history) > 0


def test_failures_in_a_row_are_the_fault_of_the_machine(problem: Problem) -> None:
    with (
        Engine(problem.graph, CpuBackend(2, memory=10.0)) as engine,
        make_refiner(problem) as refiner,
    ):
        with pytest.raises(EngineError, match="cpu"):
            refine(refiner, engine, episodes=10)
        assert len(refiner.history) == 3
    assert all("measured_s" not in run_metrics(run) for run in refiner.history)
