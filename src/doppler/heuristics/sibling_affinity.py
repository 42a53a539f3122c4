"""List scheduling that foresees the communication which a choice forces on the consumers.

Score of a device: end of the op there + affinity weight x sibling affinity + transfer weight x time
of the transfers that it needs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from doppler.errors import ParamsError, PlacementError
from doppler.heuristics.base import Solution
from doppler.heuristics.list_restarts import Rule, no_hinted_devices, restart_rule, schedule_by_rule
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.schedule.list_schedule import ListWeights
from doppler.schedule.ranks import rank_of

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

WEIGHTS = ListWeights(compute=1.0, affinity=1.0, transfer=1.0)


def _rule(problem: Problem, weights: ListWeights, hint: IntArray | None = None) -> Rule:
    return Rule(
        problem.b_level(problem.mean_compute),
        weights,
        no_hinted_devices() if hint is None else hint,
        drawn=False,
        unit=_mean_op_time(problem),
    )


def _mean_op_time(problem: Problem) -> float:
    return float(problem.mean_compute.mean())


def sibling_affinity_schedule(
    problem: Problem, seed: int = 0, noise: float = 1e-6
) -> tuple[IntArray, IntArray, BoolArray]:
    """Make one list schedule and say what was equally good at every step.

    Parameters
    ----------
    problem : Problem
    seed : int
    noise : float
        Random part of every score, as a share of the mean op time; 0 breaks ties by device.

    Returns
    -------
    order : int32 array, shape [ops]
        The ops in the order in which they were chosen.
    devices : int32 array, shape [ops]
        Device of each op.
    tied : bool array, shape [ops, devices]
        By step: the devices that were equally good for ``order[step]``.
    """
    weights = WEIGHTS._replace(noise=noise * _mean_op_time(problem))
    return schedule_by_rule(problem, _rule(problem, weights), seed)


def hinted_schedule(problem: Problem, hint: npt.ArrayLike, weight: float) -> Placement:
    """Make the list schedule that leans to the devices which another method chose.

    The score of a device other than the op's hint is raised, so that the schedule leaves the hint
    only where following it costs more than that. Deterministic; memory is respected as far as
    parameters go. O(V (log V + devices x inputs) + the cost of sibling affinity).

    Parameters
    ----------
    problem : Problem
    hint : int array, shape [ops]
        A device of each op; -1: none is preferred.
    weight : float
        Mean op times, at least 0.

    Returns
    -------
    Placement
        The order of the choices is the priority. Not simulated, so it may overflow memory.

    Raises
    ------
    PlacementError
        If the hint is not a device, or -1, for each op.
    ParamsError
        If the weight is out of range.
    """
    devices = np.array(hint)
    if devices.shape != (problem.n_ops,) or not np.issubdtype(devices.dtype, np.integer):
        raise PlacementError(
            f"hint: must be a whole number for each of {problem.n_ops} ops, "
            f"not {devices.dtype} of shape {devices.shape}"
        )
    if not -1 <= devices.min() <= devices.max() < problem.n_devices:
        raise PlacementError(f"hint: devices must lie in -1 to {problem.n_devices - 1}")
    if not 0 <= weight < np.inf:
        raise ParamsError(f"weight of the hint is {weight}, must be a number >= 0")
    weights = WEIGHTS._replace(hint=float(weight) * _mean_op_time(problem))
    rule = _rule(problem, weights, devices.astype(np.int32))
    order, chosen, _ = schedule_by_rule(problem, rule, with_ties=False)
    return Placement(chosen, rank_of(order))


def sibling_affinity(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Schedule by b-level, end and sibling affinity; restart with other weights and noise.

    The first schedule weighs affinity and transfers by 1 and draws nothing, so that a budget of 0
    is deterministic. Restarts draw both weights log-uniformly from 1/4 to 4, on every core.

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
    return restart_rule(
        problem,
        _rule(problem, WEIGHTS),
        budget=budget,
        seed=seed,
        origin="sibling-affinity list schedule",
    )
