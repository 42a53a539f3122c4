"""Measure all speeds in one run: a table on stdout, ``reports/bench.json``, beside the bars.

What is measured is measured here and now; the machine, its load and the versions stand with it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import place
import simulate
import train

import doppler
from doppler.files import write_atomic

REPORT = Path(__file__).parents[1] / "reports" / "bench.json"


class Bar(NamedTuple):
    """What a figure is held against.

    Attributes
    ----------
    key : str
        Of the figure.
    meaning : str
    at_least : bool
        Whether more is better.
    value : float
    """

    key: str
    meaning: str
    at_least: bool
    value: float

    def cleared(self, figure: float) -> bool:
        """Say whether a figure is good enough."""
        return figure >= self.value if self.at_least else figure <= self.value


BARS = (
    Bar("simulate_vs_simpy", "simulating the Llama layer, times faster than SimPy", True, 400.0),
    Bar("simulate_exponent", "simulation, exponent of time against ops", False, 1.1),
    Bar("train_episodes_per_s", "REINFORCE on the Llama layer, episodes a second", True, 300.0),
    Bar("place_100k_s", "greedy placement of 100,000 ops, seconds", False, 3.0),
    Bar("place_exponent", "greedy placement, exponent of time against ops", False, 1.1),
)


def machine() -> dict[str, Any]:
    """Describe where and with what the figures are taken; the load is that before the run."""
    packages = ("numpy", "numba", "torch", "simpy")
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "versions": {"doppler": doppler.__version__} | {name: version(name) for name in packages},
    }


def processor() -> str:
    """Name the processor, as well as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def table(figures: dict[str, Any]) -> str:
    """Lay out every figure that is held against a bar, then the other single ones."""
    lines = [f"{'figure':24} {'value':>12} {'bar':>9}             what"]
    for bar in BARS:
        figure = figures[bar.key]
        verdict = "pass" if bar.cleared(figure) else "falls short"
        sign = ">=" if bar.at_least else "<="
        lines.append(
            f"{bar.key:24} {figure:>12.4g} {sign} {bar.value:>6g}  {verdict:11} {bar.meaning}"
        )
    held = {bar.key for bar in BARS}
    for key, figure in figures.items():
        if key not in held and isinstance(figure, int | float):
            lines.append(f"{key:24} {figure:>12.4g}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    where = machine()
    figures: dict[str, Any] = {}
    for module in (simulate, train, place):
        print(f"measuring: {(module.__doc__ or '').splitlines()[0]}", file=sys.stderr, flush=True)
        figures |= module.measure()
    bars = {
        bar.key: {
            "at_least" if bar.at_least else "at_most": bar.value,
            "pass": bar.cleared(figures[bar.key]),
        }
        for bar in BARS
    }
    write_atomic(REPORT, json.dumps({**figures, "bars": bars, **where}, indent=1) + "\n")
    print(table(figures))


if __name__ == "__main__":
    main()
