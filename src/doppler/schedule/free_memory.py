"""Where an op may go while a placement is under construction: groups and memory.

Invariant: ``left[d]`` is ``usable[d]`` less the parameter bytes of the ops taken on device ``d``, a
tile that several of them read counted once, and ``working[d]`` the most that one of them needs
besides; a colocation group counts whole as soon as its first member is taken. A device needs at
least both at once, so that a choice which is ruled out could never have fitted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.problem import Arrays
from doppler.schedule.compiled import inlined, lean

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


class FreeMemory(NamedTuple):
    """What is known about groups and memory so far; sizes in bytes.

    Attributes
    ----------
    compute : float64 array, shape [ops, devices]
    group : int32 array, shape [ops]
        As in :class:`doppler.problem.Arrays`; kept here because a kernel that passes all of those
        to a helper, once for each op, spends most of its time on that.
    needed : float64 array, shape [ops]
        Parameters that taking the op reserves: its own, or those of its whole group, without the
        tiles that it shares.
    tile_ptr, tile, tile_bytes : array
        Tiles that the op shares with others, as in :class:`doppler.problem.Arrays`.
    while_running : float64 array, shape [ops]
        Output and inputs of the op, which are there together while it runs; of a group the most.
    usable : float64 array, shape [devices]
        Offered to parameters: the capacity, less what was seen to be needed besides.
    left, working : float64 array, shape [devices]
    home : int32 array, shape [groups]
        Device of each colocation group, or -1.
    readers : int32 array, shape [tiles, devices]
        Number of ops taken on a device that read a shared tile.
    """

    compute: FloatArray
    group: IntArray
    needed: FloatArray
    tile_ptr: IntArray
    tile: IntArray
    tile_bytes: FloatArray
    while_running: FloatArray
    usable: FloatArray
    left: FloatArray
    working: FloatArray
    home: IntArray
    readers: IntArray


def make_free_memory(arrays: Arrays) -> FreeMemory:
    """Start with empty devices."""
    n_ops = len(arrays.group)
    consumers = np.repeat(np.arange(n_ops), np.diff(arrays.pred_ptr))
    while_running = arrays.output_bytes + np.bincount(
        consumers, arrays.output_bytes[arrays.pred], minlength=n_ops
    )
    needed = arrays.param_bytes.copy()
    grouped = np.flatnonzero(arrays.group >= 0)
    group = arrays.group[grouped]
    needed[grouped] = np.bincount(group, needed[grouped], minlength=arrays.n_groups)[group]
    most = np.zeros(arrays.n_groups)
    np.maximum.at(most, group, while_running[grouped])
    while_running[grouped] = most[group]
    return FreeMemory(
        arrays.compute,
        arrays.group,
        needed,
        arrays.tile_ptr,
        arrays.tile,
        arrays.tile_bytes,
        while_running,
        arrays.capacity.copy(),
        arrays.capacity.copy(),
        np.zeros(len(arrays.capacity)),
        np.full(arrays.n_groups, -1, np.int32),
        np.zeros((len(arrays.tile_bytes), len(arrays.capacity)), np.int32),
    )


@lean
def clear(memory):  # type: ignore[no-untyped-def]
    """Empty every device."""
    for device in range(len(memory.left)):
        memory.left[device] = memory.usable[device]
    memory.working[:] = 0.0
    memory.home[:] = -1
    memory.readers[:] = 0


@lean
def missing(memory, op, device):  # type: ignore[no-untyped-def]
    """Add up the bytes of the shared tiles of an op that a device lacks."""
    total = 0.0
    for read in range(memory.tile_ptr[op], memory.tile_ptr[op + 1]):
        tile = memory.tile[read]
        if memory.readers[tile, device] == 0:
            total += memory.tile_bytes[tile]
    return total


@lean
def choices(memory, op, found):  # type: ignore[no-untyped-def]
    """Write the devices that may take an op into ``found``, ascending. O(devices).

    The home of the op's group, if it has one; otherwise the devices that can run the op and have
    room for it; otherwise, of those that can run it, the one that lacks least.

    Parameters
    ----------
    found : int32 array, shape [devices]

    Returns
    -------
    int
        How many there are, at least 1.
    """
    group = memory.group[op]
    if group >= 0 and memory.home[group] >= 0:
        found[0] = memory.home[group]
        return 1
    count = 0
    roomiest = -1
    most = -np.inf
    for device in range(memory.compute.shape[1]):
        if memory.compute[op, device] == np.inf:
            continue
        spare = memory.left[device] - max(memory.working[device], memory.while_running[op])
        if memory.tile_ptr[op] < memory.tile_ptr[op + 1]:
            spare -= missing(memory, op, device)
        if roomiest < 0 or spare > most:
            roomiest = device
            most = spare
        if spare >= memory.needed[op]:
            found[count] = device
            count += 1
    if count == 0:
        found[0] = roomiest
        count = 1
    return count


@inlined
def take(memory, op, device):  # type: ignore[no-untyped-def]
    """Put an op on a device."""
    group = memory.group[op]
    for read in range(memory.tile_ptr[op], memory.tile_ptr[op + 1]):
        tile = memory.tile[read]
        if memory.readers[tile, device] == 0:
            memory.left[device] -= memory.tile_bytes[tile]
        memory.readers[tile, device] += 1
    if group >= 0:
        if memory.home[group] >= 0:
            return
        memory.home[group] = device
    memory.left[device] -= memory.needed[op]
    memory.working[device] = max(memory.working[device], memory.while_running[op])


@lean
def leave(memory, op, device):  # type: ignore[no-untyped-def]
    """Take an op of no group off a device; ``working`` is for the caller to set back."""
    for read in range(memory.tile_ptr[op], memory.tile_ptr[op + 1]):
        tile = memory.tile[read]
        memory.readers[tile, device] -= 1
        if memory.readers[tile, device] == 0:
            memory.left[device] += memory.tile_bytes[tile]
    memory.left[device] += memory.needed[op]
