"""Refining on an engine: how it begins, ends, resumes and what it leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from doppler import Cluster, Placement, Problem, workloads
from doppler.engine import CpuBackend, EmulatedBackend, Engine
from doppler.errors import EngineError
from doppler.graph import Graph
from doppler.graph.fingerprint import fingerprint
from doppler.policy.checkpoint import load_policy, read_header
from doppler.refinement import start
from doppler.refinement.refiner import Refiner
from doppler.refinement.session import measurement, refine, run_metrics, save_refined
from doppler.refinement.start import (
    CLUSTER,
    PLACEMENT,
    Devices,
    same_placement,
    start_anew,
    start_from,
)
from doppler.registry import POLICY, Registry

DEVICES = Devices("cpu", 2, profile_seconds=0.3, budget=0.0)


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


def test_what_it_leaves_can_be_gone_on_from(graph: Graph, problem: Problem, tmp_path: Path) -> None:
    with Engine(graph, CpuBackend(2)) as engine, make_refiner(problem) as refiner:
        refine(refiner, engine, episodes=6)
        assert measurement(engine, refiner.champion, 30.0)() > 0
    files = save_refined(refiner, tmp_path / "new", {"stage": "nightly"})
    assert set(files) == {POLICY, PLACEMENT, CLUSTER}
    assert read_header(files[POLICY])["info"] == {"stage": "nightly"}
    assert "fitted to 6 measured runs" in files[CLUSTER].read_text()

    version = Registry(tmp_path / "registry").add(files)
    found = start_from(version, graph, DEVICES, tmp_path / "measured.yaml", seed=0)
    assert not (tmp_path / "measured.yaml").exists()
    assert found.policy == version.path(POLICY)
    assert same_placement(found.placement, refiner.champion)
    assert found.problem.fingerprint == refiner.problem.fingerprint
    load_policy(found.policy)


def test_what_a_version_does_not_hold_for_this_graph_is_made_anew(
    graph: Graph, problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(tmp_path / "registry")
    with make_refiner(problem) as refiner:
        files = save_refined(refiner, tmp_path / "new", {})
    version = registry.add(files)
    # Another graph: the devices are known, the placement is not.
    other = workloads.chainmm(8, 8, 8, 8, 8, tiles={"m": 2, "k": 1, "n": 1, "p": 1, "q": 1})
    found = start_from(version, other, DEVICES, tmp_path / "measured.yaml", seed=0)
    assert found.placement.info["graph_fingerprint"] == fingerprint(other)
    assert not (tmp_path / "measured.yaml").exists()
    # Another number of devices, and a version with a policy alone: they are measured, once.
    alone = registry.add({POLICY: files[POLICY]})
    for number, held in enumerate((version, alone), start=1):
        measured = tmp_path / f"measured-{number}.yaml"
        count = 1 if held is version else 2
        again = Devices("cpu", count, profile_seconds=0.3, budget=0.0)
        found = start_from(held, graph, again, measured, seed=0)
        assert found.problem.n_devices == count
        with monkeypatch.context() as patch:
            patch.setattr(start, "profile", None)
            assert start_anew(graph, again, found.policy, measured, 0).problem.n_devices == count


def test_placements_are_the_same_if_they_run_alike(graph: Graph) -> None:
    one, order = split(graph), np.arange(graph.n_ops, dtype=np.int32)
    assert same_placement(one, Placement(one.devices.copy(), None, {"method": "another"}))
    assert not same_placement(one, Placement(1 - one.devices))
    assert not same_placement(one, Placement(one.devices, order))
    assert same_placement(Placement(one.devices, order), Placement(one.devices, order.copy()))
    assert not same_placement(Placement(one.devices, order), Placement(one.devices, order[::-1]))
