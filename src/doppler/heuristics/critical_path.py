"""Critical path: the teacher of the DOPPLER paper, restarted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from doppler.heuristics.attempts import Attempt, restart
from doppler.heuristics.base import Solution
from doppler.heuristics.incumbent import Incumbent, offer
from doppler.problem import Arrays, Problem
from doppler.schedule.partial import sort_by
from doppler.schedule.room import Room, choices, clear, make_room, take
from doppler.simulator.kernel import Workspace, heap_pop, heap_push

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

# Sums of equal costs in another order differ in the last digits; they are ties all the same.
TIE = 1e-9


class Scratch(NamedTuple):
    """Scratch arrays of one list schedule, made once for all restarts.

    Attributes
    ----------
    finish : float64 array, shape [ops]
        When each op chosen so far ends, seconds.
    device_free : float64 array, shape [devices]
    channel_free : float64 array, shape [channels]
        When the last op and transfer placed there end.
    n_copies : int32 array, shape [ops]
    copy_device, copy_arrival : int32, float64 array, shape [edges]
        Where else the output of op ``u`` is and since when: ``n_copies[u]`` entries from
        ``succ_ptr[u]`` on.
    inputs : int32 array, shape [most inputs of an op]
        Producers of the op at hand, in the order in which they are sent.
    trial_free, trial_of : float64, int64 array, shape [channels]
        What a trial would make of ``channel_free``, and which trial that was.
    missing : int32 array, shape [ops]
        Inputs that have no device yet.
    ready_key, ready_label : float64, int32 array, shape [ops]
        Heap of ready ops by urgency, highest first, equal ones by label.
    label, op_of : int32 array, shape [ops]
        A random numbering of the ops, and its inverse.
    found, start : int32, float64 array, shape [devices]
        Devices that may take the op at hand, and its start on each of them.
    """

    finish: FloatArray
    device_free: FloatArray
    channel_free: FloatArray
    n_copies: IntArray
    copy_device: IntArray
    copy_arrival: FloatArray
    inputs: IntArray
    trial_free: FloatArray
    trial_of: npt.NDArray[np.int64]
    missing: IntArray
    ready_key: FloatArray
    ready_label: IntArray
    label: IntArray
    op_of: IntArray
    found: IntArray
    start: FloatArray


def make_scratch(arrays: Arrays) -> Scratch:
    """Allocate the scratch arrays."""
    n_ops, n_devices = arrays.compute.shape

    def integers(size: int) -> IntArray:
        return np.empty(size, np.int32)

    return Scratch(
        np.empty(n_ops),
        np.empty(n_devices),
        np.empty(arrays.n_channels),
        integers(n_ops),
        integers(len(arrays.succ)),
        np.empty(len(arrays.succ)),
        integers(int(np.diff(arrays.pred_ptr).max(initial=0))),
        np.empty(arrays.n_channels),
        np.empty(arrays.n_channels, np.int64),
        integers(n_ops),
        np.empty(n_ops),
        integers(n_ops),
        integers(n_ops),
        integers(n_ops),
        integers(n_devices),
        np.empty(n_devices),
    )


@njit(cache=True, nogil=True)
def schedule(arrays, urgency, room, seed, scratch, order, devices, tied):  # type: ignore[no-untyped-def]
    """Make one list schedule. O(V log V + E devices^2), in practice E devices.

    Invariant: an op is chosen after all its inputs, and of all such ops it has the highest
    urgency; no device that may take it could start it earlier, given the devices and channels as
    the ops chosen before left them.

    Parameters
    ----------
    arrays : Arrays
    urgency : float64 array, shape [ops]
        The b-levels, see :func:`urgencies`.
    room : Room
    seed : int
        Of the choice among equals, in [0, 2^32).
    scratch : Scratch
    order : int32 array, shape [ops]
        Filled with the ops in the order in which they were chosen.
    devices : int32 array, shape [ops]
        Filled with the device of each op.
    tied : bool array, shape [ops, devices] or [0, devices]
        Filled, by step, with the devices that were equally good; not if it has no rows.
    """
    np.random.seed(seed)
    clear(room)
    tied[:] = False
    succ_ptr, succ = arrays.succ_ptr, arrays.succ
    pred_ptr, pred = arrays.pred_ptr, arrays.pred
    compute, volume, factor = arrays.compute, arrays.volume, arrays.factor
    latency, channels = arrays.latency, arrays.channel
    finish, start, found, inputs = scratch.finish, scratch.start, scratch.found, scratch.inputs
    n_copies, copy_device = scratch.n_copies, scratch.copy_device
    copy_arrival = scratch.copy_arrival
    device_free, channel_free = scratch.device_free, scratch.channel_free
    trial_free, trial_of = scratch.trial_free, scratch.trial_of
    missing, label, op_of = scratch.missing, scratch.label, scratch.op_of
    ready_key, ready_label = scratch.ready_key, scratch.ready_label
    contended = len(channel_free) > 0
    device_free[:] = 0.0
    channel_free[:] = 0.0
    trial_of[:] = 0
    n_copies[:] = 0
    trial = 0

    n_ops = len(order)
    for op in range(n_ops):
        op_of[op] = op
    for last in range(n_ops - 1, 0, -1):
        other = np.random.randint(0, last + 1)
        op_of[last], op_of[other] = op_of[other], op_of[last]
    n_ready = np.int64(0)
    for number in range(n_ops):
        op = op_of[number]
        label[op] = number
        missing[op] = pred_ptr[op + 1] - pred_ptr[op]
        if missing[op] == 0:
            heap_push(ready_key, ready_label, 0, n_ready, -urgency[op], np.int32(number))
            n_ready += 1

    for step in range(n_ops):
        op = op_of[ready_label[0]]
        heap_pop(ready_key, ready_label, 0, n_ready)
        n_ready -= 1
        n_inputs = pred_ptr[op + 1] - pred_ptr[op]
        inputs[:n_inputs] = pred[pred_ptr[op] : pred_ptr[op + 1]]
        if contended and n_inputs > 1:
            # At run time transfers take their turns in the order in which the producers end.
            sort_by(inputs, n_inputs, finish)
        n_found = choices(room, op, found)
        soonest = np.inf
        device = np.int32(-1)
        # One trial for each device, then once more, for good, for the device that is chosen.
        for index in range(n_found + 1):
            chosen = index == n_found
            if chosen:
                n_tied = 0
                for other in range(n_found):
                    if start[other] <= soonest * (1.0 + TIE):
                        n_tied += 1
                        if n_tied == 1 or np.random.randint(0, n_tied) == 0:
                            device = found[other]
                        if len(tied) > 0:
                            tied[step, found[other]] = True
            else:
                device = found[index]
            trial += 1
            begins = device_free[device]
            for number in range(n_inputs):
                producer = inputs[number]
                source = devices[producer]
                if source == device:
                    begins = max(begins, finish[producer])
                    continue
                slot = succ_ptr[producer]
                end = slot + n_copies[producer]
                while slot < end and copy_device[slot] != device:
                    slot += 1
                if slot < end:
                    begins = max(begins, copy_arrival[slot])
                    continue
                duration = latency[source, device] + volume[producer] * factor[source, device]
                sent = finish[producer]
                channel = channels[source, device]
                if channel >= 0:
                    if trial_of[channel] != trial:
                        trial_of[channel] = trial
                        trial_free[channel] = channel_free[channel]
                    sent = max(sent, trial_free[channel])
                    trial_free[channel] = sent + duration
                if chosen:
                    if channel >= 0:
                        channel_free[channel] = sent + duration
                    copy_device[end] = device
                    copy_arrival[end] = sent + duration
                    n_copies[producer] += 1
                begins = max(begins, sent + duration)
            if chosen:
                finish[op] = begins + compute[op, device]
                device_free[device] = finish[op]
            else:
                start[index] = begins
                soonest = min(soonest, begins)
        take(room, op, device)
        order[step] = op
        devices[op] = device
        for edge in range(succ_ptr[op], succ_ptr[op + 1]):
            consumer = succ[edge]
            missing[consumer] -= 1
            if missing[consumer] == 0:
                heap_push(ready_key, ready_label, 0, n_ready, -urgency[consumer], label[consumer])
                n_ready += 1


@njit(cache=True, nogil=True)
def _restarts(  # type: ignore[no-untyped-def]
    arrays, urgency, room, seed, first, count, limited, scratch, work, devices, priority, incumbent
):
    order = np.empty(len(devices), np.int32)
    tied = np.empty((0, arrays.compute.shape[1]), np.bool_)
    for index in range(first, first + count):
        schedule(arrays, urgency, room, restart_seed(seed, index), scratch, order, devices, tied)
        for step in range(len(order)):
            priority[order[step]] = step
        offer(arrays, devices, priority, index, limited, room.usable, work, incumbent)


@njit(cache=True, nogil=True)
def restart_seed(seed, index):  # type: ignore[no-untyped-def]
    """Seed of restart ``index``: multiples of an odd constant never repeat modulo 2^32."""
    return (seed + index % 4294967296 * 2654435769) % 4294967296


def urgencies(problem: Problem) -> FloatArray:
    """Give the b-levels (mean compute and mean transfers), rounded so that equals compare equal."""
    level = problem.b_level(problem.mean_compute, transfers=True)
    grain = max(float(level.max()), 1e-300) * TIE
    rounded: FloatArray = np.round(level / grain)
    return rounded


def critical_path_trace(problem: Problem, seed: int = 0) -> tuple[IntArray, IntArray, BoolArray]:
    """Make one list schedule and say what was equally good at every step.

    Memory is respected as far as parameters go; the schedule is not simulated.

    Returns
    -------
    order : int32 array, shape [ops]
        The ops in the order in which they were chosen.
    devices : int32 array, shape [ops]
        Device of each op.
    tied : bool array, shape [ops, devices]
        By step: the devices on which ``order[step]`` could start first.
    """
    arrays = problem.arrays
    order = np.empty(problem.n_ops, np.int32)
    devices = np.empty(problem.n_ops, np.int32)
    tied = np.empty((problem.n_ops, problem.n_devices), np.bool_)
    schedule(
        arrays,
        urgencies(problem),
        make_room(arrays),
        int(restart_seed(int(seed) % 2**32, 0)),
        make_scratch(arrays),
        order,
        devices,
        tied,
    )
    return order, devices, tied


def critical_path(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Place the op with the longest path to an exit where it can start first; restart.

    Of the ops whose inputs are placed, the one with the highest b-level goes to the device on
    which it can start first, given when the devices and channels are free and when its inputs
    arrive; equal ops and equal devices are drawn at random (Yao et al., "DOPPLER: Dual-Policy
    Learning for Device Assignment in Asynchronous Dataflow Graphs", ICLR 2026). Restarts until the
    budget ends, on every core, each restart simulated; the order of the choices is the priority.

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
    urgency = urgencies(problem)
    limited = problem.may_overflow
    seed = int(seed) % 2**32

    def make_attempt(room: Room, work: Workspace, incumbent: Incumbent) -> Attempt:
        scratch = make_scratch(arrays)
        devices = np.empty(problem.n_ops, np.int32)
        priority = np.empty(problem.n_ops, np.int32)

        def attempt(first: int, count: int) -> None:
            _restarts(
                arrays,
                urgency,
                room,
                seed,
                first,
                count,
                limited,
                scratch,
                work,
                devices,
                priority,
                incumbent,
            )

        return attempt

    return restart(problem, make_attempt, budget=budget, origin="critical path")
