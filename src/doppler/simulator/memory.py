"""Peak memory of a run, from its trace."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from doppler.kernels import kernel
from doppler.problem import resident_bytes

FloatArray = npt.NDArray[np.float64]


@kernel
def peak_memory(arrays, devices, work, n_sent):  # type: ignore[no-untyped-def]
    """Most bytes that each device holds at any time.

    Parameters are resident throughout. An output takes room on its device from the start of its
    op until its consumers there have ended and its last transfer out has arrived; a copy takes
    room from the start of its transfer until its consumers there have ended. The output of an op
    without consumers is a result and stays. O((V + E) log (V + E)).

    Parameters
    ----------
    arrays : Arrays
    devices : int32 array, shape [ops]
    work : Workspace
        Of a recorded simulation.
    n_sent : int
        Number of recorded transfers.

    Returns
    -------
    float64 array, shape [devices]
        Bytes.
    """
    n_ops = len(devices)
    n_devices = arrays.compute.shape[1]
    held = np.empty(n_devices)
    resident_bytes(arrays, devices, held, np.empty((len(arrays.tile_bytes), n_devices), np.bool_))
    free_at = np.empty(n_ops)
    for op in range(n_ops):
        first, last = arrays.succ_ptr[op], arrays.succ_ptr[op + 1]
        free_at[op] = np.inf if first == last else work.end[op]
        for edge in range(first, last):
            consumer = arrays.succ[edge]
            if devices[consumer] == devices[op]:
                free_at[op] = max(free_at[op], work.end[consumer])
    count = n_ops + n_sent
    times = np.empty(2 * count)
    changes = np.empty(2 * count)
    where = np.empty(2 * count, np.int32)
    for sent in range(n_sent):
        op, target = work.sent_op[sent], work.sent_target[sent]
        free_at[op] = max(free_at[op], work.sent_end[sent])
        until = work.sent_end[sent]
        for edge in range(arrays.succ_ptr[op], arrays.succ_ptr[op + 1]):
            consumer = arrays.succ[edge]
            if devices[consumer] == target:
                until = max(until, work.end[consumer])
        slot = n_ops + sent
        # What is freed at an instant makes room for what is taken then: frees come first.
        times[slot], changes[slot], where[slot] = until, -arrays.output_bytes[op], target
        slot += count
        times[slot], changes[slot] = work.sent_start[sent], arrays.output_bytes[op]
        where[slot] = target
    for op in range(n_ops):
        times[op], changes[op], where[op] = free_at[op], -arrays.output_bytes[op], devices[op]
        slot = op + count
        times[slot], changes[slot] = work.start[op], arrays.output_bytes[op]
        where[slot] = devices[op]
    peak = held.copy()
    for event in np.argsort(times, kind="mergesort"):
        if times[event] == np.inf:
            break
        device = where[event]
        held[device] += changes[event]
        peak[device] = max(peak[device], held[device])
    return peak


@kernel
def surely_fits(arrays, devices, held, met):  # type: ignore[no-untyped-def]
    """Say whether a placement fits even if nothing were ever freed. O(V + E + reads).

    Parameters
    ----------
    arrays : Arrays
    devices : int32 array, shape [ops]
    held : float64 array, shape [devices]
        Scratch.
    met : uint32 array, shape [devices]
        Scratch.

    Returns
    -------
    bool
        False: it may fit all the same, see :func:`peak_memory`.
    """
    succ_ptr, succ = arrays.succ_ptr, arrays.succ
    output_bytes, capacity = arrays.output_bytes, arrays.capacity
    n_ops = len(devices)
    resident_bytes(arrays, devices, held, np.empty((len(arrays.tile_bytes), len(held)), np.bool_))
    met[:] = n_ops
    for op in range(n_ops):
        home = devices[op]
        size = output_bytes[op]
        held[home] += size
        met[home] = op
        for edge in range(succ_ptr[op], succ_ptr[op + 1]):
            target = devices[succ[edge]]
            if met[target] != op:
                met[target] = op
                held[target] += size
    fits = True
    for device in range(len(held)):
        fits = fits and held[device] <= capacity[device]
    return fits
