"""The maps of tile coordinates to devices among which a symmetric placement chooses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from doppler.graph.structure import Structure

IntArray = npt.NDArray[np.int32]
TableArray = npt.NDArray[np.int16]
WideArray = npt.NDArray[np.int64]

# Kinds with the most work that choose a map of their own; the others share one choice.
MOST_KINDS = 512
# Coordinates that a map looks at, those of more than one value first.
AXES = 4
# Entries of a table of maps, so that a million ops do not fill the memory.
MOST_ENTRIES = 16_000_000


@dataclass(frozen=True, eq=False)
class Layout:
    """The devices cut into pipeline stages, and the maps within a stage.

    Attributes
    ----------
    stages : int
        Groups of devices of one size; layers are spread over them in order.
    table : int16 array, shape [maps, ops]
        Device that each map gives each op.
    pointers, choices : int32 array, shape [kinds + 1], [entries]
        Maps that differ on the ops of a kind.
    """

    stages: int
    table: TableArray
    pointers: IntArray
    choices: IntArray


def merged_kinds(structure: Structure, work: npt.NDArray[np.float64]) -> IntArray:
    """Give the kinds new numbers, those beyond ``MOST_KINDS`` as one, shape [ops].

    Parameters
    ----------
    work : float64 array, shape [ops]
        By which the largest kinds are chosen, seconds.
    """
    kind = structure.kind
    if structure.n_kinds <= MOST_KINDS:
        return kind
    total = np.bincount(kind, work)
    kept = np.sort(np.argsort(-total, kind="stable")[: MOST_KINDS - 1])
    number = np.full(total.size, MOST_KINDS - 1, np.int32)
    number[kept] = np.arange(kept.size, dtype=np.int32)
    return number[kind]


def stage_counts(n_layers: int, nodes: IntArray) -> list[int]:
    """Numbers of pipeline stages that are worth a try: equal groups of whole nodes or halves."""
    n_devices, n_nodes = nodes.size, int(nodes.max()) + 1
    counts = {1, 2, n_nodes}
    return sorted(c for c in counts if n_devices % c == 0 and (c == 1 or c <= n_layers))


def make_layout(structure: Structure, kind: IntArray, nodes: IntArray, stages: int) -> Layout:
    """Tabulate the maps for some number of stages.

    A map is one of: a coordinate, or two or three in row-major order, dealt out or cut into blocks
    over the devices; two or three coordinates, each over a factor of the number of devices (so
    that one chooses the node and another the device within it); a sum of coordinates; everything
    on one device. Only maps that differ on a kind's ops are among its choices.
    O(maps x ops).

    Parameters
    ----------
    kind : int32 array, shape [ops]
        Kinds that choose together.
    nodes : int32 array, shape [devices]
        Node of each device.
    stages : int
        A divisor of the number of devices.
    """
    n_ops = kind.size
    # Devices of a node follow each other.
    order = np.argsort(nodes, kind="stable").astype(np.int16)
    size = nodes.size // stages
    stage = structure.layer.astype(np.int64) * stages // structure.n_layers
    per_node = np.bincount(nodes)
    within = int(per_node[0]) if (per_node == per_node[0]).all() else 1
    within = within if size % within == 0 else size
    where, extent = _compact(structure.tiles, kind)
    most = max(8, MOST_ENTRIES // n_ops)
    # Which maps were seen on a kind's ops: their sums with random weights.
    rng = np.random.default_rng(0)
    weight, value = rng.random(n_ops), rng.random(nodes.size)
    n_kinds = int(kind.max()) + 1
    seen: list[set[float]] = [set() for _ in range(n_kinds)]
    rows: list[TableArray] = []
    found: list[list[int]] = [[] for _ in range(n_kinds)]
    for local in _maps(where, extent, size, within):
        devices = order[stage * size + local]
        marks = np.bincount(kind, weight * value[devices], n_kinds).tolist()
        fresh = [k for k, mark in enumerate(marks) if mark not in seen[k]]
        if not fresh:
            continue
        for k in fresh:
            seen[k].add(marks[k])
            found[k].append(len(rows))
        rows.append(devices)
        if len(rows) == most:
            break
    pointers = np.append(0, np.cumsum([len(one) for one in found])).astype(np.int32)
    choices = np.array(list(itertools.chain.from_iterable(found)), np.int32)
    return Layout(stages, np.stack(rows), pointers, choices)


def _compact(tiles: IntArray, kind: IntArray) -> tuple[WideArray, WideArray]:
    """Coordinates and extents of each op, axes of more than one value first: [AXES, ops] each."""
    n_kinds = int(kind.max()) + 1
    extent = np.zeros((n_kinds, tiles.shape[1]), np.int64)
    np.maximum.at(extent, kind, tiles.astype(np.int64) + 1)
    extent = np.maximum(extent, 1)
    axes = np.argsort(extent == 1, axis=1, kind="stable")[:, :AXES]
    where = np.take_along_axis(np.maximum(tiles, 0), axes[kind], axis=1).T.astype(np.int64)
    return where, np.take_along_axis(extent, axes, axis=1)[kind].T


def _maps(where: WideArray, extent: WideArray, size: int, within: int) -> Iterator[WideArray]:
    """Yield the maps to devices 0 to ``size - 1``, the simplest first.

    Parameters
    ----------
    where, extent : int64 array, shape [axes, ops]
    size : int
        Devices of a stage.
    within : int
        Devices of a node, or ``size`` where the stage is within one.
    """
    n_axes = len(where)
    across = size // within

    def dealt(x: WideArray, e: WideArray, parts: int) -> WideArray:
        return x % parts

    def cut(x: WideArray, e: WideArray, parts: int) -> WideArray:
        return x * parts // e

    def turned(x: WideArray, e: WideArray, parts: int) -> WideArray:
        # Node after node, as cards are dealt.
        return x % across * within + x // across % within if parts == size else x % parts

    orders = [axes for count in (1, 2, 3) for axes in itertools.permutations(range(n_axes), count)]
    one_way = (dealt, cut, turned) if across > 1 else (dealt, cut)
    for axis in range(n_axes):
        for way in one_way:
            yield way(where[axis], extent[axis], size)
    yield np.zeros(where.shape[1], np.int64)
    factors = [p for p in range(2, size) if size % p == 0]
    # The nodes first, then halves, then squares.
    square = min(factors, key=lambda p: abs(p - size / p), default=1)
    chosen = dict.fromkeys(p for p in (across, 2, size // 2, square, within) if p in factors)
    for first in chosen:
        second = size // first
        for a, b in itertools.permutations(range(n_axes), 2):
            for one, other in itertools.product((dealt, cut), repeat=2):
                outer = one(where[a], extent[a], first)
                yield outer * second + other(where[b], extent[b], second)
    most = extent.max(axis=1).astype(np.float64)
    for axes in orders[n_axes:]:
        if most[list(axes)].prod() * size > 2.0**62:
            continue  # more tiles than a number holds
        flat, total = np.zeros_like(where[0]), np.ones_like(where[0])
        for axis in axes:
            flat, total = flat * extent[axis] + where[axis], total * extent[axis]
        for way in one_way:
            yield way(flat, total, size)
    for a, b in itertools.combinations(range(n_axes), 2):
        yield (where[a] + where[b]) % size
    if across > 1:
        for a, b in itertools.permutations(range(n_axes), 2):
            yield where[a] % across * within + (where[a] + where[b]) % within
    for first, second in itertools.product(chosen, factors):
        third = size // (first * second)
        if third * first * second != size or third < 2:
            continue
        for a, b, c in itertools.permutations(range(min(3, n_axes)), 3):
            for way in (dealt, cut):
                inner = way(where[b], extent[b], second) * third + way(where[c], extent[c], third)
                yield way(where[a], extent[a], first) * second * third + inner
