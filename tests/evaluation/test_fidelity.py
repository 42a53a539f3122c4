"""Simulated against measured makespans, and the figures that sum them up."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from fidelity_points import LINE, point

from doppler import Cluster, Graph, Problem, workloads
from doppler.engine import EmulatedBackend
from doppler.errors import DopplerError
from doppler.evaluation.diversity import diverse_placements
from doppler.evaluation.fidelity import Fidelity, correlations, measure_fidelity


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(workloads.ffnn(64, 32, 64, 32), Cluster.uniform(2))


def test_emulated_runs_follow_the_simulation() -> None:
    rng = np.random.default_rng(1)
    src, dst = np.arange(0, 10), np.arange(10, 20)
    graph = Graph.from_arrays(src, dst, rng.uniform(1e-3, 3e-3, 20), np.full(20, 1e-3))
    problem = Problem(graph, Cluster.uniform(2))
    told: list[tuple[int, int]] = []
    candidates = diverse_placements(problem, 12)[:12]
    found = measure_fidelity(
        problem,
        EmulatedBackend(problem),
        candidates,
        rounds=2,
        progress=lambda done, of: told.append((done, of)),
    )
    # Further rounds repeat what other work disturbed.
    assert told[:24] == [(done, 24) for done in range(1, 25)]
    assert [p.kind for p in found.points] == [c.kind for c in candidates]
    for measured in found.points:
        # Sleeping never ends early.
        assert measured.ratio > 0.95
        assert 1.0 <= measured.balance <= 2.0
    assert found.ops == 20
    assert found.devices == 2


def test_correlations() -> None:
    assert correlations(LINE) == (pytest.approx(1.0), pytest.approx(1.0))
    bent = tuple(replace(p, measured_s=math.exp(p.simulated_s)) for p in LINE)
    pearson, spearman = correlations(bent)
    assert pearson is not None
    assert 0.8 < pearson < 1.0
    assert spearman == pytest.approx(1.0)
    assert correlations(LINE[:2]) == (None, None)
    assert correlations([LINE[0]] * 5) == (None, None)


def test_figures_of_a_result() -> None:
    skewed = point("random, 90% on one device", 9.0, 36.0, balance=1.8)
    result = Fidelity("layer", 20, 2, (*LINE, skewed))
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert data["placements"] == 6
    assert data["balanced"] == {
        "pearson": pytest.approx(1.0),
        "spearman": pytest.approx(1.0),
        "placements": 5,
    }
    assert data["pearson"] < 1.0
    assert data["ratio"] == 2.0
    assert data["error"] == 1.0
    assert data["noise"] == 0.0
    assert data["disturbed"] == 6
    # Twice as far from the usual ratio as any other.
    assert data["worst"][0]["kind"] == skewed.kind
    assert data["worst"][0]["ratio"] == 4.0
    assert len(data["points"]) == 6


def test_nothing_to_measure(problem: Problem) -> None:
    with pytest.raises(DopplerError, match="fidelity: 3 rounds of 0 placements; give more"):
        measure_fidelity(problem, EmulatedBackend(problem), [], rounds=3)


class Busy:
    """A machine on which other work takes some of the runs."""

    def __init__(self, busy: list[bool]) -> None:
        self.looks = [value for run in busy for value in (0.0, 1.0 if run else 0.0)]

    def look(self) -> float:
        return self.looks.pop(0) if self.looks else 0.0


@pytest.mark.parametrize(
    ("busy", "runs", "calm"),
    [
        ([False] * 4, 4, [2, 2]),
        # The first round was disturbed for both, so a third one follows.
        ([True, True, False, False, False, False], 6, [2, 2]),
        # Never calm: it ends, and what there is counts.
        ([True] * 4, 4, [0, 0]),
    ],
)
def test_disturbed_runs_are_repeated(
    monkeypatch: pytest.MonkeyPatch, busy: list[bool], runs: int, calm: list[int]
) -> None:
    graph = Graph.from_arrays([0], [1], [1e-4, 1e-4], [1e-5, 1e-5])
    problem = Problem(graph, Cluster.uniform(2))
    candidates = diverse_placements(problem, 2)[:2]
    machine = Busy(busy)
    monkeypatch.setattr("doppler.evaluation.fidelity.OtherLoad", lambda: machine)
    told: list[tuple[int, int]] = []
    found = measure_fidelity(
        problem,
        EmulatedBackend(problem),
        candidates,
        rounds=2,
        progress=lambda done, of: told.append((done, of)),
    )
    assert len(told) == runs
    assert [p.calm for p in found.points] == calm
