"""Ops cut into bands of equal work, and the hypergraph of a band.

A vertex is an op, or a whole colocation group. The vertices of a band are split over the devices
with those of earlier bands in place: device ``d`` stands in every hypergraph as the fixed vertex
``d``, then come the vertices of the band, then those of later bands that consume what the band
makes; these tie together producers that should meet.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.kernels import kernel
from doppler.problem import Problem
from doppler.schedule.free_memory import choices, take
from doppler.schedule.ranks import rank_of

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


class Vertices(NamedTuple):
    """What is split: ops, colocation groups taken as one.

    Attributes
    ----------
    of_op : int32 array, shape [ops]
        Vertex of each op.
    work : float64 array, shape [vertices]
        Mean seconds of its ops over the devices.
    position : int32 array, shape [vertices]
        Rank by t-level of the first of its ops.
    member_ptr, member : int32 array, shape [vertices + 1], [ops]
        Ops of each vertex, in topological order.
    """

    of_op: IntArray
    work: FloatArray
    position: IntArray
    member_ptr: IntArray
    member: IntArray


def make_vertices(problem: Problem) -> Vertices:
    """Contract the colocation groups of a problem and order by t-level. O(V log V)."""
    arrays = problem.arrays
    n_ops = problem.n_ops
    label = np.where(arrays.group >= 0, arrays.group, arrays.n_groups + np.arange(n_ops))
    of_op = np.unique(label, return_inverse=True)[1].astype(np.int32)
    n_vertices = int(of_op.max()) + 1
    place = rank_of(arrays.order)
    level = problem.t_level(problem.mean_compute)
    rank = rank_of(np.lexsort((place, level)).astype(np.int32))
    first = np.full(n_vertices, n_ops)
    np.minimum.at(first, of_op, rank)
    member = np.lexsort((place, of_op)).astype(np.int32)
    member_ptr = np.zeros(n_vertices + 1, np.int32)
    np.cumsum(np.bincount(of_op, minlength=n_vertices), out=member_ptr[1:])
    work = np.bincount(of_op, problem.mean_compute, minlength=n_vertices).astype(np.float64)
    position = rank_of(np.argsort(first).astype(np.int32))
    return Vertices(of_op, work, position, member_ptr, member)


def cut_bands(vertices: Vertices, count: int) -> IntArray:
    """Band 0..count-1 of each vertex: equal shares of the work in the order of ``position``."""
    order = np.argsort(vertices.position)
    # Where no op takes time, each counts the same.
    work = vertices.work[order] if vertices.work.any() else np.ones(order.size)
    middle = np.cumsum(work) - work / 2
    band = np.empty(order.size, np.int32)
    band[order] = np.minimum(middle / work.sum() * count, count - 1).astype(np.int32)
    return band


@kernel
def band_net(arrays, of_op, member_ptr, member, chosen, home, local, seen_op):  # type: ignore[no-untyped-def]
    """Hypergraph of a band. O(edges at the band and at the consumers of what it makes).

    Invariant: ``local[v]`` is the number of vertex ``v`` in the hypergraph, or -1; ``seen_op[u]``
    says whether the output of ``u`` has its hyperedge. Both are as they were on return.

    Parameters
    ----------
    arrays : Arrays
    of_op, member_ptr, member : int32 array
        See :class:`Vertices`.
    chosen : int32 array
        The vertices of the band.
    home : int32 array, shape [vertices]
        Device of the vertices of earlier bands, -1 of the others.
    local : int32 array, shape [vertices]
        All -1.
    seen_op : bool array, shape [ops]
        All False.

    Returns
    -------
    vertices : int32 array, shape [band + later]
        The vertices that follow the fixed ones.
    pin_ptr, pins : int32 array
        Pins of each hyperedge, two or more, each once.
    ops : int32 array, shape [hyperedges]
        The op whose output the hyperedge is.
    """
    succ_ptr, succ, pred_ptr, pred = arrays.succ_ptr, arrays.succ, arrays.pred_ptr, arrays.pred
    n_devices = arrays.compute.shape[1]
    listed = np.empty(len(local), np.int32)
    count = 0
    for vertex in chosen:
        local[vertex] = n_devices + count
        listed[count] = vertex
        count += 1
    n_band = count
    makers = np.empty(len(seen_op), np.int32)
    n_makers = 0
    n_pins = 0
    for index in range(n_band):
        vertex = listed[index]
        for slot in range(member_ptr[vertex], member_ptr[vertex + 1]):
            op = member[slot]
            makers[n_makers] = op
            n_makers += 1
            seen_op[op] = True
            n_pins += 1 + succ_ptr[op + 1] - succ_ptr[op]
            for edge in range(succ_ptr[op], succ_ptr[op + 1]):
                consumer = of_op[succ[edge]]
                if home[consumer] < 0 and local[consumer] < 0:
                    local[consumer] = n_devices + count
                    listed[count] = consumer
                    count += 1
    for index in range(count):
        vertex = listed[index]
        for slot in range(member_ptr[vertex], member_ptr[vertex + 1]):
            op = member[slot]
            for edge in range(pred_ptr[op], pred_ptr[op + 1]):
                maker = pred[edge]
                if not seen_op[maker] and home[of_op[maker]] >= 0:
                    seen_op[maker] = True
                    makers[n_makers] = maker
                    n_makers += 1
                    n_pins += 1 + succ_ptr[maker + 1] - succ_ptr[maker]
    pins = np.empty(n_pins, np.int32)
    pin_ptr = np.zeros(n_makers + 1, np.int32)
    ops = np.empty(n_makers, np.int32)
    last = np.full(n_devices + count, -1, np.int32)
    n_nets = 0
    filled = 0
    for index in range(n_makers):
        op = makers[index]
        seen_op[op] = False
        begin = filled
        free = False
        for edge in range(succ_ptr[op] - 1, succ_ptr[op + 1]):
            vertex = of_op[op] if edge < succ_ptr[op] else of_op[succ[edge]]
            pin = home[vertex] if home[vertex] >= 0 else local[vertex]
            if pin >= 0 and last[pin] != index:
                last[pin] = index
                free |= pin >= n_devices
                pins[filled] = pin
                filled += 1
        if filled - begin < 2 or not free:
            filled = begin
            continue
        ops[n_nets] = op
        n_nets += 1
        pin_ptr[n_nets] = filled
    for index in range(count):
        local[listed[index]] = -1
    return listed[:count].copy(), pin_ptr[: n_nets + 1].copy(), pins[:filled].copy(), ops[:n_nets]


@kernel
def relabel(pin_ptr, pins, label, n_labels):  # type: ignore[no-untyped-def]
    """Give pins other names, several of them one name or none. O(pins).

    Parameters
    ----------
    pin_ptr, pins : int32 array
        Pins of each hyperedge.
    label : int32 array, shape [vertices]
        New name of each vertex, -1: left out.
    n_labels : int

    Returns
    -------
    pin_ptr, pins : int32 array
        Pins of each hyperedge that has two or more, each once.
    nets : int32 array
        Which hyperedges these are.
    """
    new_ptr = np.zeros(len(pin_ptr), np.int32)
    new_pins = np.empty(len(pins), np.int32)
    nets = np.empty(len(pin_ptr), np.int32)
    last = np.full(n_labels, -1, np.int32)
    n_nets = 0
    filled = 0
    for net in range(len(pin_ptr) - 1):
        begin = filled
        for slot in range(pin_ptr[net], pin_ptr[net + 1]):
            name = label[pins[slot]]
            if name >= 0 and last[name] != net:
                last[name] = net
                new_pins[filled] = name
                filled += 1
        if filled - begin < 2:
            filled = begin
            continue
        nets[n_nets] = net
        n_nets += 1
        new_ptr[n_nets] = filled
    return new_ptr[: n_nets + 1].copy(), new_pins[:filled].copy(), nets[:n_nets].copy()


@kernel
def settle(arrays, of_op, member_ptr, member, chosen, wanted, memory, home):  # type: ignore[no-untyped-def]
    """Put the vertices of a band on devices that can take them. O(edges at the band + V devices).

    A vertex that cannot go where it is wanted goes where most of its bytes are or are wanted, of
    equal devices to the one with the least work of the band.

    Parameters
    ----------
    arrays : Arrays
    of_op, member_ptr, member : int32 array
        See :class:`Vertices`.
    chosen, wanted : int32 array
        The vertices of the band and the device that each should have.
    memory : FreeMemory
        With the ops of earlier bands taken.
    home : int32 array, shape [vertices]
        Device of the vertices of earlier bands; those of this band are filled in.
    """
    succ_ptr, succ, pred_ptr, pred = arrays.succ_ptr, arrays.succ, arrays.pred_ptr, arrays.pred
    volume, compute = arrays.volume, arrays.compute
    n_devices = compute.shape[1]
    found = np.empty(n_devices, np.int32)
    near = np.empty(n_devices)
    load = np.zeros(n_devices)
    for index in range(len(chosen)):
        home[chosen[index]] = wanted[index]
    for index in range(len(chosen)):
        vertex, device = chosen[index], wanted[index]
        first = member[member_ptr[vertex]]
        n_found = choices(memory, first, found)
        fits = False
        for slot in range(n_found):
            fits |= found[slot] == device
        if not fits:
            near[:] = 0.0
            for slot in range(member_ptr[vertex], member_ptr[vertex + 1]):
                op = member[slot]
                for edge in range(pred_ptr[op], pred_ptr[op + 1]):
                    other = of_op[pred[edge]]
                    if other != vertex and home[other] >= 0:
                        near[home[other]] += volume[pred[edge]]
                for edge in range(succ_ptr[op], succ_ptr[op + 1]):
                    other = of_op[succ[edge]]
                    if other != vertex and home[other] >= 0:
                        near[home[other]] += volume[op]
            device = found[0]
            for slot in range(1, n_found):
                other = found[slot]
                if near[other] > near[device] or (
                    near[other] == near[device] and load[other] < load[device]
                ):
                    device = other
            home[vertex] = device
        take(memory, first, device)
        for slot in range(member_ptr[vertex], member_ptr[vertex + 1]):
            load[device] += compute[member[slot], device]
