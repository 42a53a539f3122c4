"""Random placements."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from doppler.heuristics.attempts import Attempt, restart, restart_seed
from doppler.heuristics.base import Solution
from doppler.heuristics.incumbent import Incumbent, offer
from doppler.kernels import kernel
from doppler.problem import Problem
from doppler.schedule.free_memory import FreeMemory, choices, clear, take
from doppler.simulator.kernel import Workspace

IntArray = npt.NDArray[np.int32]


@kernel
def _draws(arrays, memory, seed, first, count, limited, work, devices, incumbent):  # type: ignore[no-untyped-def]
    found = np.empty(arrays.compute.shape[1], np.int32)
    priority = np.empty(0, np.int32)
    for index in range(first, first + count):
        np.random.seed(restart_seed(seed, index))
        clear(memory)
        for op in arrays.order:
            n_found = choices(memory, op, found)
            device = found[np.random.randint(0, n_found)]
            take(memory, op, device)
            devices[op] = device
        offer(arrays, devices, priority, index, limited, memory.usable, work, incumbent)


def random(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Draw the device of every op, evenly among those that may take it; restart.

    Restarts until the budget ends, on every core, each restart simulated. No priority: first
    ready, first run.

    Parameters
    ----------
    problem : Problem
    budget : float
        Seconds; 0: one draw.
    seed : int

    Raises
    ------
    MemoryLimitError
        If none of the placements fits in memory.
    """
    arrays = problem.arrays
    limited = problem.may_overflow
    seed = int(seed) % 2**32

    def make_attempt(memory: FreeMemory, work: Workspace, incumbent: Incumbent) -> Attempt:
        devices = np.empty(problem.n_ops, np.int32)

        def attempt(first: int, count: int) -> None:
            _draws(arrays, memory, seed, first, count, limited, work, devices, incumbent)

        return attempt

    return restart(problem, make_attempt, budget=budget, origin="random draw", prioritized=False)
