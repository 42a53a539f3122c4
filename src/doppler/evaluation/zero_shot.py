"""The policy alone on a graph that it never saw: its greedy episode and a few samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from doppler.evaluation.comparison import JITTER_SEEDS, Comparison, as_case, measure
from doppler.problem import Problem
from doppler.simulator import DEFAULT_JITTER

if TYPE_CHECKING:
    from doppler.policy.network import DualPolicy

GREEDY = "greedy"


def zero_shot(
    problem: Problem,
    policy: DualPolicy,
    *,
    samples: int = 16,
    seed: int = 0,
    jitter: float = DEFAULT_JITTER,
    jitter_seeds: int = JITTER_SEEDS,
    best_known: float | None = None,
    search_seconds: float = 0.0,
    graph: str | None = None,
    cluster: str | None = None,
) -> Comparison:
    """Place a problem with no training and no search, and compare with the best known.

    Parameters
    ----------
    problem : Problem
    policy : DualPolicy
    samples : int
        Sampled episodes, the best of which counts, besides the greedy one.
    seed : int
    jitter, jitter_seeds
        As for :func:`doppler.evaluation.comparison.compare`.
    best_known : float, optional
        Smallest makespan known from elsewhere, seconds.
    search_seconds : float
        Seconds of search for what is best known if nothing is known from elsewhere; a policy
        must not be measured by itself.
    graph, cluster : str, optional
        Names for the result; by default their own.

    Returns
    -------
    Comparison
        Of the methods ``greedy`` and ``best_of_N``.

    Raises
    ------
    MemoryLimitError
        If no episode fits in memory.
    """
    from doppler.portfolio import search

    found = {
        GREEDY: search(problem, policy, budget=0.0, seed=seed, jitter=jitter),
        f"best_of_{samples}": search(
            problem, policy, budget=0.0, seed=seed, jitter=jitter, samples=samples
        ),
    }
    if best_known is None and search_seconds > 0:
        # Of a run without noise, as what is known from elsewhere.
        best_known = search(problem, policy, budget=search_seconds, seed=seed, jitter=0.0).makespan
    results = {
        name: measure(problem, solution, jitter, jitter_seeds) for name, solution in found.items()
    }
    case = as_case(
        problem, results, jitter=jitter, best_known=best_known, graph=graph, cluster=cluster
    )
    return Comparison(case, {name: solution.placement for name, solution in found.items()}, {})
