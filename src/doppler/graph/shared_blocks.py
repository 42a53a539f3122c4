"""Blocks of parameters that several ops read: a device that runs them holds each but once."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.graph.calls import ATEN
from doppler.graph.dtypes import WIDTHS
from doppler.graph.graph import Graph
from doppler.graph.spec import Tile

# Smaller ones are left out, and so counted for each op: all of them together are next to nothing.
_SHARE = 1e-3


class SharedBlocks(NamedTuple):
    """Who reads which block.

    Attributes
    ----------
    shared_ptr, shared_op : int32 array, shape [blocks + 1], [readers]
        The ops that read each block, at least two.
    shared_bytes : float64 array, shape [blocks]
    """

    shared_ptr: npt.NDArray[np.int32]
    shared_op: npt.NDArray[np.int32]
    shared_bytes: npt.NDArray[np.float64]


def shared_blocks(graph: Graph) -> SharedBlocks:
    """Find the blocks of the tensors of a captured model that several of its ops read.

    Other graphs count a block for each op that reads it: an upper bound. O(inputs of all ops).
    """
    readers: dict[Tile, list[int]] = {}
    if graph.specs is not None and any(spec.function == ATEN for spec in graph.specs):
        for op, spec in enumerate(graph.specs):
            for source in dict.fromkeys(spec.inputs):
                if isinstance(source, Tile):
                    readers.setdefault(source, []).append(op)
    least = _SHARE * float(graph.param_bytes.sum())
    found = [
        (ops, size)
        for tile, ops in readers.items()
        if len(ops) > 1 and (size := _bytes(graph, tile)) > least
    ]
    counts = [len(ops) for ops, _ in found]
    return SharedBlocks(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        np.array([op for ops, _ in found for op in ops], np.int32),
        np.array([size for _, size in found], np.float64),
    )


def _bytes(graph: Graph, tile: Tile) -> float:
    dtype = graph.tensors[tile.tensor].dtype
    elements = math.prod(stop - start for start, stop in tile.slices)
    return float(elements * WIDTHS[dtype or "float32"])
