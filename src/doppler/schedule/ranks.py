"""Priorities as a total order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from doppler.placement import Placement
from doppler.problem import Problem
from doppler.simulator import simulate

IntArray = npt.NDArray[np.int32]


def ranks(problem: Problem, placement: Placement) -> IntArray:
    """Return the placement's priorities as a total order, rank per op.

    Without priorities it is the order in which the simulated first-ready-first-run starts the ops.
    """
    if placement.priority is None:
        order = simulate(problem, placement).trace.op
    else:
        order = np.argsort(placement.priority, kind="stable").astype(np.int32)
    return rank_of(order)


def rank_of(order: IntArray) -> IntArray:
    """Invert an order of ops: the rank of each op, shape [ops]."""
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return rank
