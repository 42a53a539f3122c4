"""The best placement found so far: the least score, and of equal ones the first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.kernels import kernel
from doppler.simulator.kernel import run
from doppler.simulator.memory import peak_memory
from doppler.simulator.score import Score, better, overflow_of

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# Attempts, each with less room for parameters, before the devices' whole capacity is offered again.
FITTING_ATTEMPTS = 8


class Incumbent(NamedTuple):
    """The best of the placements tried; as long as none fits in memory, the nearest miss.

    Attributes
    ----------
    makespan, overflow : float64 array, shape [1]
        Its score, see :class:`doppler.simulator.Score`; infinite before the first.
    attempt : int64 array, shape [1]
        Which attempt it was.
    devices, priority : int32 array, shape [ops]
    peak : float64 array, shape [devices]
        Its peak memory, bytes; known where memory can run out.
    """

    makespan: FloatArray
    overflow: FloatArray
    attempt: npt.NDArray[np.int64]
    devices: IntArray
    priority: IntArray
    peak: FloatArray

    @property
    def score(self) -> Score:
        """Score of the best placement."""
        return Score(float(self.makespan[0]), float(self.overflow[0]))


def make_incumbent(n_ops: int, n_devices: int, prioritized: bool = True) -> Incumbent:
    """Start with nothing; ``prioritized`` False where attempts have no priority."""
    return Incumbent(
        np.full(1, np.inf),
        np.full(1, np.inf),
        np.full(1, -1, np.int64),
        np.zeros(n_ops, np.int32),
        np.zeros(n_ops if prioritized else 0, np.int32),
        np.zeros(n_devices),
    )


@kernel
def offer(arrays, devices, priority, attempt, limited, usable, work, incumbent):  # type: ignore[no-untyped-def]
    """Simulate a placement and keep it if it is better than the incumbent.

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
        See :class:`doppler.schedule.free_memory.FreeMemory`.
    work : Workspace
        With room for the record if ``limited``.
    incumbent : Incumbent

    Returns
    -------
    float
        The makespan in seconds, whether it fits or not.
    """
    best = Score(incumbent.makespan[0], incumbent.overflow[0])
    makespan, _ = run(arrays, devices, priority, 0.0, np.int64(0), np.bool_(False), work)
    if not better(Score(makespan, 0.0), best):
        # Whatever it overflows: memory is looked at only where it decides.
        return makespan
    overflow = 0.0
    if limited:
        _, n_sent = run(arrays, devices, priority, 0.0, np.int64(0), np.bool_(True), work)
        peak = peak_memory(arrays, devices, work, n_sent)
        overflow = overflow_of(arrays.capacity, peak)
        if overflow > 0.0:
            for device in range(len(peak)):
                usable[device] -= max(0.0, peak[device] - arrays.capacity[device])
            if attempt % FITTING_ATTEMPTS == FITTING_ATTEMPTS - 1:
                usable[:] = arrays.capacity
            if not better(Score(makespan, overflow), best):
                return makespan
        incumbent.peak[:] = peak
    incumbent.makespan[0] = makespan
    incumbent.overflow[0] = overflow
    incumbent.attempt[0] = attempt
    incumbent.devices[:] = devices
    incumbent.priority[:] = priority
    return makespan
