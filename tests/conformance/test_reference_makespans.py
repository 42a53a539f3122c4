"""Agreement with makespans that the plain simulator worked out, and the one of the paper."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doppler import Cluster, Device, Graph, Link, Placement, Problem, simulate, simulate_many

HERE = Path(__file__).parent
PAPER = HERE.parents[2] / "shared" / "conformance" / "work_conserving_simulator.json"


def cases(path: Path) -> list[Any]:
    return json.loads(path.read_text()) if path.exists() else []


def cluster_of(case: dict[str, Any]) -> Cluster:
    count = len(case["slowdown"])
    return Cluster(
        "reference",
        tuple(Device(f"d{d}", slowdown=slow) for d, slow in enumerate(case["slowdown"])),
        tuple(
            Link(a, b, channel=case["channel"][a][b], hops=case["hops"][a][b])
            for a in range(count)
            for b in range(count)
            if a != b
        ),
        tuple(f"c{c}" for c in range(int(np.max(case["channel"])) + 1)),
    )


@pytest.mark.parametrize("case", cases(HERE / "reference.json"))
def test_makespans_agree_with_the_plain_simulator(case: dict[str, Any]) -> None:
    src, dst = ([edge[end] for edge in case["edges"]] for end in range(2))
    graph = Graph.from_arrays(src, dst, case["compute"], case["transfer"])
    problem = Problem(graph, cluster_of(case))
    for placed in case["placements"]:
        result = simulate(problem, Placement(placed["devices"], placed["priority"]))
        assert result.makespan == pytest.approx(placed["makespan"], rel=1e-12, abs=0)


def test_the_reference_is_what_the_plain_simulator_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(HERE), str(HERE.parent / "simulator")])
    import make_reference

    for case in cases(make_reference.PATH):
        for placed in case["placements"]:
            assert make_reference.makespan(case, placed) == placed["makespan"]


@pytest.mark.skipif(not PAPER.exists(), reason=f"{PAPER} is not there")
@pytest.mark.parametrize(
    "case", cases(PAPER) or [{"graph": "none"}], ids=lambda case: case["graph"]
)
def test_makespans_agree_with_the_simulator_of_the_paper(case: dict[str, Any]) -> None:
    graph = Graph.from_arrays(case["src"], case["dst"], case["compute"], case["transfer"])
    problem = Problem(graph, Cluster.uniform(case["num_devices"]))
    assert case["cases"]
    expected = [each["makespan"] for each in case["cases"]]
    assigned = np.array([each["assignment"] for each in case["cases"]])
    one_by_one = [simulate(problem, Placement(devices)).makespan for devices in assigned]
    assert one_by_one == pytest.approx(expected, rel=0, abs=1e-9)
    assert simulate_many(problem, assigned).tolist() == one_by_one
