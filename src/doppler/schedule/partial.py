"""A schedule under construction: when an op could start, given what is placed already.

Invariant: ``finish``, ``device_free`` and ``channel_free`` are those of the ops placed so far if
every device runs them, and every channel moves their inputs, in the order of placing.

The functions take the fields out of their tuples once, at the top: a compiled loop that reads them
from the tuple counts references at every turn, which costs more than the arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.problem import Arrays
from doppler.schedule.compiled import allocating, inlined, lean

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# Up to so many ops an insertion sort is faster than one that allocates.
_SHORT = 32


class Partial(NamedTuple):
    """The ops placed so far; times in seconds.

    Attributes
    ----------
    devices : int32 array, shape [ops]
        Device of each op, -1 while it is not placed.
    finish : float64 array, shape [ops]
        When each placed op ends.
    device_free : float64 array, shape [devices]
    channel_free : float64 array, shape [channels]
        When the last op and transfer placed there end.
    n_copies : int32 array, shape [ops]
    copy_device, copy_arrival : int32, float64 array, shape [edges]
        Where else the output of op ``u`` is and since when: ``n_copies[u]`` entries from
        ``succ_ptr[u]`` on.
    inputs : int32 array, shape [most inputs of an op]
        Producers of the op at hand, see :func:`gather`.
    start_aside, sent_aside : float64 array, shape [devices]
        Scratch: what does not change for the devices that hold a copy.
    trial_free, trial_of : float64, int64 array, shape [channels]
        What a trial would make of ``channel_free``, and which trial that was.
    trial : int64 array, shape [1]
        Number of the last trial.
    """

    devices: IntArray
    finish: FloatArray
    device_free: FloatArray
    channel_free: FloatArray
    n_copies: IntArray
    copy_device: IntArray
    copy_arrival: FloatArray
    inputs: IntArray
    start_aside: FloatArray
    sent_aside: FloatArray
    trial_free: FloatArray
    trial_of: npt.NDArray[np.int64]
    trial: npt.NDArray[np.int64]


def make_partial(arrays: Arrays) -> Partial:
    """Allocate a schedule; :func:`empty` starts it."""
    n_ops, n_devices = arrays.compute.shape
    return Partial(
        np.full(n_ops, -1, np.int32),
        np.zeros(n_ops),
        np.zeros(n_devices),
        np.zeros(arrays.n_channels),
        np.zeros(n_ops, np.int32),
        np.zeros(len(arrays.succ), np.int32),
        np.zeros(len(arrays.succ)),
        np.zeros(int(np.diff(arrays.pred_ptr).max(initial=0)), np.int32),
        np.zeros(n_devices),
        np.zeros(n_devices),
        np.zeros(arrays.n_channels),
        np.zeros(arrays.n_channels, np.int64),
        np.zeros(1, np.int64),
    )


@lean
def empty(partial):  # type: ignore[no-untyped-def]
    """Take every op off its device."""
    partial.devices[:] = -1
    partial.device_free[:] = 0.0
    partial.channel_free[:] = 0.0
    partial.n_copies[:] = 0


@lean
def gather(arrays, partial, op):  # type: ignore[no-untyped-def]
    """Collect the inputs of an op, all of them placed, before its starts are asked for.

    Where transfers take turns they go in the order in which the inputs are ready, as at run time.

    Returns
    -------
    int
        How many inputs the op has.
    """
    pred, finish, inputs = arrays.pred, partial.finish, partial.inputs
    first = arrays.pred_ptr[op]
    count = arrays.pred_ptr[op + 1] - first
    for index in range(count):
        inputs[index] = pred[first + index]
    if len(partial.channel_free) > 0:
        sort_by(inputs, count, finish)
    return count


@allocating
def _sort_many(ops, count, key):  # type: ignore[no-untyped-def]
    some = ops[:count].copy()
    ops[:count] = some[np.argsort(key[some], kind="mergesort")]


@lean
def sort_by(ops, count, key):  # type: ignore[no-untyped-def]
    """Sort the first ``count`` ops by their key, stably."""
    if count > _SHORT:
        _sort_many(ops, count, key)
        return
    for index in range(1, count):
        op = ops[index]
        slot = index
        while slot > 0 and key[ops[slot - 1]] > key[op]:
            ops[slot] = ops[slot - 1]
            slot -= 1
        ops[slot] = op


@inlined
def earliest_starts(arrays, partial, n_inputs, starts, sent):  # type: ignore[no-untyped-def]
    """When the gathered op could start on each device, and what would be sent there first.

    The device is free, and each input is there, has a copy there, or is sent when its producer has
    ended and its channel is free, the op's own transfers taking turns. O(inputs x (devices +
    copies)): the innermost loops go along a row of devices, which where no channel is contended the
    compiler takes several at a time.

    Parameters
    ----------
    starts : float64 array, shape [devices]
        Filled, seconds; without meaning where the op cannot run.
    sent : float64 array, shape [devices]
        Filled: seconds of the transfers, one after the other.
    """
    placed, finish, inputs = partial.devices, partial.finish, partial.inputs
    device_free, channel_free = partial.device_free, partial.channel_free
    n_copies, copy_device = partial.n_copies, partial.copy_device
    copy_arrival = partial.copy_arrival
    latency, factor = arrays.latency, arrays.factor
    volume, succ_ptr = arrays.volume, arrays.succ_ptr
    n_devices = len(starts)
    for device in range(n_devices):
        starts[device] = device_free[device]
        sent[device] = 0.0
    if len(channel_free) > 0:
        _contended_starts(arrays, partial, n_inputs, starts, sent)
        return
    start_aside, sent_aside = partial.start_aside, partial.sent_aside
    for index in range(n_inputs):
        producer = inputs[index]
        source = placed[producer]
        ended, moved = finish[producer], volume[producer]
        first = succ_ptr[producer]
        count = n_copies[producer]
        for copy in range(count):
            start_aside[copy] = starts[copy_device[first + copy]]
            sent_aside[copy] = sent[copy_device[first + copy]]
        # On the source itself this takes no time.
        for device in range(n_devices):
            duration = latency[source, device] + moved * factor[source, device]
            starts[device] = max(starts[device], ended + duration)
            sent[device] += duration
        for copy in range(count):
            device = copy_device[first + copy]
            starts[device] = max(start_aside[copy], copy_arrival[first + copy])
            sent[device] = sent_aside[copy]


@lean
def _contended_starts(arrays, partial, n_inputs, starts, sent):  # type: ignore[no-untyped-def]
    """As :func:`earliest_starts`, from ``starts`` as they are, where transfers take turns.

    O(devices x inputs x copies).
    """
    placed, finish, inputs = partial.devices, partial.finish, partial.inputs
    n_copies, copy_device = partial.n_copies, partial.copy_device
    copy_arrival, channel_free = partial.copy_arrival, partial.channel_free
    trial_free, trial_of = partial.trial_free, partial.trial_of
    latency, factor, channels = arrays.latency, arrays.factor, arrays.channel
    volume, succ_ptr = arrays.volume, arrays.succ_ptr
    trial = partial.trial[0]
    for device in range(len(starts)):
        trial += 1
        start, total = starts[device], 0.0
        for index in range(n_inputs):
            producer = inputs[index]
            source = placed[producer]
            begins = finish[producer]
            if source == device:
                start = max(start, begins)
                continue
            slot = succ_ptr[producer]
            end = slot + n_copies[producer]
            while slot < end and copy_device[slot] != device:
                slot += 1
            if slot < end:
                start = max(start, copy_arrival[slot])
                continue
            duration = latency[source, device] + volume[producer] * factor[source, device]
            channel = channels[source, device]
            if channel >= 0:
                if trial_of[channel] != trial:
                    trial_of[channel] = trial
                    trial_free[channel] = channel_free[channel]
                begins = max(begins, trial_free[channel])
                trial_free[channel] = begins + duration
            start = max(start, begins + duration)
            total += duration
        starts[device] = start
        sent[device] = total
    partial.trial[0] = trial


@inlined
def place(arrays, partial, n_inputs, op, device):  # type: ignore[no-untyped-def]
    """Place the gathered op at its earliest start on a device. O(inputs x copies)."""
    placed, finish, inputs = partial.devices, partial.finish, partial.inputs
    channel_free, n_copies = partial.channel_free, partial.n_copies
    copy_device, copy_arrival = partial.copy_device, partial.copy_arrival
    latency, factor, channels = arrays.latency, arrays.factor, arrays.channel
    volume, succ_ptr = arrays.volume, arrays.succ_ptr
    start = partial.device_free[device]
    for index in range(n_inputs):
        producer = inputs[index]
        source = placed[producer]
        if source == device:
            start = max(start, finish[producer])
            continue
        slot = succ_ptr[producer]
        end = slot + n_copies[producer]
        while slot < end and copy_device[slot] != device:
            slot += 1
        if slot == end:
            sent = finish[producer]
            duration = latency[source, device] + volume[producer] * factor[source, device]
            channel = channels[source, device]
            if channel >= 0:
                sent = max(sent, channel_free[channel])
                channel_free[channel] = sent + duration
            copy_device[slot] = device
            copy_arrival[slot] = sent + duration
            n_copies[producer] += 1
        start = max(start, copy_arrival[slot])
    placed[op] = device
    finish[op] = start + arrays.compute[op, device]
    partial.device_free[device] = finish[op]
