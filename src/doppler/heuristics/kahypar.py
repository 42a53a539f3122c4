"""Mt-KaHyPar behind one function: a hypergraph in arrays to the block of every vertex.

L. Gottesbüren, T. Heuer, N. Maas, P. Sanders and S. Schlag, "Scalable High-Quality Hypergraph
Partitioning", ACM Transactions on Algorithms 20(1), 2024; mapping onto a target graph: T. Heuer,
"A Direct k-Way Hypergraph Partitioning Algorithm for Optimizing the Steiner Tree Metric",
ALENEX 2024.

The library is imported at first use: it is compiled for common systems only, and nothing else
needs it.
"""

from __future__ import annotations

import importlib.util
import itertools
import threading
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from doppler.cores import cores
from doppler.errors import MissingPackageError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# Sums of weights stay far below 2**31, as the library's own are of 32 bits.
TOTAL_WEIGHT = 100_000_000
# The same for the sum of the hyperedges' weights times the longest distance of a target graph.
TOTAL_COST = 400_000_000

# The generator is the library's, one for all threads.
_lock = threading.Lock()


def available() -> bool:
    """Say whether Mt-KaHyPar is installed."""
    try:
        return importlib.util.find_spec("mtkahypar") is not None
    except ValueError:  # it was blocked
        return False


class Library:
    """Mt-KaHyPar with a number of threads.

    Parameters
    ----------
    threads : int, optional
        By default one per core; the blocks do not depend on it.

    Raises
    ------
    MissingPackageError
        If Mt-KaHyPar is not installed or does not load here; says what to do.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._module = _module()
        self._start = _start(max(1, threads or cores()))

    def split(
        self,
        pin_ptr: IntArray,
        pins: IntArray,
        hyperedge_weight: FloatArray,
        vertex_weight: FloatArray,
        fixed: IntArray,
        share: FloatArray,
        imbalance: float,
        seed: int,
        distance: FloatArray | None = None,
    ) -> IntArray:
        """Split the vertices into blocks; equal arguments give equal blocks.

        Parameters
        ----------
        pin_ptr, pins : int32 array
            Pins of each hyperedge.
        hyperedge_weight : float64 array, shape [hyperedges]
            At least 0, of any unit.
        vertex_weight : float64 array, shape [vertices]
            At least 0, of any unit.
        fixed : int32 array, shape [vertices]
            Block of the vertices that have one already, -1 of the others.
        share : float64 array, shape [blocks]
            Part of the weight that each block should get; greater than 0, of any unit.
        imbalance : float
            By how much of its share a block may exceed it.
        seed : int
        distance : float64 array, shape [blocks, blocks], optional
            Cost of moving one unit of hyperedge weight between two blocks. The objective is then
            the weight of the Steiner trees of the hyperedges; left out, it is the number of blocks
            of each hyperedge less one, times its weight.

        Returns
        -------
        int32 array, shape [vertices]
        """
        module = self._module
        n_blocks, n_vertices, n_edges = len(share), len(vertex_weight), len(pin_ptr) - 1
        ends = pin_ptr.tolist()
        flat = pins.tolist()
        edges = [flat[a:b] for a, b in itertools.pairwise(ends)]
        weight = _whole(vertex_weight, TOTAL_WEIGHT)
        part = share / share.sum() * weight.sum()
        room = np.ceil(part * max(1 + imbalance, _packing(weight, part))) + 1
        far = 1
        # The library ends the process where there is nothing to map.
        if distance is not None and n_edges:
            scaled = _distances(distance)
            far = int(scaled.max())
        cost = _whole(hyperedge_weight, TOTAL_COST // (4 * far))
        with _lock:
            module.set_seed(seed % 2**31)
            context = self._start.context_from_preset(module.PresetType.DETERMINISTIC)
            context.logging = False
            if distance is None or not n_edges:
                context.set_partitioning_parameters(n_blocks, imbalance, module.Objective.KM1)
            else:
                context.set_mapping_parameters(n_blocks, imbalance)
            context.set_individual_target_block_weights(room.astype(np.int64).tolist())
            hypergraph = self._start.create_hypergraph(
                context, n_vertices, n_edges, edges, weight.tolist(), cost.tolist()
            )
            if (fixed >= 0).any():
                hypergraph.add_fixed_vertices(fixed.tolist(), n_blocks)
            if distance is None or not n_edges:
                blocks = hypergraph.partition(context)
            else:
                above = [(a, b) for a in range(n_blocks) for b in range(a + 1, n_blocks)]
                target = self._start.create_target_graph(
                    context, n_blocks, len(above), above, [int(scaled[a, b]) for a, b in above]
                )
                blocks = hypergraph.map_onto_graph(target, context)
            return np.array(blocks.get_partition(), np.int32)


def _whole(weight: FloatArray, total: int) -> npt.NDArray[np.int64]:
    """Weights as whole numbers of about the given sum, at least 1: the library hangs on zeros."""
    most = weight.sum()
    if most <= 0:
        return np.ones(len(weight), np.int64)
    whole: npt.NDArray[np.int64] = np.rint(weight * (total / most)).astype(np.int64)
    whole[whole < 1] = 1
    return whole


@njit(cache=True, nogil=True)
def _packing(weight, part):  # type: ignore[no-untyped-def]
    """How much more than its part a block must take for the vertices to fit. O(V (k + log V)).

    The heaviest first, each to the block that it fills least. The library crashes or hangs where
    there is no split within the limits, which a few heavy vertices make so.

    Parameters
    ----------
    weight : int64 array, shape [vertices]
    part : float64 array, shape [blocks]
        Weight that each block should get.
    """
    load = np.zeros(len(part))
    for vertex in np.argsort(-weight):
        chosen = 0
        for block in range(1, len(part)):
            if (load[block] + weight[vertex]) * part[chosen] < (
                load[chosen] + weight[vertex]
            ) * part[block]:
                chosen = block
        load[chosen] += weight[vertex]
    return (load / part).max()


def _distances(distance: FloatArray) -> npt.NDArray[np.int64]:
    """Symmetric distances as whole numbers, the shortest 4, the longest 400 at most."""
    both = (distance + distance.T) / 2
    off = both[~np.eye(len(both), dtype=bool)]
    shortest = off[off > 0].min() if (off > 0).any() else 1.0
    scaled: npt.NDArray[np.int64] = np.rint(both / shortest * 4).clip(1, 400).astype(np.int64)
    return scaled


def _module() -> Any:
    try:
        import mtkahypar
    except ImportError as error:
        raise MissingPackageError(
            "method 'partition' needs Mt-KaHyPar: pip install 'mtkahypar>=1.7', which has wheels "
            f"for Linux, macOS and Windows, or choose another method ({error})"
        ) from error
    return mtkahypar


@cache
def _start(threads: int) -> Any:
    return _module().initialize(threads, False)
