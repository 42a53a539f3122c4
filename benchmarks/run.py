"""Measure all speeds in one run: a table on stdout, ``reports/bench.json``, beside the bars.

What is measured is measured here and now; the machine, its load and the versions stand with it.
The engine is measured where its peers are installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine
import place
import simulate
import train
from figures import Bar, machine, table, verdicts

from doppler.files import write_atomic

REPORT = Path(__file__).parents[1] / "reports" / "bench.json"
PACKAGES = ("numpy", "numba", "torch", "simpy")
ENGINE = "engine_"

BARS: tuple[Bar, ...] = (
    Bar("simulate_vs_simpy", "simulating the Llama layer, times faster than SimPy", True, 400.0),
    Bar("simulate_exponent", "simulation, exponent of time against ops", False, 1.1),
    Bar("train_episodes_per_s", "REINFORCE on the Llama layer, episodes a second", True, 300.0),
    Bar("place_100k_s", "greedy placement of 100,000 ops, seconds", False, 3.0),
    Bar("place_exponent", "greedy placement, exponent of time against ops", False, 1.1),
    Bar("place_1m_s", "greedy placement of 1,000,000 ops on 64 devices, seconds", False, 12.0),
    Bar("place_1m_exponent", "the same, exponent of time from 100,000 ops", False, 1.1),
    Bar("place_1m_peak_gb", "memory of the benchmark at its peak, GB", False, 4.0),
)


def measure_engine() -> dict[str, Any]:
    """Measure the engine; its figures have names that tell them from the others."""
    return {ENGINE + key: figure for key, figure in engine.measure().items()}


def main() -> None:
    """Measure, print and write."""
    steps: list[tuple[str | None, Callable[[], dict[str, Any]]]] = [
        (module.__doc__, module.measure) for module in (simulate, train, place)
    ]
    bars = BARS
    packages: tuple[str, ...] = PACKAGES
    missing = engine.missing_peers()
    if missing:
        print(f"not measured: the engine; {engine.advice(missing)}", file=sys.stderr)
    else:
        steps.append((engine.__doc__, measure_engine))
        bars += tuple(bar._replace(key=ENGINE + bar.key) for bar in engine.BARS)
        packages += engine.PEERS
    where = machine(packages)
    figures: dict[str, Any] = {}
    for about, measure in steps:
        print(f"measuring: {(about or '').splitlines()[0]}", file=sys.stderr, flush=True)
        figures |= measure()
    report = {**figures, "bars": verdicts(bars, figures), **where}
    write_atomic(REPORT, json.dumps(report, indent=1) + "\n")
    print(table(bars, figures))


if __name__ == "__main__":
    main()
