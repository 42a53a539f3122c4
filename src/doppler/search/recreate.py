"""Ruin and recreate: take some ops off their devices and schedule them anew.

Schrimpf et al., "Record breaking optimization results using the ruin and recreate principle",
Journal of Computational Physics 2000.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.kernels import kernel
from doppler.problem import Arrays
from doppler.schedule.affinity import forced_communication
from doppler.schedule.compiled import allocating, lean
from doppler.schedule.list_schedule import ListWeights, Prospect, make_prospect, rate
from doppler.schedule.partial import (
    Partial,
    earliest_starts,
    gather,
    make_partial,
    place,
)
from doppler.search.moves import enqueue

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

# Ops that are ruined at once: more than single moves reach, and few enough that most of a good
# placement stays.
SMALLEST, LARGEST = 4, 400
# The same as a share of all ops.
MOST = 0.25


class Recreation(NamedTuple):
    """Scratch arrays.

    Attributes
    ----------
    partial : Partial
    ruined : bool array, shape [ops]
    homes : int32 array, shape [ops]
        Devices under consideration: those of the ops that stay, those to come of the others.
    prospect : Prospect
    queue : int32 array, shape [ops]
    order, position : int32 array, shape [ops]
        The ops by their start in the last run, see :func:`sort_by_start`, and where each is.
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
    position: IntArray
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
        np.empty(n_ops, np.int32),
        arrays.group >= 0,
    )


@kernel
def ruin_region(arrays, first, size, scratch):  # type: ignore[no-untyped-def]
    """Mark the ops around one: breadth first over producers and consumers, up to ``size``.

    Returns
    -------
    int
        How many; they are the first in ``scratch.queue``.
    """
    ruined, queue = scratch.ruined, scratch.queue
    ruined[:] = False
    ruined[first] = True
    queue[0] = first
    head = 0
    tail = 1
    while head < tail and tail < size:
        op = queue[head]
        head += 1
        for ptr, others in ((arrays.succ_ptr, arrays.succ), (arrays.pred_ptr, arrays.pred)):
            tail = enqueue(ptr, others, op, size, ruined, True, queue, tail, scratch.homes, -1)
    return tail


@kernel
def sort_by_start(arrays, start, scratch):  # type: ignore[no-untyped-def]
    """Put the ops into the order in which a run started them. O(V log V)."""
    # Of ops that start at once, those of no duration, the producer comes first.
    by_start = np.argsort(start[arrays.order], kind="mergesort")
    order, position = scratch.order, scratch.position
    for step in range(len(order)):
        op = arrays.order[by_start[step]]
        order[step] = op
        position[op] = step


@kernel
def ruin_and_recreate(arrays, unit, first, start, end, devices, scratch):  # type: ignore[no-untyped-def]
    """Ruin a part of a placement and recreate it, with random weights and noise.

    The part is a region around one op, or a stretch of time from its start on.
    O(V + (ops between the first and the last of the part) x inputs + the part x devices).

    Parameters
    ----------
    unit : float
        Seconds that noise is measured in.
    first : int
        An op of the part.
    start, end : float64 array, shape [ops]
        When each op starts and ends at present.
    devices : int32 array, shape [ops]
        Changed in place.
    scratch : Recreation
        Sorted by ``start``.

    Returns
    -------
    begin, stop : int
        The ops that may have moved are ``scratch.order[begin:stop]``.
    """
    order, position = scratch.order, scratch.position
    ruined, fixed = scratch.ruined, scratch.fixed
    n_ops = len(order)
    largest = max(min(float(n_ops), SMALLEST + 1.0), min(float(LARGEST), MOST * n_ops))
    size = np.int64(SMALLEST * (largest / SMALLEST) ** np.random.random())
    size = min(size, np.int64(n_ops))
    begin = np.int64(position[first])
    stop = min(np.int64(n_ops), begin + size)
    if np.random.randint(0, 2) == 0:
        count = ruin_region(arrays, first, size, scratch)
        for index in range(count):
            at = np.int64(position[scratch.queue[index]])
            begin = min(begin, at)
            stop = max(stop, at + 1)
    else:
        ruined[:] = False
        for step in range(begin, stop):
            ruined[order[step]] = True
    for step in range(begin, stop):
        op = order[step]
        ruined[op] = ruined[op] and not fixed[op]
    affinity = 4.0 ** np.random.uniform(-1.5, 1.0)
    transfer = 4.0 ** np.random.uniform(-1.5, 1.0)
    noise = unit * 10.0 ** np.random.uniform(-4.0, 0.3)
    weights = ListWeights(1.0, affinity, transfer, noise, 0.0)
    recreate(arrays, begin, stop, start, end, devices, weights, scratch)
    return begin, stop


@allocating
def _resume(arrays, begin, stop, start, end, devices, scratch):  # type: ignore[no-untyped-def]
    """Set the schedule to what the last run had reached when it started an op.

    Copies are looked up when they are asked for; channels are taken as free from then on.
    """
    partial, order = scratch.partial, scratch.order
    partial.devices[:] = devices
    partial.finish[:] = end
    partial.n_copies[:] = -1
    partial.device_free[:] = 0.0
    partial.channel_free[:] = start[order[begin]] if begin > 0 else 0.0
    device_free = partial.device_free
    for step in range(begin):
        op = order[step]
        device_free[devices[op]] = max(device_free[devices[op]], end[op])
    for step in range(begin, stop):
        partial.n_copies[order[step]] = 0


@lean
def _look_up_copies(arrays, begin, op, devices, scratch):  # type: ignore[no-untyped-def]
    """Note where the output of an op had been sent before the schedule was resumed."""
    partial, position = scratch.partial, scratch.position
    copy_device, copy_arrival = partial.copy_device, partial.copy_arrival
    latency, factor, succ = arrays.latency, arrays.factor, arrays.succ
    first = arrays.succ_ptr[op]
    home = devices[op]
    count = 0
    for edge in range(first, arrays.succ_ptr[op + 1]):
        target = devices[succ[edge]]
        if target == home or position[succ[edge]] >= begin:
            continue
        known = False
        for slot in range(first, first + count):
            known = known or copy_device[slot] == target
        if not known:
            copy_device[first + count] = target
            duration = latency[home, target] + arrays.volume[op] * factor[home, target]
            copy_arrival[first + count] = partial.finish[op] + duration
            count += 1
    partial.n_copies[op] = count


@lean
def recreate(arrays, begin, stop, start, end, devices, weights, scratch):  # type: ignore[no-untyped-def]
    """Schedule a stretch of the order anew; what is ruined in it goes where it is best.

    The score of a device is that of the list scheduler, except that the affinity counts the ops
    that stay wherever they come in the order. O(V + edges of the stretch x devices).

    Parameters
    ----------
    begin, stop : int
        The stretch of ``scratch.order``, a topological order.
    start, end : float64 array, shape [ops]
        When the ops before the stretch start and end.
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
    order, inputs, n_copies = scratch.order, partial.inputs, partial.n_copies
    found, starts, sent = prospect.found, prospect.starts, prospect.sent
    compute, succ_ptr, succ = arrays.compute, arrays.succ_ptr, arrays.succ
    volumes, latency, factor = arrays.volume, arrays.latency, arrays.factor
    _resume(arrays, begin, stop, start, end, devices, scratch)
    for op in range(len(order)):
        homes[op] = devices[op]
    for step in range(begin, stop):
        if ruined[order[step]]:
            homes[order[step]] = -1
    for step in range(begin, stop):
        op = order[step]
        n_inputs = gather(arrays, partial, op)
        for index in range(n_inputs):
            if n_copies[inputs[index]] < 0:
                _look_up_copies(arrays, begin, inputs[index], devices, scratch)
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
