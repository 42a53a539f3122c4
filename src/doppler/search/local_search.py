"""Local search: plain simulated annealing from a critical-path schedule."""

from __future__ import annotations

from doppler.errors import MemoryLimitError
from doppler.heuristics.base import Deadline, Solution, fitting_solution
from doppler.heuristics.critical_path import critical_path, critical_path_schedule
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.schedule.ranks import rank_of
from doppler.search.anneal import Annealer


def local_search(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Anneal from a critical-path schedule until the budget ends, one chain per core.

    Raises
    ------
    MemoryLimitError
        If nothing that fits in memory was found.
    """
    deadline = Deadline(budget)
    try:
        found = critical_path(problem, seed=seed)
        start, tried = found.placement, found.evaluations
    except MemoryLimitError:
        # A move at a time, annealing may get to what fits.
        order, devices, _ = critical_path_schedule(problem, seed)
        start, tried = Placement(devices, rank_of(order)), 1
    annealer = Annealer(problem)
    best = annealer.refine([(start, "critical path")], deadline, seed)[0]
    return fitting_solution(
        problem,
        best.placement,
        tried + annealer.evaluations,
        deadline.elapsed,
        "annealing from a critical-path schedule",
    )
