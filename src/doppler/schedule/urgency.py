"""Priorities that follow from the devices alone: how long the path is that waits for an op.

The order of a schedule that was planned for one timing is fragile: when durations vary, an op that
is late keeps others waiting that could go first. The longest path from an op to the end, transfers
of the placement included, does not depend on the timing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from doppler.kernels import kernel
from doppler.problem import Problem
from doppler.schedule.ranks import rank_of

IntArray = npt.NDArray[np.int32]

# Urgencies are counted in so many steps from the longest path to none.
STEPS = 2.0**30


@kernel
def urgencies(arrays, devices, level, priority):  # type: ignore[no-untyped-def]
    """Rank ops by the b-level that the placement gives them. O(V + E).

    The b-level of an op is its time on its device, and the longest of its consumers' b-levels,
    each with the transfer there.

    Parameters
    ----------
    arrays : Arrays
    devices : int32 array, shape [ops]
    level : float64 array, shape [ops]
        Filled with the b-levels, seconds.
    priority : int32 array, shape [ops]
        Filled; smaller is more urgent, ops of about equal urgency may be equal.
    """
    order, succ_ptr, succ = arrays.order, arrays.succ_ptr, arrays.succ
    compute, volume = arrays.compute, arrays.volume
    latency, factor = arrays.latency, arrays.factor
    top = 0.0
    for step in range(len(order) - 1, -1, -1):
        op = order[step]
        home = devices[op]
        longest = 0.0
        for edge in range(succ_ptr[op], succ_ptr[op + 1]):
            consumer = succ[edge]
            target = devices[consumer]
            # To itself both are 0.
            waits = level[consumer] + latency[home, target] + volume[op] * factor[home, target]
            longest = max(longest, waits)
        level[op] = longest + compute[op, home]
        top = max(top, level[op])
    scale = STEPS / top if top > 0.0 else 0.0
    for op in range(len(order)):
        priority[op] = np.int32(STEPS - level[op] * scale)


def urgent_first(problem: Problem, devices: IntArray) -> IntArray:
    """Rank of each op by urgency, of equal ones the smaller id first, shape [ops]."""
    priority = np.empty(problem.n_ops, np.int32)
    urgencies(problem.arrays, devices, np.empty(problem.n_ops), priority)
    return rank_of(np.argsort(priority, kind="stable").astype(np.int32))
