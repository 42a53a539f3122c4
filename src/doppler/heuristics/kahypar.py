"""Mt-KaHyPar behind one function: a hypergraph in arrays to the block of every vertex.

L. Gottesbüren, T. Heuer, N. Maas, P. Sanders and S. Schlag, "Scalable High-Quality Hypergraph
Partitioning", ACM Transactions on Algorithms 20(1), 2024.

The library is imported at first use: it is compiled for common systems only, and nothing else
needs it.
"""

from __future__ import annotations

import importlib.util
import itertools
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from doppler.cores import cores
from doppler.errors import MissingPackageError
from doppler.kernels import kernel

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

CONFIGURATION = Path(__file__).with_name("kahypar.ini")
# Sums of weights stay far below 2**31, as the library's own are of 32 bits.
TOTAL_WEIGHT = 100_000_000
TOTAL_COST = 100_000_000

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
    ) -> IntArray:
        """Split the vertices into blocks; equal arguments give equal blocks.

        The objective is the number of blocks of each hyperedge less one, times its weight (km1).

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

        Returns
        -------
        int32 array, shape [vertices]
        """
        module = self._module
        n_blocks, n_vertices, n_edges = len(share), len(vertex_weight), len(pin_ptr) - 1
        if n_blocks == 1:
            return np.zeros(n_vertices, np.int32)
        # The library's own seed changes nothing where it is deterministic; the numbering does.
        number = np.random.default_rng(seed).permutation(n_vertices)
        back = np.argsort(number)
        ends = pin_ptr.tolist()
        flat = number[pins].tolist()
        edges = [flat[a:b] for a, b in itertools.pairwise(ends)]
        weight = _whole(vertex_weight, TOTAL_WEIGHT)
        cost = _whole(hyperedge_weight, TOTAL_COST)
        part = share / share.sum() * weight.sum()
        room = np.ceil(part * max(1 + imbalance, _packing(weight, part))) + 1
        if room.sum() >= 2**31:
            # The library adds the limits up in 32 bits, too.
            weight = _whole(vertex_weight, int(TOTAL_WEIGHT / room.sum() * TOTAL_WEIGHT))
            part = share / share.sum() * weight.sum()
            room = np.ceil(part * max(1 + imbalance, _packing(weight, part))) + 1
        with _lock:
            module.set_seed(seed % 2**31)
            context = self._start.context_from_file(str(CONFIGURATION))
            context.logging = False
            context.set_partitioning_parameters(n_blocks, imbalance, module.Objective.KM1)
            context.set_individual_target_block_weights(room.astype(np.int64).tolist())
            hypergraph = self._start.create_hypergraph(
                context, n_vertices, n_edges, edges, weight[back].tolist(), cost.tolist()
            )
            if (fixed >= 0).any():
                hypergraph.add_fixed_vertices(fixed[back].tolist(), n_blocks)
            blocks = np.array(hypergraph.partition(context).get_partition(), np.int32)
        return blocks[number]


def _whole(weight: FloatArray, total: int) -> npt.NDArray[np.int64]:
    """Weights as whole numbers of about the given sum, at least 1: the library hangs on zeros."""
    most = weight.sum()
    if most <= 0:
        return np.ones(len(weight), np.int64)
    whole: npt.NDArray[np.int64] = np.rint(weight / most * total).astype(np.int64)
    whole[whole < 1] = 1
    return whole


@kernel
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
