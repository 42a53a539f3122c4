"""Pipelines: neighboring meta-ops on one device, and the shards of the batch one after another.

A stage is a run of neighboring meta-ops, one stage for each device, so that each parameter lies on
one device however many chains of the batch share it. The order of a stage's work is that of a
schedule; it becomes the priority of the ops. A device whose next op waits for its inputs takes the
one after it, as a pipeline that keeps to its schedule would not.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from doppler.graph import Graph
from doppler.heuristics.stages import cut_stages
from doppler.placement import Placement
from doppler.problem import Problem

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int32]

GPIPE, ONE_F_ONE_B = "gpipe", "1f1b"
FORWARD, BACKWARD = 0, 1
# The gradients of a training step are outputs of such names.
_GRADIENT = "grad:"


def pipelines(problem: Problem) -> list[Placement]:
    """Make a pipeline of each schedule that suits: of one for the forward pass, of two with both.

    Only where ops share parameters and their meta-ops have shards; else there is none to make.
    """
    if not problem.arrays.tile_bytes.size:
        return []
    graph = problem.graph
    microbatches = int(np.bincount(shards_of(graph)).argmax())
    if microbatches < 2:
        return []
    backward = backward_of(graph)
    names = (GPIPE, ONE_F_ONE_B) if backward.any() else (GPIPE,)
    return [pipeline(problem, name, microbatches, backward) for name in names]


def pipeline(
    problem: Problem, name: str, microbatches: int, backward: BoolArray | None = None
) -> Placement:
    """Place a graph whose batch is sharded in stages. O(E + V log V).

    Parameters
    ----------
    problem : Problem
        Stage ``n`` is on device ``n``.
    name : {"gpipe", "1f1b"}
        See :func:`schedule`.
    microbatches : int
        Shards of the batch.
    backward : bool array, shape [ops], optional
        Which ops belong to the backward pass; none by default.
    """
    graph, stages = problem.graph, problem.n_devices
    if backward is None:
        backward = np.zeros(graph.n_ops, np.bool_)
    devices = stages_of(problem, backward)
    turn = np.empty((stages, 2, microbatches), np.int32)
    for stage in range(stages):
        for position, (phase, microbatch) in enumerate(schedule(name, stage, stages, microbatches)):
            turn[stage, phase, microbatch] = position
    turns = turn[devices, backward.astype(np.int32), microbatches_of(graph, microbatches)]
    priority = np.empty(graph.n_ops, np.int32)
    priority[np.lexsort((program_rank(graph), turns))] = np.arange(graph.n_ops)
    return Placement(devices, priority)


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


def stages_of(problem: Problem, backward: BoolArray) -> IntArray:
    """Cut the meta-ops of a graph, in the order of the program, into one stage for each device.

    Balanced by their mean seconds, all shards together, within the memory for parameters if that is
    possible. A meta-op of the backward pass goes where the last one of the same module in the
    forward pass lies.

    Returns
    -------
    int32 array, shape [ops]
    """
    graph, arrays = problem.graph, problem.arrays
    names, meta = np.unique(graph.meta_ops, return_inverse=True)
    first = np.full(names.size, graph.n_ops)
    np.minimum.at(first, meta, program_rank(graph))
    seconds, sizes = np.zeros(names.size), np.zeros(names.size)
    np.add.at(seconds, meta, problem.mean_compute)
    reads = np.repeat(np.arange(graph.n_ops), np.diff(arrays.tile_ptr))
    shared = np.bincount(reads, arrays.tile_bytes[arrays.tile], minlength=graph.n_ops)
    np.maximum.at(sizes, meta, shared)
    np.add.at(sizes, meta, arrays.param_bytes)
    behind = np.zeros(names.size, np.bool_)
    behind[meta[backward]] = True
    order = np.argsort(first, kind="stable")
    order = order[~behind[order]]
    stage = np.zeros(names.size, np.int32)
    ahead = np.repeat(seconds[order, None], problem.n_devices, axis=1)
    found = cut_stages(ahead, sizes[order], arrays.capacity)
    if found is None:
        # Then it is for the search to find what fits.
        found = cut_stages(ahead, sizes[order], np.full(problem.n_devices, np.inf))
    assert found is not None
    stage[order] = found
    last = {module_of(str(names[each])): stage[each] for each in order}
    for each in np.flatnonzero(behind):
        module = module_of(str(names[each]))
        while module and module not in last:
            module = module_of(module)
        stage[each] = last.get(module, problem.n_devices - 1)
    return stage[meta]


def microbatches_of(graph: Graph, microbatches: int) -> IntArray:
    """Microbatch of every op by its place among the shards of its meta-op; the first of a whole."""
    return (graph.shards * microbatches // shards_of(graph)).astype(np.int32)


def shards_of(graph: Graph) -> npt.NDArray[np.int64]:
    """Count the shards of each op's meta-op, shape [ops]."""
    _, meta = np.unique(graph.meta_ops, return_inverse=True)
    shards = np.ones(meta.max() + 1, np.int64)
    np.maximum.at(shards, meta, graph.shards.astype(np.int64) + 1)
    return shards[meta]


def backward_of(graph: Graph) -> BoolArray:
    """Which ops of a training step belong to the backward pass: those that only gradients read.

    Returns
    -------
    bool array, shape [ops]
    """
    forward = np.zeros(graph.n_ops, np.bool_)
    results = [op for op, tile in graph.outputs.items() if not tile.tensor.startswith(_GRADIENT)]
    if not results:
        return forward
    forward[results] = True
    pointers, producers = graph.predecessors
    for op in graph.topological_order[::-1]:
        if forward[op]:
            forward[producers[pointers[op] : pointers[op + 1]]] = True
    return ~forward


def module_of(meta_op: str) -> str:
    """Path of the module that a meta-op of a captured graph belongs to.

    A sum of the gradients of a parameter belongs to the module of the parameter.
    """
    return meta_op.removeprefix(_GRADIENT).rpartition(".")[0]


def program_rank(graph: Graph) -> IntArray:
    """Place of each op in the order of the program: that of the ids, if it can run so.

    Returns
    -------
    int32 array, shape [ops]
    """
    if (graph.src < graph.dst).all():
        return np.arange(graph.n_ops, dtype=np.int32)
    rank = np.empty(graph.n_ops, np.int32)
    rank[graph.topological_order] = np.arange(graph.n_ops)
    return rank
