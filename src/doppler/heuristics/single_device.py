"""Everything on one device."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from doppler.errors import MemoryLimitError
from doppler.heuristics.attempts import answer_once
from doppler.heuristics.base import Deadline, Solution
from doppler.kernels import kernel
from doppler.problem import Problem
from doppler.schedule.free_memory import FreeMemory, choices, clear, take

IntArray = npt.NDArray[np.int32]


def single_device(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Place every op on the device with the least total time on which all fits.

    An op that may not run there (its kind, pin or colocation group) goes to the device that runs
    it fastest. Deterministic; budget and seed are not used.

    Raises
    ------
    MemoryLimitError
        If no device has room; says how much is missing on the fastest.
    """
    deadline = Deadline(budget)
    compute = problem.arrays.compute
    fastest = problem.least_compute
    can = np.isfinite(compute)
    # The fewest ops elsewhere first: a device that cannot run them is not a single device.
    total = np.where(can, compute, fastest[:, None]).sum(axis=0)
    ranked = np.lexsort((total, (~can).sum(axis=0)))
    failure: MemoryLimitError | None = None
    for tried, home in enumerate(ranked.tolist(), start=1):
        origin = f"all on device {problem.cluster.devices[home].name!r}"
        try:
            found = answer_once(
                problem, partial(_around, problem, home), budget=budget, origin=origin
            )
        except MemoryLimitError as error:
            failure = failure or error
            continue
        return Solution(found.placement, found.makespan, tried, deadline.elapsed, found.origin)
    assert failure is not None
    raise failure


def _around(problem: Problem, home: int, memory: FreeMemory) -> tuple[IntArray, IntArray]:
    """Put on ``home`` what can run there, and the rest where it is fastest."""
    arrays = problem.arrays
    devices = np.full(problem.n_ops, home, np.int32)
    clear(memory)
    found = np.empty(problem.n_devices, np.int32)
    suits = np.isfinite(arrays.compute[:, home])
    _take_all(memory, np.flatnonzero(suits).astype(np.int32), home)
    for op in np.flatnonzero(~suits).astype(np.int32):
        allowed = found[: choices(memory, op, found)]
        devices[op] = allowed[arrays.compute[op, allowed].argmin()]
        take(memory, op, devices[op])
    priority = np.empty(problem.n_ops, np.int32)
    priority[arrays.order] = np.arange(problem.n_ops, dtype=np.int32)
    return devices, priority


@kernel
def _take_all(memory, ops, device):  # type: ignore[no-untyped-def]
    for op in ops:
        take(memory, op, device)
