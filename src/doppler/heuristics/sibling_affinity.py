"""List scheduling that foresees the communication which a choice forces on the consumers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from doppler.heuristics.attempts import Attempt, restart
from doppler.heuristics.base import Solution
from doppler.heuristics.critical_path import TIE, restart_seed
from doppler.heuristics.incumbent import Incumbent, offer
from doppler.problem import Arrays, Problem
from doppler.schedule.affinity import forced_communication
from doppler.schedule.partial import (
    Partial,
    earliest_starts,
    empty,
    gather,
    make_partial,
    place,
    transfer_seconds,
)
from doppler.schedule.room import Room, choices, clear, make_room, take
from doppler.simulator.kernel import Workspace, heap_pop, heap_push

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]


class Scratch(NamedTuple):
    """Scratch arrays of one list schedule.

    Attributes
    ----------
    partial : Partial
    missing : int32 array, shape [ops]
        Inputs that are not placed yet.
    keys, heap : float64, int32 array, shape [ops]
        Ready ops by level, highest first.
    found : int32 array, shape [devices]
        Devices that may take the op at hand.
    starts, sent, affinity, volume, tally, scores : float64 array, shape [devices]
    """

    partial: Partial
    missing: IntArray
    keys: FloatArray
    heap: IntArray
    found: IntArray
    starts: FloatArray
    sent: FloatArray
    affinity: FloatArray
    volume: FloatArray
    tally: FloatArray
    scores: FloatArray


def make_scratch(arrays: Arrays) -> Scratch:
    """Allocate the scratch arrays."""
    n_ops, n_devices = arrays.compute.shape
    return Scratch(
        make_partial(arrays),
        np.empty(n_ops, np.int32),
        np.empty(n_ops),
        np.empty(n_ops, np.int32),
        np.empty(n_devices, np.int32),
        np.empty(n_devices),
        np.empty(n_devices),
        np.empty(n_devices),
        np.empty(n_devices),
        np.empty(n_devices),
        np.empty(n_devices),
    )


@njit(cache=True, nogil=True)
def schedule(  # type: ignore[no-untyped-def]
    arrays,
    level,
    affinity_weight,
    transfer_weight,
    noise,
    seed,
    room,
    scratch,
    order,
    devices,
    tied,
):
    """Place the ready op of the highest level first, where it ends soonest and costs least later.

    Score of a device: end of the op there + ``affinity_weight`` x sibling affinity +
    ``transfer_weight`` x time of the transfers it needs. O(V (log V + devices x inputs) + the cost
    of sibling affinity).

    Parameters
    ----------
    arrays : Arrays
    level : float64 array, shape [ops]
        Higher goes first.
    noise : float
        Seconds; a random share of it is added to every score.
    seed : int
    room : Room
    scratch : Scratch
    order : int32 array, shape [ops]
        Filled with the ops in the order in which they were chosen.
    devices : int32 array, shape [ops]
        Filled with the device of each op.
    tied : bool array, shape [ops, devices] or [0, devices]
        Filled, by step, with the devices whose score was the best; not if it has no rows.
    """
    np.random.seed(seed)
    clear(room)
    tied[:] = False
    partial = scratch.partial
    empty(partial)
    missing, keys, heap = scratch.missing, scratch.keys, scratch.heap
    found, starts, sent = scratch.found, scratch.starts, scratch.sent
    affinity, scores = scratch.affinity, scratch.scores
    volume, tally = scratch.volume, scratch.tally
    succ_ptr, succ = arrays.succ_ptr, arrays.succ
    pred_ptr, compute = arrays.pred_ptr, arrays.compute
    size = np.int64(0)
    for op in range(len(order)):
        missing[op] = pred_ptr[op + 1] - pred_ptr[op]
        if missing[op] == 0:
            heap_push(keys, heap, 0, size, -level[op], np.int32(op))
            size += 1
    for step in range(len(order)):
        op = heap[0]
        heap_pop(keys, heap, 0, size)
        size -= 1
        n_inputs = gather(arrays, partial, op)
        n_found = choices(room, op, found)
        earliest_starts(arrays, partial, n_inputs, found, n_found, starts)
        transfer_seconds(arrays, partial, n_inputs, found, n_found, sent)
        forced_communication(arrays, partial.devices, op, volume, tally, affinity)
        best = 0
        for index in range(n_found):
            device = found[index]
            scores[index] = (
                starts[index]
                + compute[op, device]
                + affinity_weight * affinity[device]
                + transfer_weight * sent[index]
                + noise * np.random.random()
            )
            if scores[index] < scores[best]:
                best = index
        if len(tied) > 0:
            for index in range(n_found):
                tied[step, found[index]] = scores[index] <= scores[best] * (1.0 + TIE)
        device = found[best]
        place(arrays, partial, n_inputs, op, device)
        take(room, op, device)
        order[step] = op
        devices[op] = device
        for edge in range(succ_ptr[op], succ_ptr[op + 1]):
            consumer = succ[edge]
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heap_push(keys, heap, 0, size, -level[consumer], consumer)
                size += 1


@njit(cache=True, nogil=True)
def _restarts(  # type: ignore[no-untyped-def]
    arrays,
    level,
    unit,
    seed,
    first,
    count,
    limited,
    room,
    scratch,
    work,
    devices,
    priority,
    incumbent,
):
    order = np.empty(len(devices), np.int32)
    tied = np.empty((0, arrays.compute.shape[1]), np.bool_)
    for index in range(first, first + count):
        np.random.seed(restart_seed(seed, index))
        affinity_weight, transfer_weight, noise = 1.0, 1.0, 0.0
        if index > 0:
            affinity_weight = 4.0 ** np.random.uniform(-1.0, 1.0)
            transfer_weight = 4.0 ** np.random.uniform(-1.0, 1.0)
            noise = unit * 10.0 ** np.random.uniform(-6.0, -0.5)
        schedule(
            arrays,
            level,
            affinity_weight,
            transfer_weight,
            noise,
            np.random.randint(0, 2**31),
            room,
            scratch,
            order,
            devices,
            tied,
        )
        for step in range(len(order)):
            priority[order[step]] = step
        offer(arrays, devices, priority, index, limited, room.usable, work, incumbent)


def sibling_affinity_trace(
    problem: Problem, seed: int = 0, noise: float = 1e-6
) -> tuple[IntArray, IntArray, BoolArray]:
    """Make one list schedule and say what was equally good at every step.

    Parameters
    ----------
    problem : Problem
    seed : int
    noise : float
        Random part of every score, as a share of the mean op time; 0 breaks ties by device.

    Returns
    -------
    order : int32 array, shape [ops]
        The ops in the order in which they were chosen.
    devices : int32 array, shape [ops]
        Device of each op.
    tied : bool array, shape [ops, devices]
        By step: the devices that were equally good for ``order[step]``.
    """
    arrays = problem.arrays
    order = np.empty(problem.n_ops, np.int32)
    devices = np.empty(problem.n_ops, np.int32)
    tied = np.empty((problem.n_ops, problem.n_devices), np.bool_)
    schedule(
        arrays,
        problem.b_level(problem.mean_compute),
        1.0,
        1.0,
        noise * float(problem.mean_compute.mean()),
        int(restart_seed(int(seed) % 2**32, 0)),
        make_room(arrays),
        make_scratch(arrays),
        order,
        devices,
        tied,
    )
    return order, devices, tied


def sibling_affinity(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Schedule by b-level, end and sibling affinity; restart with other weights and noise.

    The first schedule weighs affinity and transfers by 1 and draws nothing, so that a budget of 0
    is deterministic. Restarts draw both weights log-uniformly from 1/4 to 4, on every core.

    Parameters
    ----------
    problem : Problem
    budget : float
        Seconds; 0: one schedule.
    seed : int

    Raises
    ------
    MemoryLimitError
        If none of the placements fits in memory.
    """
    arrays = problem.arrays
    level = problem.b_level(problem.mean_compute)
    unit = float(problem.mean_compute.mean())
    limited = problem.may_overflow
    seed = int(seed) % 2**32

    def make_attempt(room: Room, work: Workspace, incumbent: Incumbent) -> Attempt:
        scratch = make_scratch(arrays)
        devices = np.empty(problem.n_ops, np.int32)
        priority = np.empty(problem.n_ops, np.int32)

        def attempt(first: int, count: int) -> None:
            _restarts(
                arrays,
                level,
                unit,
                seed,
                first,
                count,
                limited,
                room,
                scratch,
                work,
                devices,
                priority,
                incumbent,
            )

        return attempt

    return restart(problem, make_attempt, budget=budget, origin="sibling-affinity list schedule")
