"""Sharding: a program of meta-ops and a tiling make a graph of ops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from doppler.errors import GraphError
from doppler.graph.graph import Graph
from doppler.graph.spec import OpSpec, Tile
from doppler.graph.workloads.program import (
    Fusable,
    MetaOp,
    Value,
    View,
    WorkloadProgram,
    check_size,
)
from doppler.graph.workloads.tiling import resolve_tiles, tile_bounds
from doppler.graph.workloads.views import Covering, Range, covering

Bounds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """One tile of a value as an op reads it.

    Attributes
    ----------
    source : int or Tile
        The op that computes it, or the tile of an input or parameter.
    size : int
        Number of elements.
    view : tuple of int, or None
        Shape to read it as, where a reshape that moves nothing stands between.
    """

    source: int | Tile
    size: int
    view: tuple[int, ...] | None = None


# Beyond any graph that could be placed: a slip in a size must not fill the memory first.
MAX_OPS = 10_000_000


def shard(program: WorkloadProgram, tiles: Mapping[str, int], *, dtype_bytes: int = 4) -> Graph:
    """Split the meta-ops of a program into ops.

    Every meta-op becomes one op per tile of its iteration space. Where a reduced dimension is
    split, the partial results are combined pairwise in a balanced tree of ops of kind ``"add"``
    (or ``"reduce"``, for a maximum). Where a consumer tiles a value otherwise than its producer,
    ops of kind ``"formation"`` gather or slice the tiles, once for all consumers of that tiling;
    a reshape that moves nothing costs no op. An op reads a number of tiles that depends on the
    tiling only, not on the length of the program.

    Parameters
    ----------
    program : WorkloadProgram
        The workload.
    tiles : mapping of str to int
        Number of tiles of each dimension; 1 where it is silent. Tiles may be uneven.
    dtype_bytes : int
        Bytes of one element.

    Returns
    -------
    Graph
        With an executable spec on every op, its place in the grid of its meta-op's tiles (a
        partial sum: of the tile of the result that it is part of, then its number among those of
        its level), the inputs and parameters in ``tensors`` and the
        tiles of the results in ``outputs``.

    Raises
    ------
    GraphError, UnknownNameError
        If the program has no result, the tiles do not suit its dimensions or make more ops than
        ``MAX_OPS``, or ``dtype_bytes`` is not a whole number >= 1.
    """
    check_size(program.name, "dtype_bytes", dtype_bytes)
    if not program.results:
        raise GraphError(f"{program.name}: the program declares no result")
    counts = resolve_tiles(program.name, program.sizes, {}, tiles)
    return _Sharder(program, counts, dtype_bytes).run()


class _Sharder:
    def __init__(
        self, program: WorkloadProgram, tiles: Mapping[str, int], dtype_bytes: int
    ) -> None:
        self.program = program
        self.bounds = {name: tile_bounds(size, tiles[name]) for name, size in program.sizes.items()}
        self.dtype_bytes = dtype_bytes
        self.specs: list[OpSpec] = []
        self.names: list[str] = []
        self.kinds: list[str] = []
        self.meta_ops: list[str] = []
        self.shards: list[int] = []
        self.places: list[Bounds] = []
        self.flops: list[float] = []
        self.read: list[int] = []
        self.made: dict[str, tuple[tuple[Bounds, ...], list[int]]] = {}
        self.formed: dict[tuple[str, tuple[Bounds, ...]], list[Block]] = {}
        self.formations: dict[str, int] = {}

    def run(self) -> Graph:
        ops = sum(self.tiles_of(step) for step in self.program.steps)
        if ops > MAX_OPS:
            raise GraphError(
                f"{self.program.name}: would have {ops:,} ops or more, at most {MAX_OPS:,}; "
                "give fewer tiles"
            )
        for step in self.program.steps:
            if isinstance(step, MetaOp):
                self.apply(step)
            elif len(self.bounds[step.dimension]) == 2:
                self.apply(step.fused)
            else:
                for part in step.parts:
                    self.apply(part)
        return self.graph()

    def tiles_of(self, step: MetaOp | Fusable) -> int:
        """Count the least ops that a step becomes: the tiles of its iteration space."""
        op = step if isinstance(step, MetaOp) else step.fused
        axes = (axis for axis in op.axes + op.reduced if axis not in op.whole)
        return math.prod(len(self.bounds[axis]) - 1 for axis in axes)

    def apply(self, op: MetaOp) -> None:
        def bounds_of(axes: Sequence[str]) -> tuple[Bounds, ...]:
            return tuple(
                (0, self.program.sizes[axis]) if axis in op.whole else self.bounds[axis]
                for axis in axes
            )

        space = op.axes + op.reduced
        bounds = bounds_of(space)
        counts = tuple(len(part) - 1 for part in bounds)
        points = np.indices(counts).reshape(len(counts), -1)
        position = {axis: points[i] for i, axis in enumerate(space)}
        columns = []
        for value in op.inputs:
            own = bounds_of(value.axes)
            blocks = self.blocks(value, own)
            flat = np.zeros(points.shape[1], np.int64)
            for axis, part in zip(value.axes, own, strict=True):
                flat = flat * (len(part) - 1) + position[axis]
            columns.append([blocks[i] for i in flat.tolist()])
        shapes = _extents(bounds[: len(op.axes)])
        partials = math.prod(counts[len(op.axes) :])
        volumes = _volumes(bounds)
        places = _places(counts)
        labels = _labels(counts)
        first = len(self.specs)
        for shard, operands in enumerate(zip(*columns, strict=True)):
            attributes = op.attributes
            if any(block.view for block in operands):
                views = tuple(block.view for block in operands)
                attributes = {**attributes, "views": views}
            self.emit(
                OpSpec(
                    op.function,
                    tuple(block.source for block in operands),
                    shapes[shard // partials],
                    attributes,
                ),
                op.kind,
                op.name,
                f"{op.name}{labels[shard]}",
                shard,
                places[shard],
                volumes[shard] * op.flops,
                sum(block.size for block in operands),
            )
        ids = list(range(first, len(self.specs)))
        groups = [ids[i : i + partials] for i in range(0, len(ids), partials)]
        kept = bounds[: len(op.axes)]
        self.made[op.name] = (kept, self.combine(op, groups, kept))

    def combine(self, op: MetaOp, groups: list[list[int]], bounds: Sequence[Bounds]) -> list[int]:
        kind, word = ("add", "total") if op.combine == "add" else ("reduce", "peak")
        shapes = _extents(bounds)
        places = _places(tuple(len(part) - 1 for part in bounds))
        level = 0
        while len(groups[0]) > 1:
            level += 1
            meta_op = f"{op.name}.{word}{level}"
            shard = 0
            joined: list[list[int]] = []
            for group, shape, place in zip(groups, shapes, places, strict=True):
                size = math.prod(shape)
                left = []
                for at in range(0, len(group) - 1, 2):
                    left.append(len(self.specs))
                    pair = (group[at], group[at + 1])
                    name = f"{meta_op}[{shard}]"
                    spec = OpSpec(op.combine, pair, shape)
                    self.emit(spec, kind, meta_op, name, shard, (*place, at // 2), size, 2 * size)
                    shard += 1
                joined.append(left + group[len(left) * 2 :])
            groups = joined
        return [group[0] for group in groups]

    def blocks(self, value: Value, wanted: tuple[Bounds, ...]) -> list[Block]:
        """Tiles of a value, in row-major order of the wanted grid."""
        key = (value.name, wanted)
        if key not in self.formed:
            if value.name in self.made and self.made[value.name][0] == wanted:
                blocks = [
                    Block(op, math.prod(self.specs[op].shape)) for op in self.made[value.name][1]
                ]
            else:
                blocks = self.form(value.name, wanted)
            self.formed[key] = blocks
        return self.formed[key]

    def form(self, name: str, wanted: tuple[Bounds, ...]) -> list[Block]:
        """Read, gather or slice the blocks of the wanted grid."""
        sizes = tuple(part[-1] for part in wanted)
        view = self.program.views.get(name)
        source = view.source if view else name
        groups = view.groups if view else tuple(((size,), (size,)) for size in sizes)
        counts = tuple(len(part) - 1 for part in wanted)
        places = _places(counts)
        labels = _labels(counts)
        meta_op = ""
        blocks: list[Block] = []
        grid = itertools.product(*(itertools.pairwise(part) for part in wanted))
        for shard, ranges in enumerate(grid):
            shape = tuple(high - low for low, high in ranges)
            cover = covering(View(source, groups), ranges)
            pieces = self.pieces(source, cover.ranges)
            if len(pieces) == 1 and cover.exact and pieces[0].covers:
                moved = shape if view and shape != pieces[0].shape else None
                blocks.append(Block(pieces[0].source, math.prod(shape), moved))
                continue
            if not meta_op:
                number = self.formations[name] = self.formations.get(name, 0) + 1
                meta_op = f"{name}.form{number}"
            blocks.append(Block(len(self.specs), math.prod(shape)))
            self.emit(
                OpSpec(
                    "form",
                    tuple(piece.source for piece in pieces),
                    shape,
                    _formation(pieces, cover),
                ),
                "formation",
                meta_op,
                f"{meta_op}{labels[shard]}",
                shard,
                places[shard],
                0,
                sum(math.prod(high - low for low, high in piece.taken) for piece in pieces),
            )
        return blocks

    def pieces(self, source: str, ranges: tuple[Range, ...]) -> list[_Piece]:
        """Find the tiles that a block of a value consists of."""
        if source in self.program.tensors:
            shape = tuple(high - low for low, high in ranges)
            whole = tuple((0, extent) for extent in shape)
            return [_Piece(Tile(source, ranges), shape, whole, whole)]
        bounds, ids = self.made[source]
        along = [
            _overlaps(part, low, high) for part, (low, high) in zip(bounds, ranges, strict=True)
        ]
        pieces = []
        for parts in itertools.product(*along):
            flat = 0
            for (tile, _, _), part in zip(parts, bounds, strict=True):
                flat = flat * (len(part) - 1) + tile
            op = ids[flat]
            taken = tuple(part[1] for part in parts)
            put = tuple(part[2] for part in parts)
            pieces.append(_Piece(op, self.specs[op].shape, taken, put))
        return pieces

    def emit(
        self,
        spec: OpSpec,
        kind: str,
        meta_op: str,
        name: str,
        shard: int,
        place: Bounds,
        flops: float,
        read: int,
    ) -> None:
        self.specs.append(spec)
        self.kinds.append(kind)
        self.meta_ops.append(meta_op)
        self.names.append(name)
        self.shards.append(shard)
        self.places.append(place)
        self.flops.append(flops)
        self.read.append(read)

    def graph(self) -> Graph:
        outputs: dict[int, Tile] = {}
        for name in self.program.results:
            bounds, ids = self.made[name]
            grid = itertools.product(*(itertools.pairwise(part) for part in bounds))
            outputs.update({op: Tile(name, block) for op, block in zip(ids, grid, strict=True)})
        src: list[int] = []
        dst: list[int] = []
        resident = []
        for op, spec in enumerate(self.specs):
            elements = 0
            for source in spec.inputs:
                if isinstance(source, int):
                    src.append(source)
                    dst.append(op)
                else:
                    elements += math.prod(high - low for low, high in source.slices)
            resident.append(elements)
        sizes = [math.prod(spec.shape) for spec in self.specs]
        return Graph.build(
            len(self.specs),
            src,
            dst,
            name=self.program.name,
            flops=self.flops,
            output_bytes=np.array(sizes, np.float64) * self.dtype_bytes,
            param_bytes=np.array(resident, np.float64) * self.dtype_bytes,
            bytes_read=np.array(self.read, np.float64) * self.dtype_bytes,
            names=self.names,
            kinds=self.kinds,
            meta_ops=self.meta_ops,
            shards=self.shards,
            tiles=self.places,
            specs=self.specs,
            tensors=self.program.tensors,
            outputs=outputs,
        )


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part ``taken`` of a tile of shape ``shape`` that is ``put`` into a block."""

    source: int | Tile
    shape: tuple[int, ...]
    taken: tuple[Range, ...]
    put: tuple[Range, ...]

    @property
    def covers(self) -> bool:
        """Whether the whole tile is taken."""
        return all(part == (0, size) for part, size in zip(self.taken, self.shape, strict=True))


def _overlaps(bounds: Bounds, low: int, high: int) -> list[tuple[int, Range, Range]]:
    """Tiles that meet [low, high): index, range within the tile, range within the block."""
    found = []
    for tile, (start, stop) in enumerate(itertools.pairwise(bounds)):
        first, last = max(start, low), min(stop, high)
        if first < last:
            found.append((tile, (first - start, last - start), (first - low, last - low)))
    return found


def _formation(pieces: Sequence[_Piece], cover: Covering) -> dict[str, Any]:
    attributes: dict[str, Any] = {"take": tuple(piece.taken for piece in pieces)}
    if len(pieces) > 1:
        attributes["box"] = tuple(high - low for low, high in cover.ranges)
        attributes["put"] = tuple(piece.put for piece in pieces)
    attributes["view"] = cover.shape
    if not cover.exact:
        attributes["keep"] = cover.slices
    return attributes


def _extents(bounds: Sequence[Bounds]) -> list[tuple[int, ...]]:
    sizes = [[high - low for low, high in itertools.pairwise(part)] for part in bounds]
    return list(itertools.product(*sizes))


def _volumes(bounds: Sequence[Bounds]) -> list[float]:
    return [float(math.prod(shape)) for shape in _extents(bounds)]


@lru_cache(maxsize=256)
def _places(counts: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Coordinates of the tiles of a grid, in row-major order."""
    return list(itertools.product(*(range(count) for count in counts)))


@lru_cache(maxsize=256)
def _labels(counts: tuple[int, ...]) -> list[str]:
    return [f"[{','.join(map(str, tile))}]" for tile in _places(counts)]
