"""A placement, taken apart for the executor: what follows from the end of every op."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from doppler.checks import check_runtime
from doppler.graph import Graph
from doppler.placement import Placement

IntArray = npt.NDArray[np.int32]
Route = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """What the executor reads, as plain lists: they are faster than arrays, entry by entry.

    Attributes
    ----------
    devices : list of int, length ops
    rank : list of int, length ops, or None
        Order of the ready ops, smallest first: ``priority << 32 | id``. None: first ready, first
        run.
    here : list of tuple of int, length ops
        Consumers of each op's output on its own device.
    away : list of tuple of (device, consumers there), length ops
        Where else the output is needed, in order of the consumers' ids.
    producers : list of tuple of int, length ops
        Ops whose output each op reads.
    kept : list of bool, length ops
        Whether the output stays until the end of the run: results, and ops without consumers.
    """

    devices: list[int]
    rank: list[int] | None
    here: list[tuple[int, ...]]
    away: list[tuple[Route, ...]]
    producers: list[tuple[int, ...]]
    kept: list[bool]


class Neighbors:
    """The edges of a graph as lists, made once for all the placements that follow."""

    def __init__(self, graph: Graph) -> None:
        self.producers = _rows(*graph.predecessors)
        self.consumers = _rows(*graph.successors)
        self.kept = [
            not consumers or op in graph.outputs for op, consumers in enumerate(self.consumers)
        ]


def make_execution_plan(edges: Neighbors, placement: Placement, runtime: str) -> ExecutionPlan:
    """Take a placement apart. O(V + E).

    Raises
    ------
    UnknownNameError
        If the run-time is not known.
    """
    check_runtime(runtime)
    devices = placement.devices.tolist()
    rank = None
    if runtime == "priority" and placement.priority is not None:
        rank = [order << 32 | op for op, order in enumerate(placement.priority.tolist())]
    here: list[tuple[int, ...]] = []
    away: list[tuple[Route, ...]] = []
    for home, consumers in zip(devices, edges.consumers, strict=True):
        by_device: dict[int, list[int]] = {}
        for consumer in consumers:
            by_device.setdefault(devices[consumer], []).append(consumer)
        here.append(tuple(by_device.pop(home, ())))
        away.append(tuple((device, tuple(there)) for device, there in by_device.items()))
    return ExecutionPlan(devices, rank, here, away, edges.producers, edges.kept)


def _rows(pointers: IntArray, entries: IntArray) -> list[tuple[int, ...]]:
    values = entries.tolist()
    return [tuple(values[a:b]) for a, b in pairwise(pointers.tolist())]
