"""The devices that are worth scoring, where there are many.

Invariant: ``by_free`` holds every device, by when it is free; ties as they came.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.problem import Problem
from doppler.schedule.compiled import lean

IntArray = npt.NDArray[np.int32]

# With so many candidates all of them are scored.
MOST_CANDIDATES = 16
# Of them, so many for what the op's inputs and the inputs of its consumers lie on.
MOST_NEAR = 10


class Shortlist(NamedTuple):
    """Which devices are alike, and which are free first.

    Attributes
    ----------
    kind : int32 array, shape [devices]
        Devices of one node that take equal times for every op are of one kind.
    by_free : int32 array, shape [devices]
    state : int8 array, shape [devices]
        Scratch: 0 not a candidate, 1 a candidate, 2 on the list.
    seen : int8 array, shape [kinds]
        Scratch: kinds that are on the list.
    """

    kind: IntArray
    by_free: IntArray
    state: npt.NDArray[np.int8]
    seen: npt.NDArray[np.int8]


def device_kinds(problem: Problem) -> IntArray:
    """Say of what kind each device is, as a number from 0, shape [devices]."""
    compute, kinds = problem.arrays.compute, np.zeros(problem.n_devices, np.int32)
    known: list[tuple[int, int]] = []
    for device, node in enumerate(problem.nodes.tolist()):
        for kind, (other, its_node) in enumerate(known):
            if node == its_node and np.array_equal(compute[:, device], compute[:, other]):
                kinds[device] = kind
                break
        else:
            kinds[device] = len(known)
            known.append((device, node))
    return kinds


def make_shortlist(kinds: IntArray) -> Shortlist:
    """Allocate a list; :func:`reset` starts it."""
    count = len(kinds)
    return Shortlist(
        kinds.copy(),
        np.arange(count, dtype=np.int32),
        np.zeros(count, np.int8),
        np.zeros(int(kinds.max()) + 1, np.int8),
    )


@lean
def reset(shortlist):  # type: ignore[no-untyped-def]
    """Start with devices that are all free."""
    by_free = shortlist.by_free
    for device in range(len(by_free)):
        by_free[device] = device


@lean
def occupy(shortlist, device_free, device):  # type: ignore[no-untyped-def]
    """Say that a device is now free later. O(devices)."""
    by_free = shortlist.by_free
    last = len(by_free) - 1
    slot = 0
    while by_free[slot] != device:
        slot += 1
    while slot < last and device_free[by_free[slot + 1]] < device_free[device]:
        by_free[slot] = by_free[slot + 1]
        slot += 1
    by_free[slot] = device


@lean
def shorten(shortlist, preferred, placed, inputs, n_inputs, weight, found, n_found):  # type: ignore[no-untyped-def]
    """Keep the candidates worth scoring, where there are more than ``MOST_CANDIDATES``.

    The hint's device, those that hold inputs, those that hold other inputs of the op's consumers,
    then of each kind the one that is free first, then whatever is free first. O(devices).

    Parameters
    ----------
    shortlist : Shortlist
    preferred : int
        The hint's device, or -1.
    placed : int32 array, shape [ops]
    inputs : int32 array
        The first ``n_inputs`` are the op's.
    weight : float64 array, shape [devices]
        Above 0 where other inputs of the op's consumers lie.
    found : int32 array, shape [devices]
        The first ``n_found`` are the candidates; overwritten, ascending.

    Returns
    -------
    int
        How many are left.
    """
    if n_found <= MOST_CANDIDATES:
        return n_found
    kind, by_free, state, seen = shortlist.kind, shortlist.by_free, shortlist.state, shortlist.seen
    state[:] = 0
    seen[:] = 0
    for index in range(n_found):
        state[found[index]] = 1
    count = 0
    if preferred >= 0 and state[preferred] == 1:
        state[preferred] = 2
        count = 1
    for index in range(n_inputs):
        device = placed[inputs[index]]
        if count < MOST_NEAR and state[device] == 1:
            state[device] = 2
            count += 1
    for device in range(len(state)):
        if count < MOST_NEAR and weight[device] > 0.0 and state[device] == 1:
            state[device] = 2
            count += 1
    left = len(seen)
    for slot in range(len(by_free)):
        device = by_free[slot]
        if left == 0 or count == MOST_CANDIDATES:
            break
        if state[device] > 0 and seen[kind[device]] == 0:
            seen[kind[device]] = 1
            left -= 1
            if state[device] == 1:
                state[device] = 2
                count += 1
    for slot in range(len(by_free)):
        if count == MOST_CANDIDATES:
            break
        device = by_free[slot]
        if state[device] == 1:
            state[device] = 2
            count += 1
    count = 0
    for device in range(len(state)):
        if state[device] == 2:
            found[count] = device
            count += 1
    return count
