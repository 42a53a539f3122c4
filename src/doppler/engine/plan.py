"""A placement, taken apart for the executor: what follows from the end of every op."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from doppler.errors import PlacementError
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
    PlacementError
        If the run-time is not known.
    """
    if runtime not in ("priority", "fifo"):
        raise PlacementError(f"runtime {runtime!r}: must be 'priority' or 'fifo'")
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


def check_placement(graph: Graph, placement: Placement, device_names: tuple[str, ...]) -> None:
    """Check that a placement suits a graph and the devices.

    Raises
    ------
    PlacementError
        On another number of ops, a missing device, an op on another device than its pin, or a
        colocation group that is split.
    """
    devices = placement.devices
    if devices.size != graph.n_ops:
        raise PlacementError(
            f"placement: {devices.size} ops, but graph {graph.name!r} has {graph.n_ops}"
        )
    if devices.max() >= len(device_names):
        op = int(devices.argmax())
        raise PlacementError(
            f"placement: op {op} ({graph.names[op]}) is on device {devices[op]}, but the backend "
            f"has {len(device_names)} ({', '.join(device_names)})"
        )
    astray = np.flatnonzero((graph.pinned >= 0) & (graph.pinned != devices))
    if astray.size:
        op = int(astray[0])
        raise PlacementError(
            f"placement: op {op} ({graph.names[op]}) is on device {devices[op]}, but pinned to "
            f"device {graph.pinned[op]}"
        )
    grouped = np.flatnonzero(graph.colocation >= 0)
    order = grouped[np.argsort(graph.colocation[grouped], kind="stable")]
    group = graph.colocation[order]
    split = np.flatnonzero((group[1:] == group[:-1]) & (devices[order[1:]] != devices[order[:-1]]))
    if split.size:
        op, other = int(order[split[0] + 1]), int(order[split[0]])
        raise PlacementError(
            f"placement: colocation group {graph.colocation[op]} is split over devices "
            f"{devices[other]} and {devices[op]} (op {op}, {graph.names[op]})"
        )


def _rows(pointers: IntArray, entries: IntArray) -> list[tuple[int, ...]]:
    values = entries.tolist()
    return [tuple(values[a:b]) for a, b in pairwise(pointers.tolist())]
