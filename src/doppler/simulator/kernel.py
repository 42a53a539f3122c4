"""The work-conserving discrete-event simulation, compiled.

Invariant: events are taken in order of time, at equal times every end of an op before any start.
A device that is free at time t therefore sees every op that is ready by t, and takes one of them;
it idles only while no op placed on it is ready.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


class Workspace(NamedTuple):
    """Scratch arrays of one simulation, made once for a batch.

    Attributes
    ----------
    start, end : float64 array, shape [ops]
        When each op starts and ends; the result besides the makespan.
    missing : int32 array, shape [ops]
        Inputs that have not been sent yet.
    ready : float64 array, shape [ops]
        When the last of the inputs sent so far arrives.
    base : int32 array, shape [devices + 1]
        Slice of the heaps that belongs to each device.
    pending_key, pending_op : float64, int32 array, shape [ops]
        Heap per device of ops by the time they become ready.
    ready_key, ready_op : float64, int32 array, shape [ops]
        Heap per device of ready ops by priority.
    sent_op, sent_source, sent_target, sent_channel : int32 array, shape [edges]
    sent_start, sent_end : float64 array, shape [edges]
        Transfers, recorded on request.
    """

    start: FloatArray
    end: FloatArray
    missing: IntArray
    ready: FloatArray
    base: IntArray
    pending_key: FloatArray
    pending_op: IntArray
    ready_key: FloatArray
    ready_op: IntArray
    sent_op: IntArray
    sent_source: IntArray
    sent_target: IntArray
    sent_channel: IntArray
    sent_start: FloatArray
    sent_end: FloatArray


def make_workspace(n_ops: int, n_devices: int, n_edges: int) -> Workspace:
    """Allocate the scratch arrays of a simulation; ``n_edges`` 0 where nothing is recorded."""

    def floats(size: int) -> FloatArray:
        return np.empty(size)

    def integers(size: int) -> IntArray:
        return np.empty(size, np.int32)

    return Workspace(
        floats(n_ops),
        floats(n_ops),
        integers(n_ops),
        floats(n_ops),
        integers(n_devices + 1),
        floats(n_ops),
        integers(n_ops),
        floats(n_ops),
        integers(n_ops),
        integers(n_edges),
        integers(n_edges),
        integers(n_edges),
        integers(n_edges),
        floats(n_edges),
        floats(n_edges),
    )


@njit(cache=True, nogil=True)
def _before(key_a, op_a, key_b, op_b):  # type: ignore[no-untyped-def]
    return key_a < key_b or (key_a == key_b and op_a < op_b)


@njit(cache=True, nogil=True)
def heap_push(keys, ops, base, size, key, op):  # type: ignore[no-untyped-def]
    """Push (key, op) on the binary heap at ``keys[base:]``, ordered by key, then op. O(log n)."""
    child = size
    while child > 0:
        parent = (child - 1) >> 1
        if not _before(key, op, keys[base + parent], ops[base + parent]):
            break
        keys[base + child] = keys[base + parent]
        ops[base + child] = ops[base + parent]
        child = parent
    keys[base + child] = key
    ops[base + child] = op


@njit(cache=True, nogil=True)
def heap_pop(keys, ops, base, size):  # type: ignore[no-untyped-def]
    """Remove the top of the heap of ``size`` entries at ``keys[base:]``. O(log n)."""
    last = size - 1
    key = keys[base + last]
    op = ops[base + last]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= last:
            break
        if child + 1 < last and _before(
            keys[base + child + 1], ops[base + child + 1], keys[base + child], ops[base + child]
        ):
            child += 1
        if not _before(keys[base + child], ops[base + child], key, op):
            break
        keys[base + parent] = keys[base + child]
        ops[base + parent] = ops[base + child]
        parent = child
    keys[base + parent] = key
    ops[base + parent] = op


@njit(cache=True, nogil=True)
def run(arrays, devices, priority, jitter, seed, record, work):  # type: ignore[no-untyped-def]
    """Simulate one placement.

    O((V + E) + V (log V + devices)) for V ops and E edges.

    Parameters
    ----------
    arrays : Arrays
    devices : int32 array, shape [ops]
    priority : int32 array, shape [ops] or [0]
        Empty: the op that became ready first goes first. Ties go to the smaller op id.
    jitter : float
        Standard deviation of the logarithm of every duration, whose mean is kept; 0: none.
    seed : int
        Of the jitter.
    record : bool
        Whether to record transfers in ``work``.
    work : Workspace

    Returns
    -------
    makespan : float
        Seconds.
    n_sent : int
        Number of transfers recorded.
    """
    n_ops = len(devices)
    n_devices = arrays.compute.shape[1]
    by_priority = len(priority) > 0
    if jitter > 0.0:
        np.random.seed(seed)
    shift = -0.5 * jitter * jitter

    base = work.base
    base[:] = 0
    for op in range(n_ops):
        base[devices[op] + 1] += 1
        work.missing[op] = arrays.pred_ptr[op + 1] - arrays.pred_ptr[op]
        work.ready[op] = 0.0
    for device in range(n_devices):
        base[device + 1] += base[device]
    n_pending = np.zeros(n_devices, np.int32)
    n_ready = np.zeros(n_devices, np.int32)
    running = np.full(n_devices, -1, np.int32)
    # The next event of a device: the end of its op, or, when idle, the arrival of a ready op.
    event = np.full(n_devices, np.inf)
    channel_free = np.zeros(arrays.n_channels)
    arrival = np.zeros(n_devices)
    arrival_of = np.full(n_devices, -1, np.int32)

    for op in range(n_ops):
        if work.missing[op] == 0:
            device = devices[op]
            heap_push(work.pending_key, work.pending_op, base[device], n_pending[device], 0.0, op)
            n_pending[device] += 1
            event[device] = 0.0

    makespan = 0.0
    n_sent = 0
    n_done = 0
    while n_done < n_ops:
        now = np.inf
        at = -1
        ends = False
        for device in range(n_devices):
            if event[device] < now or (event[device] == now and not ends and running[device] >= 0):
                now = event[device]
                at = device
                ends = running[device] >= 0
        if at < 0:
            # Only an op that cannot run on its device (infinite time) leads here.
            return np.inf, n_sent

        if ends:
            op = running[at]
            running[at] = -1
            n_done += 1
            makespan = max(makespan, now)
            for edge in range(arrays.succ_ptr[op], arrays.succ_ptr[op + 1]):
                consumer = arrays.succ[edge]
                target = devices[consumer]
                if target == at:
                    arrives = now
                elif arrival_of[target] == op:
                    arrives = arrival[target]
                else:
                    duration = arrays.latency[at, target] + (
                        arrays.volume[op] * arrays.factor[at, target]
                    )
                    if jitter > 0.0:
                        duration *= np.exp(shift + jitter * np.random.standard_normal())
                    channel = arrays.channel[at, target]
                    begins = now
                    if channel >= 0:
                        begins = max(now, channel_free[channel])
                        channel_free[channel] = begins + duration
                    arrives = begins + duration
                    arrival[target] = arrives
                    arrival_of[target] = op
                    if record:
                        work.sent_op[n_sent] = op
                        work.sent_source[n_sent] = at
                        work.sent_target[n_sent] = target
                        work.sent_channel[n_sent] = channel
                        work.sent_start[n_sent] = begins
                        work.sent_end[n_sent] = arrives
                        n_sent += 1
                work.ready[consumer] = max(work.ready[consumer], arrives)
                work.missing[consumer] -= 1
                if work.missing[consumer] == 0:
                    when = work.ready[consumer]
                    heap_push(
                        work.pending_key,
                        work.pending_op,
                        base[target],
                        n_pending[target],
                        when,
                        consumer,
                    )
                    n_pending[target] += 1
                    if running[target] < 0 and when < event[target]:
                        event[target] = when
            if n_ready[at] > 0:
                event[at] = now
            elif n_pending[at] > 0:
                event[at] = max(now, work.pending_key[base[at]])
            else:
                event[at] = np.inf
        else:
            if by_priority:
                while n_pending[at] > 0 and work.pending_key[base[at]] <= now:
                    op = work.pending_op[base[at]]
                    heap_pop(work.pending_key, work.pending_op, base[at], n_pending[at])
                    n_pending[at] -= 1
                    heap_push(
                        work.ready_key, work.ready_op, base[at], n_ready[at], priority[op], op
                    )
                    n_ready[at] += 1
                op = work.ready_op[base[at]]
                heap_pop(work.ready_key, work.ready_op, base[at], n_ready[at])
                n_ready[at] -= 1
            else:
                op = work.pending_op[base[at]]
                heap_pop(work.pending_key, work.pending_op, base[at], n_pending[at])
                n_pending[at] -= 1
            duration = arrays.compute[op, at]
            if jitter > 0.0:
                duration *= np.exp(shift + jitter * np.random.standard_normal())
            work.start[op] = now
            work.end[op] = now + duration
            running[at] = op
            event[at] = now + duration
    return makespan, n_sent


@njit(cache=True, nogil=True)
def run_many(arrays, devices, priority, jitter, seeds, work, makespans):  # type: ignore[no-untyped-def]
    """Simulate placements one after the other.

    Parameters
    ----------
    devices : int32 array, shape [placements, ops]
    priority : int32 array, shape [placements, ops] or [placements, 0]
    seeds : int64 array, shape [placements]
    makespans : float64 array, shape [placements]
        Filled with the result, in seconds.
    """
    for index in range(len(devices)):
        makespans[index], _ = run(
            arrays, devices[index], priority[index], jitter, seeds[index], False, work
        )
