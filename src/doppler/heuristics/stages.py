"""Pipeline stages: runs of neighboring meta-ops, one for each device, that fit in its memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from doppler.errors import MemoryLimitError
from doppler.graph.structure import structure
from doppler.heuristics.base import Deadline, Solution
from doppler.heuristics.heft import upward_order
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.schedule.ranks import rank_of
from doppler.simulator import describe_overflow, simulate

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# Of a device's memory, for parameters: the rest is for what is computed.
_SHARES = (0.95, 0.85, 0.7, 0.5)


def stages(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Cut the meta-ops, in the order of the graph, into a stage for each device.

    All ops of a meta-op go to one device, so that what they share lies there once, as in a pipeline
    (Huang et al., "GPipe", NeurIPS 2019). The cut makes the longest stage as short as the memory
    for parameters allows. Deterministic: for less and less of that memory, and with two orders of
    the ops, until one fits; budget and seed are not used. O(V + E) for each try.

    Raises
    ------
    MemoryLimitError
        If none fits.
    """
    deadline = Deadline(budget)
    meta = np.unique(structure(problem.graph).meta, return_inverse=True)[1].astype(np.int32)
    order = np.argsort(_places(problem, meta), kind="stable")
    seconds = _by_stage(problem, meta, order)
    sizes = _parameter_bytes(problem, meta)[order]
    capacity = problem.arrays.capacity
    # Depth first, a chain keeps few outputs waiting; by the longest path they start soonest.
    depth_first = np.empty(problem.n_ops, np.int32)
    depth_first[problem.arrays.order] = np.arange(problem.n_ops, dtype=np.int32)
    if problem.graph.tiles.shape[1]:
        chains = problem.graph.tiles[:, 0].astype(np.int64)
        depth_first = rank_of(np.lexsort((depth_first, chains)).astype(np.int32))
    tried = 0
    peak: FloatArray = np.zeros(problem.n_devices)
    best: tuple[float, Placement] | None = None
    for share in _SHARES:
        cut = cut_stages(seconds, sizes, share * capacity)
        if cut is None:
            continue
        stage = np.empty(order.size, np.int32)
        stage[order] = cut
        devices = stage[meta]
        for priority in (rank_of(upward_order(problem)), depth_first):
            placement = Placement(devices, priority)
            result = simulate(problem, placement)
            tried += 1
            peak = result.peak_memory
            fits = bool((peak <= capacity).all())
            if fits and (best is None or result.makespan < best[0]):
                best = result.makespan, placement
        if best is not None:
            makespan, placement = best
            return Solution(placement, makespan, tried, deadline.elapsed, "pipeline stages")
    why = describe_overflow(problem, peak) if tried else "the parameters of a stage do not fit"
    raise MemoryLimitError(f"{problem.graph.name}: pipeline stages: {why}")


def cut_stages(seconds: FloatArray, sizes: FloatArray, room: FloatArray) -> IntArray | None:
    """Cut a sequence into stages whose longest is as short as it can be.

    Bisection over the length of the longest; each is tried by filling one stage after another.
    O(items log(1 / precision)).

    Parameters
    ----------
    seconds : float64 array, shape [items, stages]
        Time of each item on the device of each stage.
    sizes : float64 array, shape [items]
        Bytes that it needs.
    room : float64 array, shape [stages]
        Bytes that each stage may need.

    Returns
    -------
    int32 array, shape [items], or None
        Stage of each item, rising from 0; None where no cut has room.
    """

    def filled(longest: float) -> IntArray | None:
        found = np.empty(sizes.size, np.int32)
        stage, time, size = 0, 0.0, 0.0
        for item in range(sizes.size):
            while stage < room.size and (
                time + seconds[item, stage] > longest or size + sizes[item] > room[stage]
            ):
                stage, time, size = stage + 1, 0.0, 0.0
            if stage == room.size:
                return None
            time, size = time + seconds[item, stage], size + sizes[item]
            found[item] = stage
        return found

    finite = np.where(np.isfinite(seconds), seconds, 0.0)
    short, long = 0.0, float(finite.max(axis=1).sum()) * (1 + 1e-9)
    best = filled(long)
    while best is not None and long - short > 1e-4 * long:
        middle = (short + long) / 2
        found = filled(middle)
        if found is None:
            short = middle
        else:
            best, long = found, middle
    return best


def _places(problem: Problem, meta: IntArray) -> FloatArray:
    """Where each meta-op lies in the graph: the mean place of its ops, shape [metas]."""
    place = np.empty(problem.n_ops)
    place[problem.arrays.order] = np.arange(problem.n_ops)
    # Ops of the same depth come in the order of their numbers.
    place = np.lexsort((place, problem.graph.depth)).argsort().astype(np.float64)
    return np.asarray(np.bincount(meta, place) / np.bincount(meta))


def _by_stage(problem: Problem, meta: IntArray, order: npt.NDArray[np.int64]) -> FloatArray:
    """Seconds of each meta-op, in order, on each device, shape [metas, devices]."""
    columns = [np.bincount(meta, column) for column in problem.arrays.compute.T]
    return np.ascontiguousarray(np.stack(columns, axis=1)[order])


def _parameter_bytes(problem: Problem, meta: IntArray) -> FloatArray:
    """Bytes of the parameters of each meta-op, what its ops share once, shape [metas]."""
    arrays = problem.arrays
    sizes = np.bincount(meta, arrays.param_bytes)
    reader = np.repeat(meta, np.diff(arrays.tile_ptr))
    for owner, tile in np.unique(np.stack([reader, arrays.tile]), axis=1).T:
        sizes[owner] += arrays.tile_bytes[tile]
    return np.asarray(sizes)
