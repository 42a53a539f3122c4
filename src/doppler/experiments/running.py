"""Running a cell in whatever process, and what a process does before its first."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from doppler.experiments.names import experiment


def run_cell(name: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Run one cell.

    Parameters
    ----------
    name : str
        Of the experiment.
    given : mapping
        Of the cell.

    Returns
    -------
    result : dict
        Plain JSON.
    seconds : float
    """
    began = time.perf_counter()
    result = experiment(name).run(given)
    return result, time.perf_counter() - began


def warm_up() -> None:
    """Compile what a search with every method runs, or load it from the cache."""
    from doppler import Cluster, Problem
    from doppler.evaluation.comparison import compare
    from doppler.graph.workloads import chainmm
    from doppler.methods import HEURISTICS, LEARNED

    problem = Problem(chainmm(8, 8, 8, 8, 8, tiles=1), Cluster.uniform(2))
    compare(problem, (LEARNED, *HEURISTICS), budget=0.01)
