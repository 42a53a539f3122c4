"""What the benchmarks share: sizes to grow through, bars, the machine, and the command line."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import doppler
from doppler.profiling.machine import processor

# Whole Llama layers of 1,024 ops each: the graph grows in length, its ops keep their degree.
LAYERS = (1, 3, 10, 30, 98, 293)


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


def machine(packages: Sequence[str]) -> dict[str, Any]:
    """Describe where and with what the figures are taken; the load is that before the run.

    Parameters
    ----------
    packages : sequence of str
        Whose versions to name.
    """
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "versions": {"doppler": doppler.__version__} | {name: version(name) for name in packages},
    }


def verdicts(bars: Sequence[Bar], figures: Mapping[str, Any]) -> dict[str, Any]:
    """Give every bar, and whether its figure clears it, by the key of the figure."""
    return {
        bar.key: {
            "at_least" if bar.at_least else "at_most": bar.value,
            "pass": bar.cleared(figures[bar.key]),
        }
        for bar in bars
    }


def table(bars: Sequence[Bar], figures: Mapping[str, Any]) -> str:
    """Lay out every figure that is held against a bar, then the other single ones."""
    lines = [f"{'figure':24} {'value':>12} {'bar':>9}             what"]
    for bar in bars:
        figure = figures[bar.key]
        verdict = "pass" if bar.cleared(figure) else "falls short"
        sign = ">=" if bar.at_least else "<="
        lines.append(
            f"{bar.key:24} {figure:>12.4g} {sign} {bar.value:>6g}  {verdict:11} {bar.meaning}"
        )
    held = {bar.key for bar in bars}
    for key, figure in figures.items():
        if key not in held and isinstance(figure, int | float):
            lines.append(f"{key:24} {figure:>12.4g}")
    return "\n".join(lines)


def print_figures(measure: Callable[[], dict[str, Any]], description: str | None) -> None:
    """Print what ``measure`` returns, with ``--json`` as one object.

    Parameters
    ----------
    measure : callable
        Not called where the command line is at fault or asks for help.
    description : str
        What the help says first.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args().json
    figures = measure()
    if as_json:
        print(json.dumps(figures))
        return
    for key, value in figures.items():
        print(f"{key:24} {value}")
