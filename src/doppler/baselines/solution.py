"""Learning from scratch for some seconds, as a method that places a problem."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from doppler.heuristics.base import Solution, fitting_solution
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.simulator import simulate
from doppler.training.single import Batch, EpisodeLearner, learn

#: Episodes of an update.
BATCH = 16


class _Keeper:
    """Passes a learner's episodes on, and keeps the best that fits in memory.

    The episode of the least cost need not fit: a little overflow is a little penalty.
    """

    def __init__(self, problem: Problem, learner: EpisodeLearner) -> None:
        self.problem = problem
        self.learner = learner
        self.cost = np.inf
        self.placement: Placement | None = None
        self.played = 0

    def update(self, seeds: Sequence[int], progress: float) -> Batch:
        batch = self.learner.update(seeds, progress)
        self.played += len(seeds)
        if self.problem.may_overflow:
            for index in np.argsort(batch.costs, kind="stable"):
                if batch.costs[index] >= self.cost:
                    break
                priority = None if batch.priority is None else batch.priority[index]
                placement = Placement(batch.devices[index], priority)
                if self._fits(placement):
                    self.cost, self.placement = float(batch.costs[index]), placement
        return batch

    def greedy(self) -> Placement:
        return self.learner.greedy()

    def best(self, placement: Placement) -> Placement:
        """Return ``placement``, or the best that fits where it does not."""
        if self.placement is None or self._fits(placement):
            return placement
        return self.placement

    def _fits(self, placement: Placement) -> bool:
        peak = simulate(self.problem, placement).peak_memory
        return bool((peak <= self.problem.arrays.capacity).all())


def solution_by_learning(
    problem: Problem,
    learner: EpisodeLearner,
    *,
    budget: float,
    seed: int,
    origin: str,
    batch: int = BATCH,
    start: float | None = None,
) -> Solution:
    """Train a learner on a problem until the budget ends, and return the best of its episodes.

    Parameters
    ----------
    problem : Problem
    learner : EpisodeLearner
        Untrained.
    budget : float
        Seconds; 0: one batch.
    seed : int
    origin : str
        What learned, for people.
    batch : int
        Episodes of an update.
    start : float, optional
        Value of ``time.perf_counter`` when the method began; by default now.

    Raises
    ------
    MemoryLimitError
        If no episode fits in memory.
    """
    start = time.perf_counter() if start is None else start
    keeper = _Keeper(problem, learner)
    left = max(0.0, start + budget - time.perf_counter())
    learned = learn(problem, keeper, budget=left, batch=batch, seed=seed)
    placement = keeper.best(learned.placement)
    return fitting_solution(
        problem,
        placement,
        # The greedy episode at the end is one more.
        keeper.played + 1,
        time.perf_counter() - start,
        f"{origin}, best of {keeper.played + 1} episodes",
    )
