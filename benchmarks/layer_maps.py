"""Placements of captured graphs that others make: by accelerate's maps, and data parallelism."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from doppler import Cluster, Graph, Placement, Problem
from doppler.heuristics.pipeline import microbatches_of, module_of, program_rank

if TYPE_CHECKING:
    from torch.nn import Module

#: How accelerate fills devices: each in turn up to its memory, or all alike.
FILLED, BALANCED = "auto", "balanced"


def device_map(model: Module, cluster: Cluster, how: str = BALANCED) -> dict[str, int] | None:
    """Return the map that ``infer_auto_device_map`` gives, module to device.

    Parameters
    ----------
    model : Module
        Blocks that it names in ``_no_split_modules``, as transformers' models do, stay whole.
    cluster : Cluster
        Its devices are those of accelerate, with their memory.
    how : {"auto", "balanced"}
        Memory as it is, or what ``get_balanced_memory`` makes of it.

    Returns
    -------
    dict or None
        None where accelerate would leave parameters on the host or on the disk.
    """
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    # It warns of each device that this machine does not have.
    logger = logging.getLogger("accelerate.utils.modeling")
    level = logger.level
    logger.setLevel(logging.ERROR)
    whole = getattr(model, "_no_split_modules", None)
    try:
        memory = {index: int(min(each.memory, 1e15)) for index, each in enumerate(cluster.devices)}
        if how == BALANCED:
            memory = get_balanced_memory(model, memory, no_split_module_classes=whole)
        found = infer_auto_device_map(model, memory, no_split_module_classes=whole)
    finally:
        logger.setLevel(level)
    if not all(isinstance(device, int) for device in found.values()):
        return None
    return dict(found)


def by_modules(graph: Graph, devices: Mapping[str, int]) -> Placement:
    """Place every op where its module lies, in the order of the program.

    An op that lies in no module of the map runs where what it reads was made last, or if it reads
    nothing, where it is read first: parameters have homes, other tensors follow.

    Parameters
    ----------
    graph : Graph
        Its meta-ops are named ``MODULE.OP``.
    devices : mapping of str to int
        From paths of modules; the longest that holds an op counts, and ``""`` holds all.
    """
    rank = program_rank(graph)
    order = np.argsort(rank)
    placed = np.array([_home(module_of(name), devices) for name in graph.meta_ops], np.int32)
    before_ptr, before = graph.predecessors
    after_ptr, after = graph.successors
    for op in order:
        read = before[before_ptr[op] : before_ptr[op + 1]]
        read = read[placed[read] >= 0]
        if placed[op] < 0 and read.size:
            placed[op] = placed[read[rank[read].argmax()]]
    for op in order[::-1]:
        readers = after[after_ptr[op] : after_ptr[op + 1]]
        if placed[op] < 0:
            placed[op] = placed[readers[rank[readers].argmin()]] if readers.size else 0
    return Placement(placed, rank)


def _home(module: str, devices: Mapping[str, int]) -> int:
    while module and module not in devices:
        module = module_of(module)
    return devices.get(module, -1)


def data_parallel(problem: Problem, parts: int) -> Placement:
    """Give each device its share of the batch, which is in so many parts, and all parameters."""
    microbatch = microbatches_of(problem.graph, parts)
    return Placement(microbatch * problem.n_devices // parts, program_rank(problem.graph))
