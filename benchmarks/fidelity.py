"""Fidelity of the simulator on the cpu backend: its makespans against measured ones.

Profiles this machine, then runs diverse placements of three workloads on two devices, a thread
each. Writes ``reports/fidelity.json`` and ``reports/fidelity.html``;
``python benchmarks/fidelity.py [--json]`` prints the figures. Takes about five minutes, and wants a
machine that does nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from figures import print_figures

import doppler
from doppler import Graph, Problem
from doppler.engine import CpuBackend
from doppler.evaluation.diversity import diverse_placements
from doppler.evaluation.fidelity import Fidelity, measure_fidelity
from doppler.evaluation.fidelity_page import save_fidelity
from doppler.profiling import profile

REPORTS = Path(__file__).parents[1] / "reports"
DEVICES = 2
PLACEMENTS = 44
ROUNDS = 3
PROFILE_SECONDS = 30.0


def graphs() -> list[Graph]:
    """Return the workloads, of about a second on one core; most ops take 1 to 50 ms."""
    return [
        doppler.workloads.ffnn(batch=4096, inputs=512, hidden=4096, outputs=2048),
        doppler.workloads.llama_layer(sequence=1024, hidden=2048, heads=16, intermediate=5632),
        doppler.workloads.moe_layer(sequence=2048, hidden=1024, experts=8, intermediate=2048),
    ]


def measure(placements: int = PLACEMENTS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure all graphs; returns the figures by the name of the graph, without the points."""
    results: list[Fidelity] = []
    source = ""
    for graph in graphs():
        found = profile("cpu", DEVICES, [graph], budget=PROFILE_SECONDS)
        source = found.source
        problem = Problem(graph, found.cluster)
        candidates = diverse_placements(problem, placements)

        def told(done: int, of: int, name: str = graph.name) -> None:
            if sys.stderr.isatty():
                print(f"\r{name}: run {done} of {of}", end="", file=sys.stderr, flush=True)

        results.append(
            measure_fidelity(problem, CpuBackend(DEVICES), candidates, rounds=rounds, progress=told)
        )
    about = {"cpu backend": f"{DEVICES} devices of one thread", "machine": source}
    save_fidelity(results, REPORTS / "fidelity.json", REPORTS / "fidelity.html", about)
    figures = {}
    for result in results:
        figures[result.name] = result.to_json()
        del figures[result.name]["points"]
    return figures


if __name__ == "__main__":
    print_figures(measure, __doc__)
