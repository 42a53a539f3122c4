"""Sibling affinity: the communication that placing an op forces on its consumers."""

from __future__ import annotations

from numba import njit

# Of a consumer's producers, so many are looked at: without a bound, an op that reads thousands of
# tensors would cost the square of that.
MOST_SIBLINGS = 64


@njit(cache=True, nogil=True)
def forced_communication(arrays, moved, placed, op, affinity):  # type: ignore[no-untyped-def]
    """Sum, for each device d, what the op's consumers must have moved if the op goes to d.

    Over the consumers w of the op, and over the other placed inputs u of w that are not on d, the
    sum of min(moved[u], moved[op]): wherever w goes, the cheaper of the two tensors has to follow.
    O(consumers x their inputs, at most 64 each, + devices).

    Parameters
    ----------
    moved : float64 array, shape [ops]
        Mean transfer time of each op's output, seconds.
    placed : int32 array, shape [ops]
        Device of each op, -1 while it is not placed.
    affinity : float64 array, shape [devices]
        Filled with the result, seconds.
    """
    succ_ptr, succ, pred_ptr, pred = arrays.succ_ptr, arrays.succ, arrays.pred_ptr, arrays.pred
    for device in range(len(affinity)):
        affinity[device] = 0.0
    total = 0.0
    for edge in range(succ_ptr[op], succ_ptr[op + 1]):
        consumer = succ[edge]
        first = pred_ptr[consumer]
        last = min(pred_ptr[consumer + 1], first + MOST_SIBLINGS)
        for other in range(first, last):
            sibling = pred[other]
            device = placed[sibling]
            if device >= 0:
                forced = min(moved[sibling], moved[op])
                total += forced
                affinity[device] -= forced
    for device in range(len(affinity)):
        affinity[device] += total
