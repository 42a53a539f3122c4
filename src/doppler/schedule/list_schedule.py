"""The list scheduler: the ready op of the highest level goes where its score is least.

Critical path, sibling affinity and a schedule that follows a hint differ in their weights only;
ruin and recreate scores the devices of an op in the same way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.problem import Arrays
from doppler.schedule.affinity import forced_communication
from doppler.schedule.compiled import inlined, lean
from doppler.schedule.free_memory import choices, clear, take
from doppler.schedule.partial import (
    Partial,
    earliest_starts,
    empty,
    gather,
    make_partial,
    place,
)
from doppler.simulator.kernel import heap_pop, heap_push

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# Sums of equal costs in another order differ in the last digits; they are ties all the same.
TIE = 1e-9


class ListWeights(NamedTuple):
    """What the score of a device is made of, besides the earliest start of the op there.

    Attributes
    ----------
    compute : float
        Of the time of the op: 1 scores by its end, 0 by its start.
    affinity : float
        Of the communication that the choice forces on the op's consumers.
    transfer : float
        Of the time of the transfers that the op needs.
    noise : float
        Seconds; a random share of it is added.
    hint : float
        Seconds that are added for a device other than the op's hint.
    """

    compute: float
    affinity: float = 0.0
    transfer: float = 0.0
    noise: float = 0.0
    hint: float = 0.0


class Prospect(NamedTuple):
    """What the op at hand would meet on each of the devices that may take it.

    Attributes
    ----------
    found : int32 array, shape [devices]
        Those devices come first.
    starts, sent, affinity : float64 array, shape [devices]
        By device, seconds: earliest start, transfers, what is forced on the consumers.
    scores : float64 array, shape [devices]
        In the order of ``found``, seconds.
    volume, tally : float64 array, shape [devices]
        Scratch.
    """

    found: IntArray
    starts: FloatArray
    sent: FloatArray
    affinity: FloatArray
    scores: FloatArray
    volume: FloatArray
    tally: FloatArray


def make_prospect(n_devices: int) -> Prospect:
    """Allocate it."""
    return Prospect(np.empty(n_devices, np.int32), *np.zeros((6, n_devices)))


class ListScratch(NamedTuple):
    """Scratch arrays of list schedules, made once for all restarts.

    Attributes
    ----------
    partial : Partial
    prospect : Prospect
    missing : int32 array, shape [ops]
        Inputs that are not placed yet.
    keys, heap : float64, int32 array, shape [ops]
        Ready ops by level, highest first, equal ones by label.
    label, op_of : int32 array, shape [ops]
        The numbers by which equal ops go, and the op of each number.
    """

    partial: Partial
    prospect: Prospect
    missing: IntArray
    keys: FloatArray
    heap: IntArray
    label: IntArray
    op_of: IntArray


def make_list_scratch(arrays: Arrays) -> ListScratch:
    """Allocate the scratch arrays."""
    n_ops, n_devices = arrays.compute.shape
    return ListScratch(
        make_partial(arrays),
        make_prospect(n_devices),
        np.empty(n_ops, np.int32),
        np.empty(n_ops),
        np.empty(n_ops, np.int32),
        np.empty(n_ops, np.int32),
        np.empty(n_ops, np.int32),
    )


@inlined
def rate(compute, weights, op, hinted, n_found, prospect):  # type: ignore[no-untyped-def]
    """Score the devices that may take an op and return the place of the best in ``found``.

    Of equal ones it is the first. O(devices).

    Parameters
    ----------
    compute : float64 array, shape [ops, devices]
    weights : ListWeights
    op : int
    hinted : int
        Device that the op's hint names, or -1.
    n_found : int
        How many of the prospect's devices may take the op.
    prospect : Prospect
        ``scores`` is filled.
    """
    found, starts, sent = prospect.found, prospect.starts, prospect.sent
    affinity, scores = prospect.affinity, prospect.scores
    best = 0
    for index in range(n_found):
        device = found[index]
        score = (
            starts[device]
            + weights.compute * compute[op, device]
            + weights.affinity * affinity[device]
            + weights.transfer * sent[device]
        )
        if weights.noise > 0.0:
            score += weights.noise * np.random.random()
        if hinted >= 0 and device != hinted:
            score += weights.hint
        scores[index] = score
        if score < scores[best]:
            best = index
    return best


@lean
def list_schedule(  # type: ignore[no-untyped-def]
    arrays, level, weights, hint, drawn, seed, memory, scratch, order, devices, tied
):
    """Make one list schedule. O(V (log V + devices x inputs) + the cost of sibling affinity).

    Invariant: an op is chosen after all its inputs, and of all such ops it has the highest level;
    no device that may take it has a lower score, given the devices and channels as the ops chosen
    before left them.

    Parameters
    ----------
    arrays : Arrays
    level : float64 array, shape [ops]
        Higher goes first.
    weights : ListWeights
    hint : int32 array, shape [ops] or [0]
        A preferred device of each op, or -1; empty: none has any.
    drawn : bool
        Whether equal ops and equal devices are drawn; otherwise the smaller number goes first.
    seed : int
        In [0, 2^32).
    memory : FreeMemory
    scratch : ListScratch
    order : int32 array, shape [ops]
        Filled with the ops in the order in which they were chosen.
    devices : int32 array, shape [ops]
        Filled with the device of each op.
    tied : bool array, shape [ops, devices] or [0, devices]
        Filled, by step, with the devices that were equally good; not if it has no rows.
    """
    np.random.seed(seed)
    clear(memory)
    tied[:] = False
    partial, prospect = scratch.partial, scratch.prospect
    missing, keys, heap = scratch.missing, scratch.keys, scratch.heap
    label, op_of = scratch.label, scratch.op_of
    found, starts, sent = prospect.found, prospect.starts, prospect.sent
    affinity, volume, tally = prospect.affinity, prospect.volume, prospect.tally
    scores, homes, compute = prospect.scores, partial.devices, arrays.compute
    succ_ptr, succ, pred_ptr = arrays.succ_ptr, arrays.succ, arrays.pred_ptr
    empty(partial)
    n_ops = len(order)
    for op in range(n_ops):
        op_of[op] = op
    if drawn:
        for last in range(n_ops - 1, 0, -1):
            other = np.random.randint(0, last + 1)
            op_of[last], op_of[other] = op_of[other], op_of[last]
    size = np.int64(0)
    for number in range(n_ops):
        op = op_of[number]
        label[op] = number
        missing[op] = pred_ptr[op + 1] - pred_ptr[op]
        if missing[op] == 0:
            heap_push(keys, heap, 0, size, -level[op], np.int32(number))
            size += 1
    for step in range(n_ops):
        op = op_of[heap[0]]
        heap_pop(keys, heap, 0, size)
        size -= 1
        n_inputs = gather(arrays, partial, op)
        n_found = choices(memory, op, found)
        earliest_starts(arrays, partial, n_inputs, starts, sent)
        if weights.affinity != 0.0:
            forced_communication(arrays, homes, op, volume, tally, affinity)
        hinted = hint[op] if len(hint) > 0 else np.int32(-1)
        best = rate(compute, weights, op, hinted, n_found, prospect)
        if drawn or len(tied) > 0:
            most = scores[best] * (1.0 + TIE)
            n_tied = 0
            for index in range(n_found):
                if scores[index] <= most:
                    n_tied += 1
                    if drawn and (n_tied == 1 or np.random.randint(0, n_tied) == 0):
                        best = index
                    if len(tied) > 0:
                        tied[step, found[index]] = True
        device = found[best]
        place(arrays, partial, n_inputs, op, device)
        take(memory, op, device)
        order[step] = op
        devices[op] = device
        for edge in range(succ_ptr[op], succ_ptr[op + 1]):
            consumer = succ[edge]
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heap_push(keys, heap, 0, size, -level[consumer], label[consumer])
                size += 1
