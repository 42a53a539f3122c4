"""What would happen if devices waited for each other: bulk-synchronous execution.

The graph runs in supersteps, one for each level, the most edges from an entry. In each, first all
inputs that lie elsewhere are moved, then all devices compute their ops of the level; nobody goes
on before everybody has ended (L. Valiant, "A Bridging Model for Parallel Computation", CACM 33(8),
1990). It is what the work-conserving run-time is held against.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.checks import check_type
from doppler.kernels import kernel
from doppler.placement import Placement
from doppler.problem import Problem

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


class Supersteps(NamedTuple):
    """The supersteps of a problem, and scratch memory to run them.

    Attributes
    ----------
    ops : int32 array, shape [ops]
        By level, in each by id.
    pointers : int32 array, shape [levels + 1]
        Slice of ``ops`` of each level.
    moved : int64 array, shape [ops, devices]
        The last run in which an output was moved to a device.
    run : int64 array, shape [1]
        Number of the run.
    busy : float64 array, shape [devices]
        Of the level, seconds.
    channel : float64 array, shape [channels]
    """

    ops: IntArray
    pointers: IntArray
    moved: npt.NDArray[np.int64]
    run: npt.NDArray[np.int64]
    busy: FloatArray
    channel: FloatArray


def make_supersteps(problem: Problem) -> Supersteps:
    """Sort the ops by level. O(V log V + E)."""
    arrays = problem.arrays
    level = problem.graph.depth
    count = np.bincount(level)
    return Supersteps(
        np.argsort(level, kind="stable").astype(np.int32),
        np.concatenate([[0], np.cumsum(count)]).astype(np.int32),
        np.zeros((problem.n_ops, problem.n_devices), np.int64),
        np.zeros(1, np.int64),
        np.zeros(problem.n_devices),
        np.zeros(max(arrays.n_channels, 1)),
    )


@kernel
def run_synchronously(arrays, devices, steps):  # type: ignore[no-untyped-def]
    """Run a placement in supersteps. O(V + E + levels x (devices + channels)).

    Parameters
    ----------
    arrays : Arrays
    devices : int32 array, shape [ops]
    steps : Supersteps

    Returns
    -------
    float
        Seconds.
    """
    steps.run[0] += 1
    run = steps.run[0]
    makespan = 0.0
    for level in range(len(steps.pointers) - 1):
        steps.busy[:] = 0.0
        steps.channel[:] = 0.0
        longest = 0.0
        for place in range(steps.pointers[level], steps.pointers[level + 1]):
            op = steps.ops[place]
            home = devices[op]
            steps.busy[home] += arrays.compute[op, home]
            for edge in range(arrays.pred_ptr[op], arrays.pred_ptr[op + 1]):
                other = arrays.pred[edge]
                source = devices[other]
                if source == home or steps.moved[other, home] == run:
                    continue
                steps.moved[other, home] = run
                seconds = (
                    arrays.latency[source, home]
                    + arrays.volume[other] * arrays.factor[source, home]
                )
                channel = arrays.channel[source, home]
                if channel >= 0:
                    steps.channel[channel] += seconds
                else:
                    longest = max(longest, seconds)
        makespan += max(longest, steps.channel.max()) + steps.busy.max()
    return makespan


def synchronous_makespan(problem: Problem, placement: Placement) -> float:
    """Run a placement bulk-synchronously; its priorities do not matter.

    Transfers of a superstep go on at the same time, but for those of one channel, which take turns,
    as in :func:`doppler.simulator.simulate`. A tensor is moved to a device once, in the superstep
    that needs it there first.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    PlacementError
        If the placement does not suit the problem.
    """
    check_type(placement, Placement, "placement").validate(problem)
    devices = placement.devices.copy()
    return float(run_synchronously(problem.arrays, devices, make_supersteps(problem)))
