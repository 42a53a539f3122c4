"""What a graph repeats: meta-ops, their kinds, layers, and where an op lies in its meta-op."""

from __future__ import annotations

import re
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from doppler.graph.graph import Graph
from doppler.kernels import kernel

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# Rounds of color refinement: ops of one color have equal neighborhoods of that many hops. What is
# so alike at one depth is a meta-op. Residual connections bring the ends of a model within a few
# hops, so that fewer rounds tell what layers share.
ROUNDS = 8
KIND_ROUNDS = 2
# Costs that differ by less, from one to the next, count as equal: tiles may be uneven.
NEAR = 1.25
# Classes for each op beyond which nothing repeats enough to be called a meta-op.
IRREGULAR = 0.5
# The number of a layer in a name: "layer3.q", "model.layers.3.mlp", "h.3.attn", "encoder/block_3".
_LAYER = re.compile(
    r"(?:(?<![A-Za-z])(?:layers?|blocks?|cells?|stages?|h)[._]?(\d+)(?![A-Za-z0-9]))|(?<=\.)(\d+)(?=\.)"
)

_known: WeakKeyDictionary[Graph, Structure] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Structure:
    """What a graph repeats.

    Attributes
    ----------
    meta : int32 array, shape [ops]
        Meta-op of each op, numbered by first op in topological order.
    kind : int32 array, shape [ops]
        Kind of its meta-op: layers share it. Numbered likewise.
    layer : int32 array, shape [ops]
        From 0; all 0 where there are no layers.
    tiles : int32 array, shape [ops, axes]
        Coordinates within the meta-op, -1 past the last axis of an op; at least one axis.
    """

    meta: IntArray
    kind: IntArray
    layer: IntArray
    tiles: IntArray

    @property
    def n_metas(self) -> int:
        """Number of meta-ops."""
        return int(self.meta.max()) + 1

    @property
    def n_kinds(self) -> int:
        """Number of kinds of meta-ops."""
        return int(self.kind.max()) + 1

    @property
    def n_layers(self) -> int:
        """Number of layers, at least 1."""
        return int(self.layer.max()) + 1


def structure(graph: Graph) -> Structure:
    """Find what a graph repeats, by its names and tiles or, where it has none, by its edges.

    - Meta-ops are those of the graph, their kinds the names without the number of the layer. A
      graph whose ops are each a meta-op of their own, without layers in the names, is colored
      instead: ops of equal sort and costs whose neighborhoods are equal have one color (refinement
      forward and backward at once, after Weisfeiler and Leman, 1968). Ops of one depth that have
      one color after ``ROUNDS`` rounds are a meta-op. After ``KIND_ROUNDS`` rounds, most ops have
      a color that comes at some number of depths: that many layers there are, and each begins
      where the first such color comes. Meta-ops of one such color at one depth within a layer are
      of one kind. Where almost every op has a color of its own, the ops of one depth are taken for
      a meta-op.
    - Coordinates are the graph's tiles. Where it has none they are four ranks of the op within its
      meta-op: by its first consumer, by its first and its last producer (so that ops that share
      one share the coordinate), and by the op itself. Ops are ordered by their shard; without
      shards, by a depth-first walk from the exits to the producers.

    Parameters
    ----------
    graph : Graph

    Returns
    -------
    Structure
        Read-only; kept with the graph, a second call costs nothing.
        O(ROUNDS (V + E) + V log V).
    """
    found = _known.get(graph)
    if found is None:
        found = _known[graph] = _find(graph)
    return found


def _find(graph: Graph) -> Structure:
    position = np.empty(graph.n_ops, np.int64)
    position[graph.topological_order] = np.arange(graph.n_ops)
    names: dict[str, int] = {}
    meta = np.array([names.setdefault(name, len(names)) for name in graph.meta_ops])
    kinds: dict[str, int] = {}
    kind_of, layer_of = np.empty(len(names), np.int64), np.zeros(len(names), np.int64)
    layered = False
    for name, number in names.items():
        match = _LAYER.search(name)
        if match:
            layered = True
            # Of a longer number than any model has layers, the last digits do.
            layer_of[number] = int((match[1] or match[2])[-6:])
            start, stop = match.span(1 if match[1] else 2)
            name = f"{name[:start]}#{name[stop:]}"
        kind_of[number] = kinds.setdefault(name, len(kinds))
    if layered or 2 * len(names) <= graph.n_ops:
        kind = kind_of[meta]
        layer = np.unique(layer_of, return_inverse=True)[1][meta]
    else:
        meta, kind, layer = _classes(graph)
    meta = _numbered(meta, position)
    tiles = graph.tiles if graph.tiles.shape[1] else _coordinates(graph, meta)
    parts = (meta, _numbered(kind, position), layer.astype(np.int32), tiles)
    for part in parts:
        part.setflags(write=False)
    return Structure(*parts)


def _classes(
    graph: Graph,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Tell meta-op, kind and layer by color and depth; by depth alone where all colors differ."""
    coarse, fine = _colors(graph)
    depth = graph.depth.astype(np.int64)
    deepest = int(depth.max())
    meta = fine * (deepest + 1) + depth
    if np.unique(meta, return_counts=True)[0].size > graph.n_ops * IRREGULAR:
        return depth, depth, np.zeros_like(depth)
    begins = _beginnings(coarse, graph.depth)
    layer = np.maximum(np.searchsorted(begins, graph.depth, side="right") - 1, 0)
    # A negative depth within a layer: before the first begins.
    kind = coarse * (2 * deepest + 1) + depth - begins[layer] + deepest
    return meta, kind, layer


def _numbered(labels: npt.NDArray[np.int64], position: npt.NDArray[np.int64]) -> IntArray:
    """Give labels numbers by their first op in topological order."""
    values, inverse = np.unique(labels, return_inverse=True)
    first = np.full(values.size, position.size)
    np.minimum.at(first, inverse, position)
    number = np.empty(values.size, np.int32)
    number[np.argsort(first)] = np.arange(values.size, dtype=np.int32)
    return number[inverse]


def _colors(graph: Graph) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    kinds: dict[str, int] = {}
    sort = np.array([kinds.setdefault(kind, len(kinds)) for kind in graph.kinds])
    columns = [graph.flops, graph.output_bytes, graph.param_bytes, graph.bytes_read]
    columns += [one for one in (graph.compute_s, graph.transfer_s) if one is not None]
    columns += list(graph.class_compute_s.values())
    color = _mixed(sort.astype(np.uint64))
    for column in columns:
        color = _mixed(color + _clusters(column).astype(np.uint64))
    edges = (*graph.predecessors, *graph.successors)
    coarse = _refine(color, *edges, KIND_ROUNDS)
    fine = _refine(coarse, *edges, ROUNDS - KIND_ROUNDS)
    return _numbers(coarse), _numbers(fine)


def _numbers(labels: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _clusters(values: FloatArray) -> npt.NDArray[np.int64]:
    """Return the cluster of each value: a new one begins where the next is NEAR times larger."""
    distinct, inverse = np.unique(values, return_inverse=True)
    with np.errstate(invalid="ignore", over="ignore"):
        begins = distinct[1:] > distinct[:-1] * NEAR
    numbers: npt.NDArray[np.int64] = np.append(0, np.cumsum(begins))
    return numbers[inverse]


def _beginnings(color: npt.NDArray[np.int64], depth: IntArray) -> npt.NDArray[np.int64]:
    """Depths at which layers begin, ascending, at least one."""
    # With counts numpy sorts, which is faster here than its hashing.
    pairs = np.unique(color * (int(depth.max()) + 1) + depth, return_counts=True)[0]
    owner, at = np.divmod(pairs, int(depth.max()) + 1)
    depths = np.bincount(owner)
    ops = np.bincount(depths[color])
    ops[1] = 0
    times = int(ops.argmax()) if ops.any() else 1
    # The pairs ascend, so that each color's first one is its shallowest.
    shallowest = at[np.append(0, np.cumsum(depths)[:-1])]
    chosen = np.flatnonzero(depths == times)
    marker = chosen[shallowest[chosen].argmin()]
    begins: npt.NDArray[np.int64] = at[owner == marker]
    return begins


def _coordinates(graph: Graph, meta: IntArray) -> IntArray:
    pred_ptr, pred = graph.predecessors
    succ_ptr, succ = graph.successors
    walk = _walk(graph.topological_order, pred_ptr, pred, succ_ptr)
    keys = meta.astype(np.int64) * (int(graph.shards.max()) + 1) + graph.shards
    own = graph.shards if np.diff(np.sort(keys)).all() else walk
    rank = _dense(meta, own)
    consumer, first, last = _neighbors(meta, walk, pred_ptr, pred, succ_ptr, succ)
    columns = []
    for neighbor in (consumer, first, last):
        known = neighbor >= 0
        # Ordered as the neighbors are within their meta-ops.
        key = np.where(known, meta[neighbor].astype(np.int64) * graph.n_ops + rank[neighbor], -1)
        columns.append(_dense(meta, key))
    return np.stack([*columns, rank], axis=1).astype(np.int32)


def _dense(group: IntArray, value: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Rank of each op's value among the distinct values of its group, from 0."""
    order = np.lexsort((value, group))
    group, value = group[order], value[order]
    opens = np.append(True, group[1:] != group[:-1])
    count = np.cumsum(opens | np.append(True, value[1:] != value[:-1])) - 1
    start = np.maximum.accumulate(np.where(opens, count, 0))
    rank = np.empty(order.size, np.int64)
    rank[order] = count - start
    return rank


@kernel
def _mix(value):  # type: ignore[no-untyped-def]
    """Scramble 64 bits (the finalizer of SplitMix64: Steele, Lea and Flood, OOPSLA 2014)."""
    value = np.uint64(value) + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@kernel
def _mixed(values):  # type: ignore[no-untyped-def]
    mixed = np.empty(len(values), np.uint64)
    for index in range(len(values)):
        mixed[index] = _mix(values[index])
    return mixed


@kernel
def _refine(color, pred_ptr, pred, succ_ptr, succ, rounds):  # type: ignore[no-untyped-def]
    """Refine colors by the multisets of the producers' and the consumers', as sums of hashes."""
    salt = np.uint64(0xD1B54A32D192ED03)
    for _ in range(rounds):
        refined = np.empty(len(color), np.uint64)
        for op in range(len(color)):
            before = np.uint64(0)
            for edge in range(pred_ptr[op], pred_ptr[op + 1]):
                before += _mix(color[pred[edge]])
            after = np.uint64(0)
            for edge in range(succ_ptr[op], succ_ptr[op + 1]):
                after += _mix(color[succ[edge]] ^ salt)
            refined[op] = _mix(_mix(_mix(color[op]) + before) ^ after)
        color = refined
    return color


@kernel
def _walk(order, pred_ptr, pred, succ_ptr):  # type: ignore[no-untyped-def]
    """Give numbers to the ops in a depth-first walk from the exits to the producers, shape [ops].

    What feeds one op comes together. Every edge is looked at once.
    """
    number = np.full(len(order), -1, np.int64)
    stack = np.empty(len(order), np.int32)
    next_edge = pred_ptr[:-1].copy()
    count = 0
    for exit_ in order:
        if succ_ptr[exit_] != succ_ptr[exit_ + 1]:
            continue
        number[exit_] = count
        count += 1
        stack[0] = exit_
        depth = 1
        while depth > 0:
            op = stack[depth - 1]
            if next_edge[op] == pred_ptr[op + 1]:
                depth -= 1
                continue
            producer = pred[next_edge[op]]
            next_edge[op] += 1
            if number[producer] < 0:
                number[producer] = count
                count += 1
                stack[depth] = producer
                depth += 1
    return number


@kernel
def _neighbors(meta, walk, pred_ptr, pred, succ_ptr, succ):  # type: ignore[no-untyped-def]
    """First consumer, first and last producer of each op, by meta-op, then walk; -1 for none."""
    consumer = np.full(len(meta), -1, np.int32)
    first = np.full(len(meta), -1, np.int32)
    last = np.full(len(meta), -1, np.int32)
    for op in range(len(meta)):
        for edge in range(succ_ptr[op], succ_ptr[op + 1]):
            other, best = succ[edge], consumer[op]
            if best < 0 or (meta[other], walk[other]) < (meta[best], walk[best]):
                consumer[op] = other
        for edge in range(pred_ptr[op], pred_ptr[op + 1]):
            other = pred[edge]
            low, high = first[op], last[op]
            if low < 0 or (meta[other], walk[other]) < (meta[low], walk[low]):
                first[op] = other
            # Of the last meta-op the first op, so that a sum of parts has one producer of each.
            if high < 0 or (-meta[other], walk[other]) < (-meta[high], walk[high]):
                last[op] = other
    return consumer, first, last
