"""The best placement found so far that fits in memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from doppler.simulator.kernel import run
from doppler.simulator.memory import peak_memory

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# Attempts, each with less room for parameters, before the devices' whole capacity is offered again.
FITTING_ATTEMPTS = 8


class Incumbent(NamedTuple):
    """The best of the placements tried, and the nearest miss.

    Attributes
    ----------
    makespan : float64 array, shape [1]
        Seconds; infinite until a placement fits.
    attempt : int64 array, shape [1]
        Which attempt it was.
    devices, priority : int32 array, shape [ops]
    missing : float64 array, shape [1]
        Bytes missing, over all devices, of the nearest miss; infinite before the first.
    peak : float64 array, shape [devices]
        Peak memory of the nearest miss, bytes.
    """

    makespan: FloatArray
    attempt: npt.NDArray[np.int64]
    devices: IntArray
    priority: IntArray
    missing: FloatArray
    peak: FloatArray


def make_incumbent(n_ops: int, n_devices: int, prioritised: bool = True) -> Incumbent:
    """Start with nothing; ``prioritised`` False where attempts have no priority."""
    return Incumbent(
        np.full(1, np.inf),
        np.full(1, -1, np.int64),
        np.zeros(n_ops, np.int32),
        np.zeros(n_ops if prioritised else 0, np.int32),
        np.full(1, np.inf),
        np.zeros(n_devices),
    )


@njit(cache=True, nogil=True)
def offer(arrays, devices, priority, attempt, limited, usable, work, incumbent):  # type: ignore[no-untyped-def]
    """Simulate a placement and keep it if it is better than the incumbent and fits.

    A placement that does not fit lowers ``usable`` by what is missing, so that the next attempt
    leaves that much room for outputs; every eighth attempt that is over starts afresh, since
    another placement needs room elsewhere.

    Parameters
    ----------
    arrays : Arrays
    devices : int32 array, shape [ops]
    priority : int32 array, shape [ops] or [0]
    attempt : int
        Number of the attempt.
    limited : bool
        Whether memory can run out at all.
    usable : float64 array, shape [devices]
        See :class:`doppler.schedule.room.Room`.
    work : Workspace
        With room for the record if ``limited``.
    incumbent : Incumbent

    Returns
    -------
    float
        The makespan in seconds, whether it fits or not.
    """
    makespan, _ = run(arrays, devices, priority, 0.0, np.int64(0), np.bool_(False), work)
    if makespan >= incumbent.makespan[0]:
        return makespan
    if limited:
        _, n_sent = run(arrays, devices, priority, 0.0, np.int64(0), np.bool_(True), work)
        peak = peak_memory(arrays, devices, work, n_sent)
        missing = 0.0
        for device in range(len(peak)):
            over = peak[device] - arrays.capacity[device]
            if over > 0.0:
                missing += over
                usable[device] -= over
        if missing > 0.0:
            if attempt % FITTING_ATTEMPTS == FITTING_ATTEMPTS - 1:
                usable[:] = arrays.capacity
            if missing < incumbent.missing[0]:
                incumbent.missing[0] = missing
                incumbent.peak[:] = peak
            return makespan
    incumbent.makespan[0] = makespan
    incumbent.attempt[0] = attempt
    incumbent.devices[:] = devices
    incumbent.priority[:] = priority
    return makespan
