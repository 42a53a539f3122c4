"""Sibling affinity: the communication that placing an op forces on its consumers."""

from __future__ import annotations

from doppler.schedule.compiled import inlined

# Of a consumer's producers, so many are looked at: without a bound, an op that reads thousands of
# tensors would cost the square of that.
MOST_SIBLINGS = 64


@inlined
def forced_communication(arrays, placed, op, volume, count, affinity):  # type: ignore[no-untyped-def]
    """Sum, for each device d, what the op's consumers must have moved if the op goes to d.

    Over the consumers w of the op, and over the other placed inputs u of w that are not on d: the
    time to move the smaller of the two outputs from the device of u to d. Wherever w goes, the
    smaller has to follow at least. O(consumers x their inputs, at most 64 each, + devices x the
    devices of those inputs).

    Parameters
    ----------
    arrays : Arrays
    placed : int32 array, shape [ops]
        Device of each op, -1 while it is not placed.
    op : int
    volume, count : float64 array, shape [devices]
        Scratch.
    affinity : float64 array, shape [devices]
        Filled with the result, seconds.
    """
    latency, factor = arrays.latency, arrays.factor
    n_devices = len(affinity)
    sibling_volumes(arrays, placed, op, volume, count)
    affinity[:] = 0.0
    for source in range(n_devices):
        if count[source] > 0.0:
            many, much = count[source], volume[source]
            # To itself it takes no time.
            for device in range(n_devices):
                affinity[device] += many * latency[source, device] + much * factor[source, device]


@inlined
def sibling_volumes(arrays, placed, op, volume, count):  # type: ignore[no-untyped-def]
    """Sum, for each device, what of it the op's consumers read besides the op.

    O(consumers x their inputs, at most 64 each, + devices).

    Parameters
    ----------
    arrays : Arrays
    placed : int32 array, shape [ops]
    op : int
    volume, count : float64 array, shape [devices]
        Filled: for the placed inputs on the device, the smaller of their output and the op's, and
        how many there are.
    """
    succ_ptr, succ, pred_ptr, pred = arrays.succ_ptr, arrays.succ, arrays.pred_ptr, arrays.pred
    volumes = arrays.volume
    volume[:] = 0.0
    count[:] = 0.0
    own = volumes[op]
    for edge in range(succ_ptr[op], succ_ptr[op + 1]):
        consumer = succ[edge]
        first = pred_ptr[consumer]
        last = min(pred_ptr[consumer + 1], first + MOST_SIBLINGS)
        for other in range(first, last):
            sibling = pred[other]
            device = placed[sibling]
            if device >= 0 and sibling != op:
                volume[device] += min(volumes[sibling], own)
                count[device] += 1.0
