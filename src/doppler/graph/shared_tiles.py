"""Tiles that several ops of a graph read: a device that runs some of them holds each tile once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.graph.calls import ATEN
from doppler.graph.dtypes import WIDTHS
from doppler.graph.spec import Tile

if TYPE_CHECKING:
    from doppler.graph.graph import Graph

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


class SharedTiles(NamedTuple):
    """What ops hold together, and what each holds alone.

    Attributes
    ----------
    pointers, tiles : int32 array, shape [ops + 1] and [reads]
        CSR: the shared tiles that each op reads.
    sizes : float64 array, shape [tiles]
        Bytes of each shared tile.
    own : float64 array, shape [ops]
        Bytes of the op's parameters that no other op reads.
    """

    pointers: IntArray
    tiles: IntArray
    sizes: FloatArray
    own: FloatArray

    @property
    def total(self) -> float:
        """Bytes of all parameters, each counted once."""
        return float(self.own.sum() + self.sizes.sum())


def shared_tiles(graph: Graph) -> SharedTiles:
    """Find the tiles that more than one op of a captured graph reads. O(V + reads).

    The chains of a model that is sharded along its batch share all parameters. Of the generated
    workloads none are told: there ``param_bytes`` counts each tile for every op, an upper bound.
    """
    readers: dict[Tile, list[int]] = {}
    for op, spec in enumerate(graph.specs or ()):
        if spec.function == ATEN:
            for tile in {each for each in spec.inputs if isinstance(each, Tile)}:
                readers.setdefault(tile, []).append(op)
    shared = {tile: ops for tile, ops in readers.items() if len(ops) > 1}
    sizes = np.array([_size(graph, tile) for tile in shared], np.float64)
    op_of = np.array([op for ops in shared.values() for op in ops], np.int32)
    tile_of = np.repeat(np.arange(len(shared), dtype=np.int32), [*map(len, shared.values())])
    order = np.lexsort((tile_of, op_of))
    pointers = np.zeros(graph.n_ops + 1, np.int32)
    np.cumsum(np.bincount(op_of, minlength=graph.n_ops), out=pointers[1:])
    together = np.bincount(op_of, sizes[tile_of], minlength=graph.n_ops)
    own = np.maximum(0.0, graph.param_bytes - together) if shared else graph.param_bytes
    return SharedTiles(pointers, tile_of[order], sizes, own)


def _size(graph: Graph, tile: Tile) -> float:
    width = WIDTHS[graph.tensors[tile.tensor].dtype or "float32"]
    return float(math.prod(stop - start for start, stop in tile.slices) * width)
