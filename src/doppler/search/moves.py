"""Moves from one placement to the next, from a single op to whatever the structure holds.

Every move writes what it changes into a log, from which it can be undone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.graph.structure import structure
from doppler.kernels import kernel
from doppler.problem import Problem
from doppler.schedule.compiled import inlined

IntArray = npt.NDArray[np.int32]

# Ranks apart that two ops may be for a short move in the order.
NEAR = 20
# Ops that follow to one device at most, in a small move and in a large one.
REGION = 8
LARGE_REGION = 400


class Landscape(NamedTuple):
    """What moves need to know of a problem, made once.

    Attributes
    ----------
    members_ptr, members : int32 array
        CSR of the ops of each colocation group.
    meta, kind : int32 array, shape [ops]
        See :class:`doppler.graph.structure.Structure`.
    meta_ptr, meta_ops, kind_ptr, kind_ops : int32 array
        CSR of the ops of each meta-op, and of each kind of meta-op, by tile coordinates.
    tiles : int32 array, shape [ops, axes]
    node : int32 array, shape [devices]
        Node of each device.
    spot : int32 array, shape [devices]
        Position of each device within its node.
    at : int32 array, shape [nodes, most devices of a node]
        The device at a position of a node, -1 where there is none.
    """

    members_ptr: IntArray
    members: IntArray
    meta: IntArray
    kind: IntArray
    meta_ptr: IntArray
    meta_ops: IntArray
    kind_ptr: IntArray
    kind_ops: IntArray
    tiles: IntArray
    node: IntArray
    spot: IntArray
    at: IntArray


def landscape(problem: Problem) -> Landscape:
    """Look up groups, meta-ops and nodes. O(V log V)."""
    group = problem.arrays.group
    grouped = np.flatnonzero(group >= 0)
    members = grouped[np.argsort(group[grouped], kind="stable")].astype(np.int32)
    shape = structure(problem.graph)
    keys = [*shape.tiles.T[::-1], shape.layer]
    nodes = problem.nodes
    count = int(nodes.max()) + 1
    spot = np.zeros(len(nodes), np.int32)
    at = np.full((count, int(np.bincount(nodes).max())), -1, np.int32)
    for node in range(count):
        devices = np.flatnonzero(nodes == node)
        spot[devices] = np.arange(devices.size)
        at[node, : devices.size] = devices
    return Landscape(
        _pointers(group[grouped], problem.arrays.n_groups),
        members,
        shape.meta,
        shape.kind,
        _pointers(shape.meta, int(shape.meta.max()) + 1),
        np.lexsort((*keys, shape.meta)).astype(np.int32),
        _pointers(shape.kind, int(shape.kind.max()) + 1),
        np.lexsort((*keys, shape.kind)).astype(np.int32),
        np.ascontiguousarray(shape.tiles),
        nodes,
        spot,
        at,
    )


def _pointers(labels: IntArray, count: int) -> IntArray:
    pointers = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(labels, minlength=count), out=pointers[1:])
    return pointers


class Log(NamedTuple):
    """What a move has changed; scratch of one chain.

    Attributes
    ----------
    op, before : int32 array, shape [2 x ops]
        The ops that moved, in that order, and where they were.
    queue : int32 array, shape [ops]
    seen : int64 array, shape [ops]
        Number of the last search that met an op.
    turn : int64 array, shape [1]
        Number of the last search.
    """

    op: IntArray
    before: IntArray
    queue: IntArray
    seen: npt.NDArray[np.int64]
    turn: npt.NDArray[np.int64]


def make_log(n_ops: int) -> Log:
    """Allocate an empty log."""
    return Log(
        np.empty(2 * n_ops, np.int32),
        np.empty(2 * n_ops, np.int32),
        np.empty(n_ops, np.int32),
        np.zeros(n_ops, np.int64),
        np.zeros(1, np.int64),
    )


@kernel
def move_rank(priority, by_rank, source, target):  # type: ignore[no-untyped-def]
    """Take the op at one rank to another; those between move up by one."""
    op = by_rank[source]
    step = 1 if target > source else -1
    rank = source
    while rank != target:
        by_rank[rank] = by_rank[rank + step]
        priority[by_rank[rank]] = rank
        rank += step
    by_rank[target] = op
    priority[op] = target


@kernel
def neighbor(arrays, op):  # type: ignore[no-untyped-def]
    """Return a random producer or consumer of an op, or -1."""
    n_out = arrays.succ_ptr[op + 1] - arrays.succ_ptr[op]
    n_in = arrays.pred_ptr[op + 1] - arrays.pred_ptr[op]
    if n_in + n_out == 0:
        return -1
    pick = np.random.randint(0, n_in + n_out)
    if pick < n_out:
        return arrays.succ[arrays.succ_ptr[op] + pick]
    return arrays.pred[arrays.pred_ptr[op] + pick - n_out]


@kernel
def target_of(arrays, devices, op):  # type: ignore[no-untyped-def]
    """Return a device to move an op to: any, a neighbor's, or, half the time, a sibling's."""
    kind = np.random.randint(0, 4)
    near = neighbor(arrays, op)
    if kind == 0 or near < 0:
        return np.random.randint(0, arrays.compute.shape[1])
    if kind == 1:
        return devices[near]
    return devices[neighbor(arrays, near)]


@kernel
def move_op(arrays, land, devices, op, target, log, count):  # type: ignore[no-untyped-def]
    """Move an op, with its colocation group; returns how many changes are noted by now."""
    if devices[op] == target or not arrays.compute[op, target] < np.inf:
        return count
    changed, before = log.op, log.before
    group = arrays.group[op]
    if group < 0:
        if count == len(changed):
            return count
        changed[count] = op
        before[count] = devices[op]
        devices[op] = target
        return count + 1
    first, last = land.members_ptr[group], land.members_ptr[group + 1]
    if count + last - first > len(changed):
        return count
    for index in range(first, last):
        member = land.members[index]
        changed[count] = member
        before[count] = devices[member]
        devices[member] = target
        count += 1
    return count


@kernel
def undo(devices, log, count):  # type: ignore[no-untyped-def]
    """Put every op back where it was, the last change first."""
    changed, before = log.op, log.before
    for index in range(count - 1, -1, -1):
        devices[changed[index]] = before[index]


@kernel
def move_walk(arrays, land, devices, op, target, log, count):  # type: ignore[no-untyped-def]
    """Move the ops of a random walk within one device, at most ``REGION``."""
    home = devices[op]
    for _ in range(np.random.randint(2, REGION + 1)):
        if devices[op] != home:
            break
        count = move_op(arrays, land, devices, op, target, log, count)
        op = neighbor(arrays, op)
        if op < 0:
            break
    return count


@inlined
def enqueue(ptr, others, op, size, seen, mark, queue, tail, devices, home):  # type: ignore[no-untyped-def]
    """Queue and mark the neighbors of an op, up to ``size`` in all; of one device if home >= 0."""
    for edge in range(ptr[op], ptr[op + 1]):
        other = others[edge]
        if tail < size and seen[other] != mark and (home < 0 or devices[other] == home):
            seen[other] = mark
            queue[tail] = other
            tail += 1
    return tail


@kernel
def move_region(arrays, land, devices, op, target, size, log, count):  # type: ignore[no-untyped-def]
    """Move a connected region of up to ``size`` ops of one device, breadth first from an op."""
    queue, seen = log.queue, log.seen
    log.turn[0] += 1
    turn = log.turn[0]
    home = devices[op]
    queue[0] = op
    seen[op] = turn
    head = 0
    tail = 1
    while head < tail:
        op = np.int64(queue[head])
        head += 1
        if devices[op] == home:
            count = move_op(arrays, land, devices, op, target, log, count)
        for ptr, others in ((arrays.succ_ptr, arrays.succ), (arrays.pred_ptr, arrays.pred)):
            tail = enqueue(ptr, others, op, size, seen, turn, queue, tail, devices, home)
    return count


@inlined
def _tiled_ops(land, op, odds):  # type: ignore[no-untyped-def]
    """Find the ops of an op's meta-op or, once in ``odds`` times, of all meta-ops of its kind.

    Returns
    -------
    ops : int32 array
    first, last : int
        They are ``ops[first:last]``.
    n_axes : int
        Tile coordinates that the op has.
    """
    if np.random.randint(0, odds) == 0:
        ptr, ops, label = land.kind_ptr, land.kind_ops, land.kind[op]
    else:
        ptr, ops, label = land.meta_ptr, land.meta_ops, land.meta[op]
    n_axes = 0
    while n_axes < land.tiles.shape[1] and land.tiles[op, n_axes] >= 0:
        n_axes += 1
    return ops, ptr[label], ptr[label + 1], n_axes


@kernel
def move_slice(arrays, land, devices, op, target, log, count):  # type: ignore[no-untyped-def]
    """Move a slice of a meta-op: the ops that share one or two tile coordinates with an op.

    Of all layers at once, now and then; only those on the op's device, half the time; with the
    ops that they feed, or that feed them, on the same device, half the time.
    """
    tiles = land.tiles
    ops, begin, end, n_axes = _tiled_ops(land, op, 4)
    first = np.random.randint(0, n_axes) if n_axes > 0 else 0
    second = np.random.randint(0, n_axes) if n_axes > 0 else 0
    local = np.random.randint(0, 2) == 0
    home = devices[op]
    grown = count
    for index in range(begin, end):
        other = np.int64(ops[index])
        if n_axes > 0 and (
            tiles[other, first] != tiles[op, first] or tiles[other, second] != tiles[op, second]
        ):
            continue
        if local and devices[other] != home:
            continue
        count = move_op(arrays, land, devices, other, target, log, count)
    if np.random.randint(0, 2) == 0:
        return count
    forward = np.random.randint(0, 2) == 0
    ptr = arrays.succ_ptr if forward else arrays.pred_ptr
    others = arrays.succ if forward else arrays.pred
    # Grown as a queue: what follows is followed in turn, a few steps far.
    for _ in range(np.random.randint(1, 5)):
        begin, grown = grown, count
        for index in range(begin, grown):
            moved, was = log.op[index], log.before[index]
            for edge in range(ptr[moved], ptr[moved + 1]):
                other = np.int64(others[edge])
                if devices[other] == was:
                    count = move_op(arrays, land, devices, other, target, log, count)
    return count


@kernel
def swap_slices(arrays, land, devices, op, log, count):  # type: ignore[no-untyped-def]
    """Let two slices of a meta-op change places: what two coordinates of an axis hold."""
    tiles = land.tiles
    ops, first, last, n_axes = _tiled_ops(land, op, 3)
    if n_axes == 0 or last - first < 2:
        return count
    axis = np.random.randint(0, n_axes)
    here = tiles[op, axis]
    there = tiles[ops[np.random.randint(first, last)], axis]
    if here == there:
        return count
    # Both slices come in the order of the other coordinates.
    one = first
    two = first
    while True:
        while one < last and tiles[ops[one], axis] != here:
            one += 1
        while two < last and tiles[ops[two], axis] != there:
            two += 1
        if one >= last or two >= last:
            return count
        a, b = np.int64(ops[one]), np.int64(ops[two])
        home, other = devices[a], devices[b]
        count = move_op(arrays, land, devices, a, np.int64(other), log, count)
        count = move_op(arrays, land, devices, b, np.int64(home), log, count)
        one += 1
        two += 1


@kernel
def swap_window(arrays, land, devices, by_rank, op, rank, log, count):  # type: ignore[no-untyped-def]
    """Let two devices, or two nodes, change their work in a stretch of the order.

    In the whole of it or in one kind of meta-op.
    """
    n_ops = len(devices)
    other = by_rank[min(n_ops - 1, max(0, rank + np.random.randint(-NEAR, NEAR + 1)))]
    here, there = np.int64(devices[op]), np.int64(devices[other])
    if here == there:
        there = np.random.randint(0, arrays.compute.shape[1])
    whole_node = land.node[here] != land.node[there] and np.random.randint(0, 2) == 0
    size = np.int64(2.0 ** np.random.uniform(3.0, np.log2(n_ops + 8.0)))
    only = land.kind[op] if np.random.randint(0, 2) == 0 else -1
    for step in range(max(0, rank - size // 2), min(n_ops, rank + size)):
        each = np.int64(by_rank[step])
        if only >= 0 and land.kind[each] != only:
            continue
        home = np.int64(devices[each])
        target = home
        if whole_node:
            if land.node[home] == land.node[here]:
                target = np.int64(land.at[land.node[there], land.spot[home]])
            elif land.node[home] == land.node[there]:
                target = np.int64(land.at[land.node[here], land.spot[home]])
        elif home == here:
            target = there
        elif home == there:
            target = here
        if target >= 0 and target != home:
            count = move_op(arrays, land, devices, each, target, log, count)
    return count
