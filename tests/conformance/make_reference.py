"""Make ``reference.json``: graphs, placements, and the makespans of the plain simulator.

``PYTHONPATH=src python tests/conformance/make_reference.py``. Costs are plain numbers and what a
device or link makes of them is worked out here, so that nothing but the rules of the simulator is
taken from elsewhere.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PATH = HERE / "reference.json"
CASES, PLACEMENTS = 16, 5


def case(seed: int) -> dict[str, Any]:
    """Draw a graph with ties or without, a cluster, and placements with and without priority."""
    rng = np.random.default_rng(seed)
    n_ops, n_devices, n_channels = int(rng.integers(2, 60)), int(rng.integers(1, 6)), seed % 3
    count = np.minimum(rng.integers(0, 4, n_ops), np.arange(n_ops))
    dst = np.repeat(np.arange(n_ops), count)
    rank = rng.permutation(n_ops)
    edges = {(int(rank[int(rng.integers(v))]), int(rank[v])) for v in dst.tolist()}
    shape = (n_devices, n_devices)
    compute, transfer = rng.uniform(0, 4, (2, n_ops)).round(0 if seed % 2 else 3)
    return {
        "edges": sorted(edges),
        "compute": compute.tolist(),
        "transfer": transfer.tolist(),
        "slowdown": rng.choice([1.0, 1.0, 1.5, 2.0], n_devices).tolist(),
        "hops": rng.choice([1.0, 1.0, 0.5, 2.0], shape).tolist(),
        "channel": rng.integers(-1, n_channels, shape).tolist(),
        "placements": [
            {
                "devices": rng.integers(0, n_devices, n_ops).tolist(),
                "priority": rng.permutation(n_ops).tolist() if number % 2 else None,
            }
            for number in range(PLACEMENTS)
        ],
    }


def makespan(case: dict[str, Any], placement: dict[str, Any]) -> float:
    """Simulate plainly."""
    from reference_simulator import simulate_slowly

    n_ops, n_devices = len(case["compute"]), len(case["slowdown"])
    same = np.eye(n_devices, dtype=bool)
    problem = SimpleNamespace(
        n_ops=n_ops,
        n_devices=n_devices,
        graph=SimpleNamespace(src=column(case["edges"], 0), dst=column(case["edges"], 1)),
        arrays=SimpleNamespace(
            compute=np.outer(case["compute"], case["slowdown"]),
            volume=np.array(case["transfer"]),
            latency=np.zeros((n_devices, n_devices)),
            factor=np.where(same, 0.0, case["hops"]),
            channel=np.where(same, -1, case["channel"]),
            n_channels=int(np.max(case["channel"])) + 1,
        ),
    )
    order = placement["priority"]
    placed: Any = SimpleNamespace(
        devices=np.array(placement["devices"]), priority=None if order is None else np.array(order)
    )
    given: Any = problem
    return simulate_slowly(given, placed).makespan


def column(edges: list[tuple[int, int]], index: int) -> np.ndarray:
    """One end of each edge."""
    return np.array([edge[index] for edge in edges], int)


def reference() -> list[dict[str, Any]]:
    """Draw all cases and simulate them."""
    cases = [case(seed) for seed in range(CASES)]
    for each in cases:
        for placement in each["placements"]:
            placement["makespan"] = makespan(each, placement)
    return cases


if __name__ == "__main__":
    sys.path.append(str(HERE.parent / "simulator"))
    PATH.write_text("[\n" + ",\n".join(json.dumps(each) for each in reference()) + "\n]\n")
