"""What every method that places a problem has in common."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from doppler.errors import MemoryLimitError
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.simulator import describe_overflow, makespan_of, simulate


@dataclass(frozen=True, eq=False)
class Solution:
    """A placement and how it came about.

    Attributes
    ----------
    placement : Placement
        Fits in memory.
    makespan : float
        Simulated seconds with the run-time that the placement is for.
    evaluations : int
        Placements that were tried.
    seconds : float
        Time spent.
    origin : str
        What produced the winner, for people.
    """

    placement: Placement
    makespan: float
    evaluations: int
    seconds: float
    origin: str


def fitting_solution(
    problem: Problem,
    placement: Placement,
    evaluations: int,
    seconds: float,
    origin: str,
    runtime: str = "priority",
) -> Solution:
    """Make a solution of one placement.

    Raises
    ------
    MemoryLimitError
        If it does not fit in memory; says how much is missing where.
    """
    if not problem.may_overflow:
        makespan = makespan_of(problem, placement, runtime)
        return Solution(placement, makespan, evaluations, seconds, origin)
    result = simulate(problem, placement, runtime=runtime)
    if (result.peak_memory > problem.arrays.capacity).any():
        overflow = describe_overflow(problem, result.peak_memory)
        raise MemoryLimitError(f"{problem.graph.name}: {origin}: {overflow}")
    return Solution(placement, result.makespan, evaluations, seconds, origin)


class Heuristic(Protocol):
    """Places a problem without learning."""

    def __call__(self, problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
        """Return the best placement found within ``budget`` seconds.

        A deterministic method answers once, whatever the budget. A randomized one restarts until
        the budget ends, at least once.

        Raises
        ------
        MemoryLimitError
            If none of the placements that the method made fits in memory.
        """
        ...


class Deadline:
    """A budget in seconds that starts now.

    Parameters
    ----------
    budget : float
        Seconds from now.
    """

    def __init__(self, budget: float) -> None:
        self.start = time.perf_counter()
        self.budget = budget

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start

    @property
    def left(self) -> float:
        """Seconds until the end, negative afterwards."""
        return self.budget - self.elapsed
