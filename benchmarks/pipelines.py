"""The schedules of torch.distributed.pipelining, as placements of a graph whose batch is sharded.

A stage is a run of neighboring meta-ops, one stage for each device. A microbatch is a shard of the
batch. The order of a stage's work is the schedule's; it becomes the priority of the ops. A device
whose next op waits for its inputs takes the one after it, which torch's schedules do not: what is
simulated is as fast as they are, or faster, and may keep more activations.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from layer_maps import module_of, program_rank

from doppler import Placement, Problem
from doppler.graph import Graph

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float64]

GPIPE, ONE_F_ONE_B = "gpipe", "1f1b"
FORWARD, BACKWARD = 0, 1


def schedule(name: str, stage: int, stages: int, microbatches: int) -> Iterator[tuple[int, int]]:
    """Go through the (phase, microbatch) of a stage in the order of a schedule.

    GPipe (Huang et al., NeurIPS 2019) runs all microbatches forward, then all backward; 1F1B
    (PipeDream-Flush, Narayanan et al., ICML 2021) turns to the backward pass of a microbatch as
    soon as there is one, so that fewer activations are kept. Forward passes alone come in the same
    order from both.
    """
    ahead = microbatches if name == GPIPE else min(microbatches, stages - stage)
    for microbatch in range(ahead):
        yield FORWARD, microbatch
    for microbatch in range(microbatches):
        yield BACKWARD, microbatch
        if ahead + microbatch < microbatches:
            yield FORWARD, ahead + microbatch


def contiguous(seconds: FloatArray, sizes: FloatArray, stages: int, capacity: float) -> IntArray:
    """Cut a sequence into stages whose longest is as short as it can be.

    Bisection over the length of the longest, each tried by filling one stage after another.
    O(items log(1 / precision)).

    Parameters
    ----------
    seconds, sizes : float64 array, shape [items]
        Time of each item, and bytes of its parameters.
    stages : int
    capacity : float
        Bytes that a stage may hold; where no cut keeps to it, it does not count.

    Returns
    -------
    int32 array, shape [items]
        Stage of each item, rising from 0.
    """

    def filled(longest: float, most: float) -> IntArray | None:
        stage, time, size = 0, 0.0, 0.0
        found = np.empty(seconds.size, np.int32)
        for item in range(seconds.size):
            time, size = time + seconds[item], size + sizes[item]
            if (time > longest or size > most) and item and found[item - 1] == stage:
                stage, time, size = stage + 1, seconds[item], sizes[item]
            if stage >= stages or time > longest or size > most:
                return None
            found[item] = stage
        return found

    if filled(np.inf, capacity) is None:
        capacity = np.inf
    short, long = seconds.sum() / stages, seconds.sum() * (1 + 1e-9)
    while long - short > 1e-6 * long:
        middle = (short + long) / 2
        if filled(middle, capacity) is None:
            short = middle
        else:
            long = middle
    best = filled(long, capacity)
    assert best is not None
    return best


def stages_of(problem: Problem, backward: npt.NDArray[np.bool_] | None = None) -> IntArray:
    """Cut the meta-ops of a graph, in the order of the program, into one stage for each device.

    Balanced by their seconds on the first device, all shards together, within its memory for
    parameters. A meta-op of the backward pass goes where that of the same module in the forward
    pass that runs last lies.

    Returns
    -------
    int32 array, shape [ops]
    """
    graph = problem.graph
    if backward is None:
        backward = np.zeros(graph.n_ops, bool)
    names, meta = np.unique(graph.meta_ops, return_inverse=True)
    rank = program_rank(graph)
    first = np.full(names.size, graph.n_ops)
    np.minimum.at(first, meta, rank)
    seconds, sizes = np.zeros(names.size), np.zeros(names.size)
    np.add.at(seconds, meta, problem.arrays.compute[:, 0])
    np.maximum.at(sizes, meta, problem.arrays.param_bytes)
    behind = np.zeros(names.size, bool)
    behind[meta[backward]] = True
    order = np.argsort(first, kind="stable")
    order = order[~behind[order]]
    stage = np.zeros(names.size, np.int32)
    stage[order] = contiguous(
        seconds[order], sizes[order], problem.n_devices, float(problem.arrays.capacity[0])
    )
    last = {module_of(str(names[each])): stage[each] for each in order}
    for each in np.flatnonzero(behind):
        module = module_of(str(names[each]))
        while module and module not in last:
            module = module_of(module)
        stage[each] = last.get(module, problem.n_devices - 1)
    return stage[meta].astype(np.int32)


def microbatches_of(graph: Graph, microbatches: int) -> IntArray:
    """Microbatch of every op by its place among the shards of its meta-op; the first of a whole."""
    _, meta = np.unique(graph.meta_ops, return_inverse=True)
    shards = np.ones(meta.max() + 1, np.int64)
    np.maximum.at(shards, meta, graph.shards.astype(np.int64) + 1)
    return (graph.shards * microbatches // shards[meta]).astype(np.int32)


def pipeline(
    problem: Problem,
    name: str,
    microbatches: int,
    backward: npt.NDArray[np.bool_] | None = None,
) -> Placement:
    """Place a graph whose batch is sharded as a pipeline schedule would run it.

    Parameters
    ----------
    problem : Problem
        Stage ``n`` is on device ``n``.
    name : {"gpipe", "1f1b"}
    microbatches : int
        Shards of the batch.
    backward : bool array, shape [ops], optional
        Which ops belong to the backward pass; none by default.
    """
    graph, stages = problem.graph, problem.n_devices
    devices = stages_of(problem, backward)
    phase = np.zeros(graph.n_ops, np.int32) if backward is None else backward.astype(np.int32)
    turn = np.empty((stages, 2, microbatches), np.int32)
    for stage in range(stages):
        for position, (which, microbatch) in enumerate(schedule(name, stage, stages, microbatches)):
            turn[stage, which, microbatch] = position
    turns = turn[devices, phase, microbatches_of(graph, microbatches)]
    return Placement(devices, _ordered(turns, program_rank(graph)))


def data_parallel(problem: Problem, microbatches: int) -> Placement:
    """Give each device its share of the batch, and all parameters."""
    micro = microbatches_of(problem.graph, microbatches)
    return Placement(micro * problem.n_devices // microbatches, program_rank(problem.graph))


def _ordered(*keys: IntArray) -> IntArray:
    """Rank by the first key, then by the next."""
    rank = np.empty(keys[0].size, np.int32)
    rank[np.lexsort(keys[::-1])] = np.arange(keys[0].size)
    return rank
