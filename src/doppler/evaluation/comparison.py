"""Every method on one problem, at equal seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from doppler.cores import cores
from doppler.errors import (
    DopplerError,
    MemoryLimitError,
    MissingPackageError,
    UnknownNameError,
)
from doppler.evaluation.results import CaseResult, MethodResult
from doppler.heuristics import Solution
from doppler.methods import LEARNED, METHODS, PRETRAINED, fresh_seeds, solve
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.simulator import DEFAULT_JITTER, simulate, spread

if TYPE_CHECKING:
    from doppler.policy.frozen import FrozenPolicy
    from doppler.policy.network import DualPolicy

JITTER_SEEDS = 64
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What came of comparing methods on a problem.

    Attributes
    ----------
    case : CaseResult
        Of the methods that found a placement that fits in memory.
    placements : mapping of str to Placement
        Their placements.
    failures : mapping of str to str
        Why the other methods found none: it does not fit in memory, or a package is missing.
    """

    case: CaseResult
    placements: Mapping[str, Placement]
    failures: Mapping[str, str]


def compare(
    problem: Problem,
    methods: Sequence[str] = METHODS,
    *,
    budget: float,
    seed: int = 0,
    policy: str | Path | FrozenPolicy | DualPolicy = PRETRAINED,
    runtime: str = "priority",
    jitter: float = DEFAULT_JITTER,
    jitter_seeds: int = JITTER_SEEDS,
    best_known: float | None = None,
    trained: str | None = None,
    graph: str | None = None,
    cluster: str | None = None,
    say: Say = lambda _: None,
) -> Comparison:
    """Run methods on one problem, one after another, each with the same budget and cores.

    Every method uses all cores that this process may run on, see :func:`doppler.cores.cores`. A
    deterministic method answers once, so that it takes less. Loading a policy and compiled
    code is not counted.

    Parameters
    ----------
    problem : Problem
    methods : sequence of str
        Names, at least one.
    budget : float
        Seconds of each.
    seed : int
    policy : str, path, FrozenPolicy or DualPolicy
        Of the learned method.
    runtime : {"priority", "fifo"}
        The run-time that the placements are for.
    jitter : float
        Standard deviation of the logarithm of every duration at run time: what the learned method
        plans for, and what the runs vary by that give mean and spread.
    jitter_seeds : int
        How many such runs of each placement, of seeds that no method has seen; fewer of graphs
        beyond 30,000 ops, whose spread is small.
    best_known : float, optional
        Smallest makespan known from elsewhere, seconds.
    trained : str, optional
        How much the policy has seen of the case, see :data:`doppler.evaluation.results.TRAINED`.
    graph, cluster : str, optional
        Names for the result; by default their own.
    say : callable
        Told the name of each method before it runs.

    Returns
    -------
    Comparison

    Raises
    ------
    UnknownNameError
        On a method that there is not.
    MemoryLimitError, MissingPackageError
        If no method found a placement: why the first did not.
    DopplerError
        As :func:`doppler.methods.solve`.
    """
    for name in methods:
        if name not in METHODS:
            raise UnknownNameError("method", name, METHODS)
    if LEARNED in methods and isinstance(policy, str | Path):
        from doppler.policy.checkpoint import load_frozen

        policy = load_frozen(policy)
    results: dict[str, MethodResult] = {}
    placements: dict[str, Placement] = {}
    failures: dict[str, str] = {}
    refused: DopplerError | None = None
    for name in dict.fromkeys(methods):
        say(name)
        try:
            solution = solve(
                problem,
                name,
                policy=policy,
                budget=budget,
                seed=seed,
                runtime=runtime,
                jitter=jitter,
            )
        except (MemoryLimitError, MissingPackageError) as error:
            failures[name] = str(error)
            refused = refused or error
            continue
        results[name] = measure(problem, solution, jitter, jitter_seeds, runtime)
        placements[name] = solution.placement
    if not results:
        raise refused or MemoryLimitError("no method to compare")
    case = as_case(
        problem,
        results,
        jitter=jitter,
        best_known=best_known,
        trained=trained,
        graph=graph,
        cluster=cluster,
    )
    return Comparison(case, placements, failures)


def as_case(
    problem: Problem,
    results: Mapping[str, MethodResult],
    *,
    jitter: float | None = None,
    best_known: float | None = None,
    trained: str | None = None,
    graph: str | None = None,
    cluster: str | None = None,
) -> CaseResult:
    """Put results together; the best known makespan is at most that of the best of them."""
    best = min(result.makespan_s for result in results.values())
    return CaseResult(
        graph=problem.graph.name if graph is None else graph,
        cluster=problem.cluster.name if cluster is None else cluster,
        ops=problem.n_ops,
        devices=problem.n_devices,
        methods=results,
        best_known_s=best if best_known is None else min(best, best_known),
        lower_bound_s=problem.lower_bound,
        cores=cores(),
        jitter=jitter,
        trained=trained,
    )


def measure(
    problem: Problem,
    solution: Solution,
    jitter: float = DEFAULT_JITTER,
    jitter_seeds: int = JITTER_SEEDS,
    runtime: str = "priority",
) -> MethodResult:
    """Say what a solution is worth, also when durations vary or priorities are ignored.

    Parameters
    ----------
    problem : Problem
    solution : Solution
    jitter, jitter_seeds, runtime
        As for :func:`compare`. Every solution of a problem meets the same seeds.
    """
    placement = solution.placement
    seeds = fresh_seeds(problem, jitter_seeds)
    expected = {
        each: spread(problem, placement, runtime=each, jitter=jitter, seeds=seeds)
        for each in {runtime, "fifo"}
    }
    return MethodResult(
        makespan_s=solution.makespan,
        seconds=solution.seconds,
        expected_makespan_s=expected[runtime].mean,
        makespan_std_s=expected[runtime].std,
        expected_fifo_s=expected["fifo"].mean,
        extra={
            "makespan_fifo_s": simulate(problem, placement, runtime="fifo").makespan,
            "evaluations": solution.evaluations,
            "origin": solution.origin,
        },
    )
