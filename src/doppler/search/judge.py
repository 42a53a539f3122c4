"""Scores placements on common draws, so that their order is theirs and not the draws'."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from doppler.problem import Problem
from doppler.search.draws import draw
from doppler.simulator.kernel import make_workspace, run_drawn
from doppler.simulator.memory import surely_fits
from doppler.simulator.score import Score, score_of

IntArray = npt.NDArray[np.int32]


class Judge:
    """Scores the placements of a problem.

    Parameters
    ----------
    problem : Problem
    jitter : float
        Under which the expected makespan counts.
    runs : int
        Of each placement, the same durations for all.
    seed : int or list of int
    """

    def __init__(self, problem: Problem, jitter: float, runs: int, seed: int | list[int]) -> None:
        self.problem = problem
        self.draws = draw(problem, jitter, runs, seed)
        edges = problem.graph.n_edges if problem.may_overflow else 0
        self._work = make_workspace(problem.n_ops, problem.n_devices, edges)
        self.evaluations = 0

    def score(self, devices: IntArray, priority: IntArray) -> Score:
        """Score one placement. O(runs x one simulation).

        Parameters
        ----------
        devices : int32 array, shape [ops]
        priority : int32 array, shape [ops] or [0]
            Empty: first ready, first run.
        """
        self.evaluations += 1
        # Kernels are compiled for arrays that can be written.
        devices, priority = devices.copy(), priority.copy()
        arrays, work = self.problem.arrays, self._work
        overflow = 0.0
        if self.problem.may_overflow and not surely_fits(
            arrays, devices, work.free, work.arrival_of
        ):
            overflow = score_of(arrays, devices, priority, True, work).overflow
        makespans = [
            run_drawn(arrays, devices, priority, *each, np.inf, work)
            for each in zip(*self.draws, strict=True)
        ]
        return Score(float(np.mean(makespans)), float(overflow))
