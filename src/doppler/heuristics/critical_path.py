"""Critical path: the teacher of the DOPPLER paper, restarted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from doppler.heuristics.base import Solution
from doppler.heuristics.list_restarts import Rule, no_hinted_devices, restart_rule, schedule_by_rule
from doppler.problem import Problem
from doppler.schedule.list_schedule import TIE, ListWeights

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]


def rounded_b_levels(problem: Problem) -> FloatArray:
    """Give the b-levels (mean compute and mean transfers), rounded so that equals compare equal."""
    level = problem.b_level(problem.mean_compute, transfers=True)
    grain = max(float(level.max()), 1e-300) * TIE
    rounded: FloatArray = np.round(level / grain)
    return rounded


def _rule(problem: Problem) -> Rule:
    return Rule(
        rounded_b_levels(problem),
        ListWeights(compute=0.0),
        no_hinted_devices(),
        drawn=True,
        unit=0.0,
    )


def critical_path_schedule(problem: Problem, seed: int = 0) -> tuple[IntArray, IntArray, BoolArray]:
    """Make one list schedule and say what was equally good at every step.

    Memory is respected as far as parameters go; the schedule is not simulated.

    Returns
    -------
    order : int32 array, shape [ops]
        The ops in the order in which they were chosen.
    devices : int32 array, shape [ops]
        Device of each op.
    tied : bool array, shape [ops, devices]
        By step: the devices on which ``order[step]`` could start first.
    """
    return schedule_by_rule(problem, _rule(problem), seed)


def critical_path(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Place the op with the longest path to an exit where it can start first; restart.

    Of the ops whose inputs are placed, the one with the highest b-level goes to the device on
    which it can start first, given when the devices and channels are free and when its inputs
    arrive; equal ops and equal devices are drawn at random (Yao et al., "DOPPLER: Dual-Policy
    Learning for Device Assignment in Asynchronous Dataflow Graphs", ICLR 2026). Restarts until the
    budget ends, on every core, each restart simulated; the order of the choices is the priority.

    Parameters
    ----------
    problem : Problem
    budget : float
        Seconds; 0: one schedule.
    seed : int

    Raises
    ------
    MemoryLimitError
        If none of the placements fits in memory.
    """
    return restart_rule(problem, _rule(problem), budget=budget, seed=seed, origin="critical path")
