"""Optimal placements of small problems, proven by constraint programming."""

from __future__ import annotations

from dataclasses import dataclass

from doppler.checks import check_number, check_seed, check_type
from doppler.cores import cores
from doppler.errors import MissingPackageError, ProblemError
from doppler.exact.bounds import lower_bound
from doppler.exact.whole_times import whole_times
from doppler.heuristics.critical_path import critical_path
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.simulator import makespan_of

# Beyond, the model has millions of constraints and the solver proves nothing.
MOST_OPS = 200


@dataclass(frozen=True, eq=False)
class ExactResult:
    """The best placement found, and what none can beat.

    Attributes
    ----------
    placement : Placement
    makespan : float
        Its simulated seconds.
    bound : float
        Seconds that no placement can beat.
    proven : bool
        Whether the placement is optimal: makespan and bound are equal, or differ by less than
        the rounding of times that have no unit in common.
    """

    placement: Placement
    makespan: float
    bound: float
    proven: bool


def exact(
    problem: Problem,
    *,
    budget: float = 10.0,
    seed: int = 0,
    start: Placement | None = None,
    threads: int | None = None,
) -> ExactResult:
    """Find the least makespan over all placements and priorities, by CP-SAT.

    The run-time is that of :func:`doppler.simulator.simulate`, without jitter: a device never
    idles while an op placed on it is ready. Where all times are multiples of a unit the model is
    exact; otherwise times are rounded down and the rules hold to within the rounding, so that the
    bound holds for the times as they are.

    Parameters
    ----------
    problem : Problem
        Of up to ``MOST_OPS`` ops; some 15 ops take seconds.
    budget : float
        Seconds.
    seed : int
        Of the solver.
    start : Placement, optional
        To begin with; by default the critical-path schedule.
    threads : int, optional
        Of the solver; by default one per core.

    Raises
    ------
    MissingPackageError
        If OR-Tools is not installed.
    ProblemError
        If the problem may run out of memory, or has too many ops.
    PlacementError
        If the start does not suit the problem.
    """
    check_type(problem, Problem, "problem")
    check_number(budget, "budget")
    check_seed(seed)
    _check_supported(problem)
    try:
        from doppler.exact.model import solve
    except ImportError:
        raise MissingPackageError(
            "exact optima need OR-Tools, which is not installed: pip install 'doppler[exact]'"
        ) from None
    if start is None:
        start = critical_path(problem, seed=seed).placement
    else:
        check_type(start, Placement, "start").validate(problem)
    best, makespan = start, makespan_of(problem, start)
    bound = lower_bound(problem)
    times = whole_times(problem, makespan)
    found = solve(
        problem,
        times,
        start=start,
        longest=makespan,
        bound=bound,
        budget=budget,
        seed=seed % 2**31,
        threads=threads or cores(),
    )
    if found.placement is not None:
        reached = makespan_of(problem, found.placement)
        if reached < makespan:
            best, makespan = found.placement, reached
    bound = min(max(bound, found.bound), makespan)
    # Each op and each transfer of the longest chain may have lost a unit.
    rounding = 0.0 if times.exact else 2.0 * problem.n_ops * times.unit
    proven = makespan <= bound * (1 + 1e-9) + rounding
    return ExactResult(best, makespan, bound, bool(proven))


def _check_supported(problem: Problem) -> None:
    where = f"{problem.graph.name} on {problem.cluster.name}"
    if problem.n_ops > MOST_OPS:
        raise ProblemError(f"{where}: {problem.n_ops} ops; exact optima are for up to {MOST_OPS}")
    if problem.may_overflow:
        raise ProblemError(
            f"{where}: a device's memory may not hold all; exact optima are for ample memory"
        )
