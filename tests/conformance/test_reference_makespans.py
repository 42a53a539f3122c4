"""Agreement with the makespans of the paper's own simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doppler import Cluster, Graph, Placement, Problem, simulate, simulate_many

SHARED = Path(__file__).parents[3] / "shared"
CASES = SHARED / "conformance" / "work_conserving_simulator.json"

pytestmark = pytest.mark.skipif(not CASES.exists(), reason=f"{CASES} is not there")


def entries() -> list[Any]:
    return json.loads(CASES.read_text()) if CASES.exists() else []


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry["graph"])
def test_makespans_agree(entry: dict[str, Any]) -> None:
    graph = Graph.from_arrays(entry["src"], entry["dst"], entry["compute"], entry["transfer"])
    problem = Problem(graph, Cluster.uniform(entry["num_devices"]))
    assert entry["cases"]
    expected = [case["makespan"] for case in entry["cases"]]
    assigned = np.array([case["assignment"] for case in entry["cases"]])
    one_by_one = [simulate(problem, Placement(devices)).makespan for devices in assigned]
    assert one_by_one == pytest.approx(expected, rel=0, abs=1e-9)
    assert simulate_many(problem, assigned).tolist() == one_by_one
