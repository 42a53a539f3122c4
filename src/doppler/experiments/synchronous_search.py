"""The best placement for bulk-synchronous execution that annealing finds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from doppler.heuristics.base import Deadline
from doppler.kernels import kernel
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.search.moves import landscape
from doppler.simulator.bulk_synchronous import make_supersteps, run_synchronously

IntArray = npt.NDArray[np.int32]

# First and last temperature, as shares of the makespan, and moves per op of one cooling.
_HOT, _COLD = 3e-3, 1e-5
_MOVES = 100
# Moves between two looks at the clock.
_SLICE = 500


def search_synchronous(
    problem: Problem, starts: Iterable[Placement], *, budget: float, seed: int = 0
) -> Placement:
    """Anneal from each of some placements, and again from the best, to a short synchronous run.

    A move puts an op and those that must be with it on another device, or exchanges two of one
    level. Memory is not looked at.

    Parameters
    ----------
    problem : Problem
    starts : iterable of Placement
        At least one. The result is never longer than the best of them.
    budget : float
        Seconds. A start that there is no time left for is only run.
    seed : int

    Returns
    -------
    Placement
        Without priorities.
    """
    deadline = Deadline(budget)
    arrays, steps, ground = problem.arrays, make_supersteps(problem), landscape(problem)
    able = np.isfinite(arrays.compute)
    rng = np.random.default_rng(seed)
    waiting = [placement.devices.copy() for placement in starts]
    waiting.sort(key=lambda devices: float(run_synchronously(arrays, devices, steps)))
    best = waiting[0].copy()
    shortest = np.array([float(run_synchronously(arrays, best, steps))])
    cooling = _MOVES * problem.n_ops
    while deadline.left > 0:
        devices = waiting.pop(0) if waiting else best.copy()
        done = 0
        while deadline.left > 0 and done < cooling:
            heat = shortest[0] * _HOT * (_COLD / _HOT) ** (done / cooling)
            own = int(rng.integers(2**31))
            _anneal(arrays, able, ground, steps, devices, own, _SLICE, heat, best, shortest)
            done += _SLICE
    return Placement(best)


@kernel
def _put(arrays, ground, devices, op, device):  # type: ignore[no-untyped-def]
    group = arrays.group[op]
    if group < 0:
        devices[op] = device
        return
    for member in range(ground.members_ptr[group], ground.members_ptr[group + 1]):
        devices[ground.members[member]] = device


@kernel
def _anneal(arrays, able, ground, steps, devices, seed, moves, heat, best, shortest):  # type: ignore[no-untyped-def]
    """Try so many moves at one temperature, in seconds; keep the best there was."""
    np.random.seed(seed)
    makespan = run_synchronously(arrays, devices, steps)
    for _ in range(moves):
        level = np.random.randint(len(steps.pointers) - 1)
        first, last = steps.pointers[level], steps.pointers[level + 1]
        op = steps.ops[np.random.randint(first, last)]
        home, device = devices[op], np.random.randint(able.shape[1])
        other = op
        if np.random.random() < 0.5:
            # An exchange leaves the loads of a level much as they are.
            other = steps.ops[np.random.randint(first, last)]
            device = devices[other]
        if device == home or not able[op, device] or not able[other, home]:
            continue
        _put(arrays, ground, devices, op, device)
        if other != op:
            _put(arrays, ground, devices, other, home)
        found = run_synchronously(arrays, devices, steps)
        if found <= makespan - heat * np.log(1.0 - np.random.random()):
            makespan = found
            if found < shortest[0]:
                shortest[0] = found
                best[:] = devices
            continue
        if other != op:
            _put(arrays, ground, devices, other, device)
        _put(arrays, ground, devices, op, home)
