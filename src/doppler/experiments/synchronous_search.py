"""The best placement for bulk-synchronous execution that a restarted descent finds."""

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

# A descent ends after so many moves per op in a row that gain nothing.
_PATIENCE = 10
# Of the ops of a start that is tried again, the share whose devices are drawn anew.
_SHAKEN = 0.1
# Moves between two looks at the clock.
_SLICE = 500


def search_synchronous(
    problem: Problem, starts: Iterable[Placement], *, budget: float, seed: int = 0
) -> Placement:
    """Descend from placements, and from shaken copies of the best, to a short synchronous run.

    A move puts an op and those that must be with it, or two of one level by turns, on other
    devices; it is taken back if the run gets longer. Memory is not looked at.

    Parameters
    ----------
    problem : Problem
    starts : iterable of Placement
        At least one. The result is never longer than the best of them.
    budget : float
        Seconds.
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
    best = min(waiting, key=lambda devices: float(run_synchronously(arrays, devices, steps)))
    shortest = float(run_synchronously(arrays, best, steps))
    best = best.copy()
    while deadline.left > 0:
        devices = waiting.pop(0) if waiting else best.copy()
        shaken = 0 if waiting else int(_SHAKEN * problem.n_ops)
        state = np.zeros(1, np.int64)
        own = int(rng.integers(2**31))
        makespan = float(run_synchronously(arrays, devices, steps))
        while deadline.left > 0 and state[0] < _PATIENCE * problem.n_ops:
            makespan = _descend(
                arrays, able, ground, steps, devices, makespan, own, shaken, _SLICE, state
            )
            own, shaken = own + 1, 0
        if makespan < shortest:
            best, shortest = devices, makespan
    return Placement(best)


@kernel
def _put(ground, group, devices, op, device):  # type: ignore[no-untyped-def]
    if group < 0:
        devices[op] = device
        return
    for member in range(ground.members_ptr[group], ground.members_ptr[group + 1]):
        devices[ground.members[member]] = device


@kernel
def _descend(  # type: ignore[no-untyped-def]
    arrays, able, ground, steps, devices, makespan, seed, shaken, moves, state
):
    """Shake, then move; ``state`` counts the moves in a row that gained nothing."""
    np.random.seed(seed)
    n_ops, n_devices = able.shape
    for _ in range(shaken):
        op, device = np.random.randint(n_ops), np.random.randint(n_devices)
        if able[op, device]:
            _put(ground, arrays.group[op], devices, op, device)
    if shaken > 0:
        makespan = run_synchronously(arrays, devices, steps)
    for _ in range(moves):
        state[0] += 1
        level = np.random.randint(len(steps.pointers) - 1)
        first, last = steps.pointers[level], steps.pointers[level + 1]
        op = steps.ops[np.random.randint(first, last)]
        home, device = devices[op], np.random.randint(n_devices)
        other = op
        if np.random.random() < 0.5:
            # An exchange leaves the loads of a level much as they are.
            other = steps.ops[np.random.randint(first, last)]
            device = devices[other]
        if device == home or not able[op, device] or not able[other, home]:
            continue
        _put(ground, arrays.group[op], devices, op, device)
        if other != op:
            _put(ground, arrays.group[other], devices, other, home)
        found = run_synchronously(arrays, devices, steps)
        if found <= makespan:
            if found < makespan:
                state[0] = 0
            makespan = found
            continue
        if other != op:
            _put(ground, arrays.group[other], devices, other, device)
        _put(ground, arrays.group[op], devices, op, home)
    return makespan
