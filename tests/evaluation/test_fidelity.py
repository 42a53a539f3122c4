"""Simulated against measured makespans: diverse placements, honest figures, a page of them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from doppler import Cluster, Graph, Problem, workloads
from doppler.engine import EmulatedBackend
from doppler.errors import DopplerError
from doppler.evaluation.fidelity import (
    Fidelity,
    Point,
    correlations,
    diverse_placements,
    measure_fidelity,
    render_fidelity,
    save_fidelity,
    scatter_svg,
)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(workloads.ffnn(64, 32, 64, 32), Cluster.uniform(2))


def point(kind: str, simulated: float, measured: float, balance: float = 1.0) -> Point:
    return Point(kind, simulated, measured, 0.0, balance)


LINE = tuple(point(f"heft {i}", 1.0 + i, 2.0 + 2 * i) for i in range(5))


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


def test_the_page_shows_every_point_and_escapes_names(tmp_path: Path) -> None:
    nasty = point("<script>alert(1)</script>", 1.0, 1.5)
    result = Fidelity("<b>layer", 20, 2, (*LINE, nasty))
    page = render_fidelity([result], {"machine": "a & b"})
    assert page.count("<circle") == 6
    assert "<script>alert" not in page
    assert "<b>layer" not in page
    assert "a &amp; b" in page
    assert not re.search(r"(src|href)=", page)
    files = save_fidelity([result], tmp_path / "f.json", tmp_path / "f.html")
    assert [path.name for path in files] == ["f.html", "f.json"]
    assert list(json.loads((tmp_path / "f.json").read_text())) == ["<b>layer"]


def test_a_drawing_stays_inside_its_frame() -> None:
    drawn = scatter_svg(Fidelity("layer", 20, 2, LINE))
    for across, down in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', drawn):
        assert 0 < float(across) < 460
        assert 0 < float(down) < 380


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
