"""Try a construction once, or again and again until the budget ends; keep what is best and fits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from doppler.cores import cores
from doppler.errors import MemoryLimitError
from doppler.heuristics.base import Deadline, Solution
from doppler.heuristics.incumbent import FITTING_ATTEMPTS, Incumbent, make_incumbent, offer
from doppler.kernels import kernel
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.schedule.free_memory import FreeMemory, make_free_memory
from doppler.simulator import describe_overflow
from doppler.simulator.kernel import Workspace, make_workspace

IntArray = npt.NDArray[np.int32]
Construct = Callable[[FreeMemory], tuple[IntArray, IntArray]]
Attempt = Callable[[int, int], None]
MakeAttempt = Callable[[FreeMemory, Workspace, Incumbent], Attempt]

# A randomized construction that does not fit is worth this many more, whatever the budget.
FITTING_RESTARTS = 64
# Seconds of compiled work between two looks at the clock.
SLICE = 0.01


@kernel
def restart_seed(seed, index):  # type: ignore[no-untyped-def]
    """Seed of restart ``index``: multiples of an odd constant never repeat modulo 2^32."""
    return (seed + index % 4294967296 * 2654435769) % 4294967296


def answer_once(problem: Problem, construct: Construct, *, budget: float, origin: str) -> Solution:
    """Return what a deterministic construction makes.

    Parameters
    ----------
    construct : callable
        From the free memory of the devices to devices [ops] and priority [ops], [0] for first
        ready, first run. Called again with less of it as long as the result does not fit.
    budget : float
        Not used: one answer is all there is.
    origin : str
        What produced the placement, for people.

    Raises
    ------
    MemoryLimitError
        If no attempt fits; says how much is missing where.
    """
    deadline = Deadline(budget)
    memory = make_free_memory(problem.arrays)
    work = _workspace(problem)
    limited = problem.may_overflow
    for index in range(FITTING_ATTEMPTS):
        devices, priority = construct(memory)
        if index == 0:
            incumbent = make_incumbent(problem.n_ops, problem.n_devices, priority.size > 0)
        offer(problem.arrays, devices, priority, index, limited, memory.usable, work, incumbent)
        if incumbent.score.fits:
            break
    return _solution(problem, incumbent, index + 1, deadline, origin)


def restart(
    problem: Problem,
    make_attempt: MakeAttempt,
    *,
    budget: float,
    origin: str,
    prioritized: bool = True,
    threads: int | None = None,
) -> Solution:
    """Run a randomized construction until the budget ends, at least once, and keep the best.

    Attempt ``i`` is the same whichever thread makes it, so that more time only adds attempts.

    Parameters
    ----------
    make_attempt : callable
        From a thread's own scratch memory to a function of (first, count) that makes the attempts
        ``first`` to ``first + count - 1`` and offers each to the incumbent, without the GIL.
    budget : float
        Seconds; overrun by one attempt at most.
    origin : str
        What makes the attempts, for people.
    prioritized : bool
        Whether attempts give a priority.
    threads : int, optional
        By default one per core.

    Raises
    ------
    MemoryLimitError
        If no attempt fits; says how much is missing where.
    """
    deadline = Deadline(budget)
    lock = threading.Lock()
    taken = 0
    incumbents: list[Incumbent] = []

    def claim(count: int) -> int:
        nonlocal taken
        with lock:
            taken += count
            return taken - count

    def begin() -> Attempt:
        incumbent = make_incumbent(problem.n_ops, problem.n_devices, prioritized)
        attempt = make_attempt(make_free_memory(problem.arrays), _workspace(problem), incumbent)
        incumbents.append(incumbent)
        return attempt

    def repeat(attempt: Attempt, seconds: float) -> None:
        while deadline.left > 0:
            count = max(1, int(min(SLICE, deadline.left) / max(seconds, 1e-7)))
            first = claim(count)
            began = time.perf_counter()
            attempt(first, count)
            seconds = (time.perf_counter() - began) / count

    attempt = begin()
    # The first attempt may load compiled code, so its time says nothing about the next.
    attempt(claim(1), 1)
    while not incumbents[0].score.fits and taken < FITTING_RESTARTS:
        attempt(claim(1), 1)
    workers = max(1, threads or cores())
    if deadline.left > 0:
        began = time.perf_counter()
        attempt(claim(1), 1)
        seconds = time.perf_counter() - began
        attempts = [attempt, *(begin() for _ in range(workers - 1))]
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda one: repeat(one, seconds), attempts))
    best = min(incumbents, key=lambda one: (one.score.key, one.attempt[0]))
    if taken > 1:
        origin = f"{origin}, best of {taken} restarts"
    return _solution(problem, best, taken, deadline, origin)


def _workspace(problem: Problem) -> Workspace:
    recorded = problem.graph.n_edges if problem.may_overflow else 0
    return make_workspace(problem.n_ops, problem.n_devices, recorded)


def _solution(
    problem: Problem, incumbent: Incumbent, evaluations: int, deadline: Deadline, origin: str
) -> Solution:
    if not incumbent.score.fits:
        overflow = describe_overflow(problem, incumbent.peak)
        raise MemoryLimitError(f"{problem.graph.name}: {origin}: {overflow}")
    priority = incumbent.priority if incumbent.priority.size else None
    return Solution(
        Placement(incumbent.devices, priority),
        incumbent.score.makespan,
        evaluations,
        deadline.elapsed,
        origin,
    )
