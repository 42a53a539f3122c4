"""Devices by turns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from doppler.heuristics.attempts import answer_once
from doppler.heuristics.base import Solution
from doppler.kernels import kernel
from doppler.problem import Problem
from doppler.schedule.free_memory import FreeMemory, choices, clear, take

IntArray = npt.NDArray[np.int32]


@kernel
def _deal(arrays, memory, devices, priority):  # type: ignore[no-untyped-def]
    clear(memory)
    n_devices = arrays.compute.shape[1]
    found = np.empty(n_devices, np.int32)
    turn = 0
    for step in range(len(arrays.order)):
        op = arrays.order[step]
        n_found = choices(memory, op, found)
        device = found[0]
        for index in range(n_found):
            if found[index] >= turn:
                device = found[index]
                break
        take(memory, op, device)
        devices[op] = device
        priority[op] = step
        turn = (device + 1) % n_devices


def round_robin(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Deal the ops, in topological order, to the devices by turns.

    A device that may not take the op (its kind, pin, group or memory) is skipped. Deterministic;
    budget and seed are not used. O(V devices).

    Raises
    ------
    MemoryLimitError
        If the placement does not fit in memory.
    """

    def construct(memory: FreeMemory) -> tuple[IntArray, IntArray]:
        devices = np.empty(problem.n_ops, np.int32)
        priority = np.empty(problem.n_ops, np.int32)
        _deal(problem.arrays, memory, devices, priority)
        return devices, priority

    return answer_once(problem, construct, budget=budget, origin="round robin")
