"""A hint: a placement of the whole graph that the placement policy may follow or leave, op by op.

A list schedule sees one op at a time and cannot tell what belongs together; a partition of the
whole graph can. PLC is told, for each device, whether the hint would take it, and learns when that
is worth an idle moment.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.placement import Placement
from doppler.problem import Problem
from doppler.schedule.ranks import rank_of
from doppler.simulator import simulate

IntArray = npt.NDArray[np.int32]
SingleArray = npt.NDArray[np.float32]

# The most that a hint's distance to the lower bound counts for, as a logarithm.
MOST_ABOVE_BOUND = 4.0


SUMMARY = ("hinted", "above_bound", "cut", "cut_between_nodes", "imbalance")


class Hint(NamedTuple):
    """What the rollout knows of a hint.

    Attributes
    ----------
    devices : int32 array, shape [ops] or [0]
        Device of each op; empty: there is no hint.
    nodes : int32 array, shape [devices]
        Node of each device.
    above_bound : float
        Logarithm of the hint's makespan over the lower bound: how much there is to gain by leaving
        it, at most.
    summary : float32 array, shape [len(SUMMARY)]
        What the style of an episode depends on; zeros stand for no hint.
    """

    devices: IntArray
    nodes: IntArray
    above_bound: float
    summary: SingleArray


def no_hint(problem: Problem) -> Hint:
    """Return what stands for no hint."""
    summary = np.zeros(len(SUMMARY), np.float32)
    return Hint(np.empty(0, np.int32), problem.nodes.copy(), 0.0, summary)


def make_hint(problem: Problem, devices: npt.ArrayLike, makespan: float | None = None) -> Hint:
    """Make a hint of a placement's devices.

    Parameters
    ----------
    problem : Problem
    devices : int array, shape [ops]
    makespan : float, optional
        Seconds; left out: simulated, the ops of each device by b-level.

    Raises
    ------
    PlacementError
        If the devices do not suit the problem.
    """
    placed = np.require(devices, np.int32, ["C", "W", "E"]).copy()
    order = np.argsort(-problem.b_level(problem.mean_compute, transfers=True), kind="stable")
    placement = Placement(placed, rank_of(order.astype(np.int32)))
    placement.validate(problem)
    if makespan is None:
        makespan = simulate(problem, placement).makespan
    above = np.log(max(makespan, 1e-300) / max(problem.lower_bound, 1e-300))
    above = float(np.clip(above, 0.0, MOST_ABOVE_BOUND))
    nodes, graph = problem.nodes, problem.graph
    moved = problem.mean_transfer[graph.src]
    total = max(float(moved.sum()), 1e-300)
    source, target = placed[graph.src], placed[graph.dst]
    load = np.bincount(placed, problem.mean_compute, minlength=problem.n_devices)
    summary = (
        1.0,
        above,
        moved[source != target].sum() / total,
        moved[nodes[source] != nodes[target]].sum() / total,
        np.log(max(load.max(), 1e-300) / max(load.mean(), 1e-300)),
    )
    return Hint(placed, nodes.copy(), above, np.array(summary, np.float32))
