"""Ruin and recreate: take some ops off their devices and schedule them anew.

Schrimpf et al., "Record breaking optimization results using the ruin and recreate principle",
Journal of Computational Physics 2000.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from doppler.problem import Arrays
from doppler.schedule.affinity import forced_communication
from doppler.schedule.compiled import lean
from doppler.schedule.list_schedule import ListWeights, Prospect, make_prospect, rate
from doppler.schedule.partial import (
    Partial,
    earliest_starts,
    empty,
    gather,
    make_partial,
    place,
)

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

# Ops that are ruined at once: more than single moves reach, and few enough that most of a good
# placement stays.
SMALLEST, LARGEST = 4, 60


class Recreation(NamedTuple):
    """Scratch arrays.

    Attributes
    ----------
    partial : Partial
    ruined : bool array, shape [ops]
    homes : int32 array, shape [ops]
        Devices under consideration: those of the ops that stay, those to come of the others.
    prospect : Prospect
    queue, order : int32 array, shape [ops]
    before : int32 array, shape [ops]
        The devices, to be kept by the caller.
    fixed : bool array, shape [ops]
        Ops that are never ruined, since they belong to a colocation group.
    """

    partial: Partial
    ruined: BoolArray
    homes: IntArray
    prospect: Prospect
    queue: IntArray
    order: IntArray
    before: IntArray
    fixed: BoolArray


def make_recreation(arrays: Arrays) -> Recreation:
    """Allocate the scratch arrays."""
    n_ops, n_devices = arrays.compute.shape
    return Recreation(
        make_partial(arrays),
        np.zeros(n_ops, np.bool_),
        np.empty(n_ops, np.int32),
        make_prospect(n_devices),
        np.empty(n_ops, np.int32),
        np.empty(n_ops, np.int32),
        np.empty(n_ops, np.int32),
        arrays.group >= 0,
    )


@njit(cache=True, nogil=True)
def ruin_region(arrays, first, size, scratch):  # type: ignore[no-untyped-def]
    """Mark the ops around one: breadth first over producers and consumers, up to ``size``."""
    ruined, queue = scratch.ruined, scratch.queue
    succ_ptr, succ, pred_ptr, pred = arrays.succ_ptr, arrays.succ, arrays.pred_ptr, arrays.pred
    ruined[:] = False
    ruined[first] = True
    queue[0] = first
    head = 0
    tail = 1
    while head < tail and tail < size:
        op = queue[head]
        head += 1
        for edge in range(succ_ptr[op], succ_ptr[op + 1]):
            other = succ[edge]
            if not ruined[other] and tail < size:
                ruined[other] = True
                queue[tail] = other
                tail += 1
        for edge in range(pred_ptr[op], pred_ptr[op + 1]):
            other = pred[edge]
            if not ruined[other] and tail < size:
                ruined[other] = True
                queue[tail] = other
                tail += 1


@njit(cache=True, nogil=True)
def ruin_and_recreate(arrays, unit, first, start, devices, scratch):  # type: ignore[no-untyped-def]
    """Ruin a part of a placement and recreate it, with random weights and noise.

    The part is a region around one op, or a stretch of time from its start on; 4 to 60 ops.
    O(V log V + E devices).

    Parameters
    ----------
    unit : float
        Seconds that noise is measured in.
    first : int
        An op of the part.
    start : float64 array, shape [ops]
        When each op starts at present.
    devices : int32 array, shape [ops]
        Changed in place.
    scratch : Recreation
    """
    order, ruined, fixed = scratch.order, scratch.ruined, scratch.fixed
    # Of ops that start at once, those of no duration, the producer comes first.
    by_start = np.argsort(start[arrays.order], kind="mergesort")
    n_ops = len(order)
    begin = 0
    for step in range(n_ops):
        order[step] = arrays.order[by_start[step]]
        if order[step] == first:
            begin = step
    size = min(n_ops, np.random.randint(SMALLEST, LARGEST + 1))
    if np.random.randint(0, 2) == 0:
        ruin_region(arrays, first, size, scratch)
    else:
        ruined[:] = False
        for step in range(begin, min(n_ops, begin + size)):
            ruined[order[step]] = True
    for op in range(n_ops):
        ruined[op] = ruined[op] and not fixed[op]
    affinity = 4.0 ** np.random.uniform(-1.5, 1.0)
    transfer = 4.0 ** np.random.uniform(-1.5, 1.0)
    noise = unit * 10.0 ** np.random.uniform(-4.0, 0.3)
    recreate(arrays, order, devices, ListWeights(1.0, affinity, transfer, noise, 0.0), scratch)


@lean
def recreate(arrays, order, devices, weights, scratch):  # type: ignore[no-untyped-def]
    """Schedule all ops in a given order; those that are ruined go where it is best.

    The score of a device is that of the list scheduler, except that the affinity counts the ops
    that stay wherever they come in the order. O(V + E devices).

    Parameters
    ----------
    order : int32 array, shape [ops]
        Topological.
    devices : int32 array, shape [ops]
        Changed in place for the ruined ops.
    weights : ListWeights
    scratch : Recreation
        ``ruined`` says which ops.
    """
    partial, prospect, ruined, homes = (
        scratch.partial,
        scratch.prospect,
        scratch.ruined,
        scratch.homes,
    )
    found, starts, sent = prospect.found, prospect.starts, prospect.sent
    compute, succ_ptr, succ = arrays.compute, arrays.succ_ptr, arrays.succ
    volumes, latency, factor = arrays.volume, arrays.latency, arrays.factor
    empty(partial)
    for op in range(len(order)):
        homes[op] = -1 if ruined[op] else devices[op]
    for step in range(len(order)):
        op = order[step]
        n_inputs = gather(arrays, partial, op)
        if ruined[op]:
            n_found = np.int64(0)
            for device in range(compute.shape[1]):
                if compute[op, device] < np.inf:
                    found[n_found] = device
                    n_found += 1
            earliest_starts(arrays, partial, n_inputs, starts, sent)
            forced_communication(
                arrays, homes, op, prospect.volume, prospect.tally, prospect.affinity
            )
            own = volumes[op]
            for index in range(n_found):
                device = found[index]
                # A consumer that stays elsewhere has the output moved there.
                away = 0.0
                for edge in range(succ_ptr[op], succ_ptr[op + 1]):
                    home = homes[succ[edge]]
                    if home >= 0:
                        away = max(away, latency[device, home] + own * factor[device, home])
                sent[device] += away
            best = rate(compute, weights, op, np.int32(-1), n_found, prospect)
            homes[op] = found[best]
            devices[op] = found[best]
        place(arrays, partial, n_inputs, op, devices[op])
