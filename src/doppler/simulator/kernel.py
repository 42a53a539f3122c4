"""The work-conserving discrete-event simulation, compiled.

Invariant: starts and ends are taken in order of time, at equal times every end of an op before
any start, and lower devices first. A device that is free at time t therefore sees every op that
is ready by t, and takes one of them; it idles only while no op placed on it is ready.

An end matters to others only through the channels, whose transfers take turns in the order in
which they were asked for. Where no link has a channel, what follows from an op is known when it
starts, and one event per op is enough.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.kernels import kernel

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
IndexArray = npt.NDArray[np.uint32]
WideArray = npt.NDArray[np.int64]

# The bits of a float64 >= 0, read as an int64, order as the floats do, and compare faster.
_FOREVER = int(np.float64(np.inf).view(np.int64))

# A prime that scatters the transfers of neighboring ops over a table of drawn factors.
SPREAD = np.uint32(40503)


class Workspace(NamedTuple):
    """Scratch arrays of one simulation, made once for a batch.

    What serves as an index is unsigned, which spares the compiled code a test for negative ones.

    Attributes
    ----------
    start, end : float64 array, shape [ops]
        When each op starts and ends; the result besides the makespan.
    missing : int32 array, shape [ops]
        Inputs that have not been sent yet.
    ready : float64 array, shape [ops]
        When the last of the inputs sent so far arrives.
    base : uint32 array, shape [devices + 1]
        Slice of the queues and heaps that belongs to each device.
    queue_key, queue_op : float64, uint32 array, shape [ops]
        Queue per device of ops by (time at which they become ready, id), for the ops that come
        in that order.
    head, tail : uint32 array, shape [devices]
        First entry of each queue, and one past the last.
    pending_key, pending_op : float64, uint32 array, shape [ops]
        Heap per device in the same order, for the ops that do not.
    n_pending : int64 array, shape [devices]
    ready_key : int64 array, shape [ops]
        Heap per device of the ready ops, ``priority << 32 | id``.
    n_ready : int64 array, shape [devices]
    ending : uint32 array, shape [devices]
        Op whose end is the device's next event; the number of ops where that is a start.
    event : float64 array, shape [devices]
        Time of the device's next event.
    free : float64 array, shape [devices]
        When the device has run what it has started.
    left : float64 array, shape [devices]
        Time of the ops that each device has not started, kept where a limit is set.
    arrival_of, arrival : uint32, float64 array, shape [devices]
        Last op whose output was sent to the device, and when it arrives.
    sent_op, sent_source, sent_target, sent_channel : int32 array, shape [edges]
    sent_start, sent_end : float64 array, shape [edges]
        Transfers, recorded on request.
    """

    start: FloatArray
    end: FloatArray
    missing: IntArray
    ready: FloatArray
    base: IndexArray
    queue_key: FloatArray
    queue_op: IndexArray
    head: IndexArray
    tail: IndexArray
    pending_key: FloatArray
    pending_op: IndexArray
    n_pending: WideArray
    ready_key: WideArray
    n_ready: WideArray
    ending: IndexArray
    event: FloatArray
    free: FloatArray
    left: FloatArray
    arrival_of: IndexArray
    arrival: FloatArray
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

    def indices(size: int) -> IndexArray:
        return np.empty(size, np.uint32)

    def wide(size: int) -> WideArray:
        return np.empty(size, np.int64)

    return Workspace(
        start=floats(n_ops),
        end=floats(n_ops),
        missing=integers(n_ops),
        ready=floats(n_ops),
        base=indices(n_devices + 1),
        queue_key=floats(n_ops),
        queue_op=indices(n_ops),
        head=indices(n_devices),
        tail=indices(n_devices),
        pending_key=floats(n_ops),
        pending_op=indices(n_ops),
        n_pending=wide(n_devices),
        ready_key=wide(n_ops),
        n_ready=wide(n_devices),
        ending=indices(n_devices),
        event=floats(n_devices),
        free=floats(n_devices),
        left=floats(n_devices),
        arrival_of=indices(n_devices),
        arrival=floats(n_devices),
        sent_op=integers(n_edges),
        sent_source=integers(n_edges),
        sent_target=integers(n_edges),
        sent_channel=integers(n_edges),
        sent_start=floats(n_edges),
        sent_end=floats(n_edges),
    )


@kernel
def _before(key_a, op_a, key_b, op_b):  # type: ignore[no-untyped-def]
    return key_a < key_b or (key_a == key_b and op_a < op_b)


@kernel
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


@kernel
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


@kernel
def _push_ready(keys, base, size, priority, op):  # type: ignore[no-untyped-def]
    """Push ``priority << 32 | op`` on the binary heap at ``keys[base:]``. O(log n)."""
    _sift_up(keys, base, size, (np.int64(priority) << 32) | np.int64(op))


@kernel
def _pop_ready(keys, base, size):  # type: ignore[no-untyped-def]
    """Remove the top of the heap of ``size`` keys at ``keys[base:]`` and return its op. O(log n).

    The hole sinks to a leaf and the last key rises from there: which child is smaller cannot be
    foretold, so it is computed rather than branched on.
    """
    op = np.uint32(keys[base] & 0xFFFFFFFF)
    last = size - 1
    hole = 0
    child = 1
    while child + 1 < last:
        child += keys[base + child + 1] < keys[base + child]
        keys[base + hole] = keys[base + child]
        hole = child
        child = 2 * hole + 1
    if child < last:
        keys[base + hole] = keys[base + child]
        hole = child
    _sift_up(keys, base, hole, keys[base + last])
    return op


@kernel
def _sift_up(keys, base, child, key):  # type: ignore[no-untyped-def]
    while child > 0:
        parent = (child - 1) >> 1
        above = keys[base + parent]
        if above < key:
            break
        keys[base + child] = above
        child = parent
    keys[base + child] = key


@kernel
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
    makespans = np.empty(1)
    n_sent = _run_batch(
        arrays,
        devices.reshape((1, len(devices))),
        priority.reshape((1, len(priority))),
        jitter,
        np.full(1, seed),
        record,
        np.empty(0),
        np.empty(0),
        np.empty(0),
        np.inf,
        work,
        makespans,
    )
    return makespans[0], n_sent


@kernel
def run_drawn(arrays, devices, priority, op_factor, transfer_factor, below, limit, work):  # type: ignore[no-untyped-def]
    """Simulate one placement with durations that were drawn before, and only as long as it pays.

    An op and a transfer take the same multiple of their time in whatever placement they occur, so
    that the difference between two placements is theirs and not the draws' (common random
    numbers).

    Parameters
    ----------
    op_factor : float64 array, shape [ops] or [0]
        Multiples of the ops' times; empty: 1.
    transfer_factor : float64 array, shape [power of two] or [0]
        Multiples of the transfers' times, looked up by op and target; empty: 1.
    below : float64 array, shape [ops] or [0]
        What is left to do at least once an op starts: the longest path from it, itself included.
    limit : float
        The simulation ends, with an infinite makespan, as soon as it is certain to exceed that:
        when an op ends later, when its path or the ops that are left on its device would.

    Returns
    -------
    float
        Seconds.
    """
    makespans = np.empty(1)
    _run_batch(
        arrays,
        devices.reshape((1, len(devices))),
        priority.reshape((1, len(priority))),
        0.0,
        np.zeros(1, np.int64),
        np.bool_(False),
        op_factor,
        transfer_factor,
        below,
        limit,
        work,
        makespans,
    )
    return makespans[0]


@kernel
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
    none = np.empty(0)
    _run_batch(
        arrays,
        devices,
        priority,
        jitter,
        seeds,
        np.bool_(False),
        none,
        none,
        none,
        np.inf,
        work,
        makespans,
    )


@kernel
def _run_batch(  # type: ignore[no-untyped-def]
    arrays,
    devices,
    priority,
    jitter,
    seeds,
    record,
    op_factor,
    transfer_factor,
    below,
    limit,
    work,
    makespans,
):
    """Simulate placements; the number of transfers of the last one, if ``record``, is returned."""
    n_ops = devices.shape[1]
    n_devices = arrays.compute.shape[1]
    by_priority = priority.shape[1] > 0
    contended = arrays.n_channels > 0
    drawn = len(op_factor) > 0
    sent_drawn = len(transfer_factor) > 0
    bounded = limit < np.inf
    tailed = bounded and len(below) > 0
    mask = np.uint32(max(len(transfer_factor), 1) - 1)
    plain = not (contended or record or sent_drawn or jitter > 0.0)
    shift = -0.5 * jitter * jitter
    none = np.uint32(n_ops)
    # Every array is looked up once: a look-up in a tuple counts references, at some cost.
    compute, volume, channels = arrays.compute, arrays.volume, arrays.channel
    latency, factor = arrays.latency, arrays.factor
    succ_ptr, succ = arrays.succ_ptr.view(np.uint32), arrays.succ.view(np.uint32)
    pred_ptr, order = arrays.pred_ptr, arrays.order.view(np.uint32)
    all_devices = devices.view(np.uint32)
    start, end, missing, ready = work.start, work.end, work.missing, work.ready
    base, head, tail, queue_key, queue_op = (
        work.base,
        work.head,
        work.tail,
        work.queue_key,
        work.queue_op,
    )
    n_pending, pending_key, pending_op = work.n_pending, work.pending_key, work.pending_op
    n_ready, ready_key = work.n_ready, work.ready_key
    ending, event, free, left = work.ending, work.event, work.free, work.left
    arrival_of, arrival = work.arrival_of, work.arrival
    event_bits = event.view(np.int64)
    channel_free = np.empty(arrays.n_channels)
    n_sent = 0

    for index in range(len(makespans)):
        device_of = all_devices[index]
        rank = priority[index]
        if jitter > 0.0:
            np.random.seed(seeds[index])
        base[:] = 0
        for op in range(n_ops):
            home = device_of[op]
            base[home + 1] += 1
            # Read in order here, an op's time needs no slow access to memory when it starts.
            end[op] = compute[op, home]
            missing[op] = pred_ptr[op + 1] - pred_ptr[op]
            ready[op] = 0.0
        if drawn:
            for op in range(n_ops):
                end[op] *= op_factor[op]
        if bounded:
            left[:] = 0.0
            for op in range(n_ops):
                left[device_of[op]] += end[op]
        for device in range(n_devices):
            base[device + 1] += base[device]
            head[device] = base[device]
            tail[device] = base[device]
            n_pending[device] = 0
            n_ready[device] = 0
            ending[device] = none
            event[device] = np.inf
            free[device] = 0.0
            arrival_of[device] = none
        channel_free[:] = 0.0
        # Entries come first in the topological order, by id.
        for op in order:
            if missing[op] > 0:
                break
            home = device_of[op]
            event[home] = 0.0
            if by_priority:
                _push_ready(ready_key, np.int64(base[home]), n_ready[home], rank[op], op)
                n_ready[home] += 1
            else:
                queue_key[tail[home]] = 0.0
                queue_op[tail[home]] = op
                tail[home] += 1

        makespan = 0.0
        n_sent = 0
        n_started = 0
        while n_started < n_ops:
            soonest = np.int64(_FOREVER)
            at = np.uint64(0)
            for device in range(n_devices):
                bits = event_bits[device]
                at = np.uint64(device) if bits < soonest else at
                soonest = min(soonest, bits)
            if soonest == _FOREVER:
                # Only an op that cannot run on its device (infinite time) leads here.
                makespan = np.inf
                break
            if contended and ending[at] == none:
                for device in range(n_devices):
                    if event_bits[device] == soonest and ending[device] != none:
                        at = np.uint64(device)
                        break

            first = np.int64(base[at])
            op = ending[at]
            if op == none:
                now = event[at]
                if by_priority:
                    while head[at] < tail[at] and queue_key[head[at]] <= now:
                        op = queue_op[head[at]]
                        head[at] += 1
                        _push_ready(ready_key, first, n_ready[at], rank[op], op)
                        n_ready[at] += 1
                    while n_pending[at] > 0 and pending_key[first] <= now:
                        op = pending_op[first]
                        heap_pop(pending_key, pending_op, first, n_pending[at])
                        n_pending[at] -= 1
                        _push_ready(ready_key, first, n_ready[at], rank[op], op)
                        n_ready[at] += 1
                    op = _pop_ready(ready_key, first, n_ready[at])
                    n_ready[at] -= 1
                else:
                    top = head[at]
                    if top < tail[at] and (
                        n_pending[at] == 0
                        or _before(
                            queue_key[top], queue_op[top], pending_key[first], pending_op[first]
                        )
                    ):
                        op = queue_op[top]
                        head[at] = top + 1
                    else:
                        op = pending_op[first]
                        heap_pop(pending_key, pending_op, first, n_pending[at])
                        n_pending[at] -= 1
                duration = end[op]
                if jitter > 0.0:
                    duration *= np.exp(shift + jitter * np.random.standard_normal())
                n_started += 1
                ends = now + duration
                if bounded:
                    if now + left[at] > limit or (tailed and now + below[op] > limit):
                        makespan = np.inf
                        break
                    left[at] -= duration
                start[op] = now
                end[op] = ends
                free[at] = ends
                makespan = max(makespan, ends)
                if contended:
                    ending[at] = op
                    event[at] = ends
                    continue
            else:
                ending[at] = none
                ends = event[at]

            when = np.inf
            if head[at] < tail[at]:
                when = queue_key[head[at]]
            if n_pending[at] > 0:
                when = min(when, pending_key[first])
            if n_ready[at] > 0:
                when = ends
            event[at] = max(when, ends)
            arrival[at] = ends
            arrival_of[at] = op
            for edge in range(succ_ptr[op], succ_ptr[op + 1]):
                consumer = succ[edge]
                target = device_of[consumer]
                if plain:
                    # Cheaper than to look up whether it was sent before; to itself it takes 0.
                    arrives = ends + (latency[at, target] + volume[op] * factor[at, target])
                elif arrival_of[target] == op:
                    arrives = arrival[target]
                else:
                    duration = latency[at, target] + volume[op] * factor[at, target]
                    if sent_drawn:
                        duration *= transfer_factor[(op * SPREAD + target) & mask]
                    elif jitter > 0.0:
                        duration *= np.exp(shift + jitter * np.random.standard_normal())
                    channel = channels[at, target]
                    begins = ends
                    if channel >= 0:
                        begins = max(ends, channel_free[channel])
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
                when = max(ready[consumer], arrives)
                ready[consumer] = when
                missing[consumer] -= 1
                if missing[consumer] == 0:
                    if by_priority and when <= free[target]:
                        # The device starts nothing before: the op is ready at the next choice.
                        _push_ready(
                            ready_key,
                            np.int64(base[target]),
                            n_ready[target],
                            rank[consumer],
                            consumer,
                        )
                        n_ready[target] += 1
                    else:
                        slot = tail[target]
                        last = np.uint32(slot - 1)
                        if slot == head[target] or _before(
                            queue_key[last], queue_op[last], when, consumer
                        ):
                            queue_key[slot] = when
                            queue_op[slot] = consumer
                            tail[target] = slot + 1
                        else:
                            heap_push(
                                pending_key,
                                pending_op,
                                np.int64(base[target]),
                                n_pending[target],
                                when,
                                consumer,
                            )
                            n_pending[target] += 1
                    event[target] = min(event[target], max(free[target], when))
        makespans[index] = makespan
    return n_sent
