"""Placements by what looks at the whole graph: what the policy leans to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from doppler.heuristics.base import Deadline
from doppler.heuristics.kahypar import available
from doppler.heuristics.partition import candidates
from doppler.heuristics.spmd import SymmetricMaps
from doppler.problem import Problem
from doppler.simulator import simulate

IntArray = npt.NDArray[np.int32]

# Of the symmetric maps, which are much alike, so many.
MAPS = 2


def whole_graph(problem: Problem, count: int, seed: int = 0) -> list[tuple[IntArray, float]]:
    """Make the best symmetric maps and partitions without a budget.

    Parameters
    ----------
    problem : Problem
    count : int
        How many to return at most.
    seed : int

    Returns
    -------
    list of (int32 array [ops], float)
        Device of each op and simulated seconds without noise, best first; all fit in memory.
    """
    found: list[tuple[IntArray, float]] = []
    for placement in SymmetricMaps(problem).descend(Deadline(0.0), seed)[:MAPS]:
        result = simulate(problem, placement)
        if (result.peak_memory <= problem.arrays.capacity).all():
            found.append((placement.devices, result.makespan))
    if available():
        partitions = candidates(problem, seed=seed)
        found += [(each.placement.devices, each.makespan) for each in partitions]
    found.sort(key=lambda each: each[1])
    return found[:count]
