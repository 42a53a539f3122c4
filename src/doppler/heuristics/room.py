"""Where an op may go while a placement is under construction: groups and resident parameters.

Invariant: ``left[d]`` is ``usable[d]`` less the parameter bytes of the ops taken on device ``d``, a
colocation group counting whole as soon as its first member is taken.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from doppler.problem import Arrays

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


class Room(NamedTuple):
    """What is known about groups and memory so far.

    Attributes
    ----------
    compute : float64 array, shape [ops, devices]
    group : int32 array, shape [ops]
        As in :class:`doppler.problem.Arrays`; kept here because a kernel that passes all of those
        to a helper, once for each op, spends most of its time on that.
    needed : float64 array, shape [ops]
        Parameter bytes that taking the op reserves: its own, or those of its whole group.
    usable : float64 array, shape [devices]
        Bytes offered to parameters: the capacity, less what was seen to be needed for outputs.
    left : float64 array, shape [devices]
    home : int32 array, shape [groups]
        Device of each colocation group, or -1.
    """

    compute: FloatArray
    group: IntArray
    needed: FloatArray
    usable: FloatArray
    left: FloatArray
    home: IntArray


def make_room(arrays: Arrays) -> Room:
    """Start with empty devices."""
    grouped = arrays.group >= 0
    of_group = np.bincount(
        arrays.group[grouped], arrays.param_bytes[grouped], minlength=arrays.n_groups
    )
    needed = arrays.param_bytes.copy()
    needed[grouped] = of_group[arrays.group[grouped]]
    return Room(
        arrays.compute,
        arrays.group,
        needed,
        arrays.capacity.copy(),
        arrays.capacity.copy(),
        np.full(arrays.n_groups, -1, np.int32),
    )


@njit(cache=True, nogil=True)
def clear(room):  # type: ignore[no-untyped-def]
    """Empty every device."""
    room.left[:] = room.usable
    room.home[:] = -1


@njit(cache=True, nogil=True)
def choices(room, op, found):  # type: ignore[no-untyped-def]
    """Write the devices that may take an op into ``found``, ascending. O(devices).

    The home of the op's group, if it has one; otherwise the devices that can run the op and have
    room for its parameters; otherwise, of those that can run it, the one with the most room left.

    Parameters
    ----------
    found : int32 array, shape [devices]

    Returns
    -------
    int
        How many there are, at least 1.
    """
    group = room.group[op]
    if group >= 0 and room.home[group] >= 0:
        found[0] = room.home[group]
        return 1
    count = 0
    roomiest = -1
    for device in range(room.compute.shape[1]):
        if room.compute[op, device] == np.inf:
            continue
        if roomiest < 0 or room.left[device] > room.left[roomiest]:
            roomiest = device
        if room.left[device] >= room.needed[op]:
            found[count] = device
            count += 1
    if count == 0:
        found[0] = roomiest
        count = 1
    return count


@njit(cache=True, nogil=True)
def take(room, op, device):  # type: ignore[no-untyped-def]
    """Put an op on a device; return whether that reserved bytes (see :func:`release`)."""
    group = room.group[op]
    if group >= 0:
        if room.home[group] >= 0:
            return False
        room.home[group] = device
    room.left[device] -= room.needed[op]
    return True


@njit(cache=True, nogil=True)
def release(room, op, device):  # type: ignore[no-untyped-def]
    """Undo a :func:`take` that reserved bytes, the latest first."""
    group = room.group[op]
    if group >= 0:
        room.home[group] = -1
    room.left[device] += room.needed[op]
