"""The policy on a graph that it never saw, without search, beside the hint that it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from doppler.errors import MemoryLimitError
from doppler.evaluation.comparison import JITTER_SEEDS, Comparison, as_case, measure
from doppler.heuristics.base import Solution
from doppler.problem import Problem
from doppler.simulator import DEFAULT_JITTER

if TYPE_CHECKING:
    from doppler.policy.frozen import FrozenPolicy
    from doppler.policy.network import DualPolicy

GREEDY, HINT, PLACE = "greedy", "hint", "place_at_0_s"


def zero_shot(
    problem: Problem,
    policy: FrozenPolicy | DualPolicy,
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
    policy : FrozenPolicy or DualPolicy
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
        Of the methods ``greedy`` and ``best_of_N``: the policy's episodes alone; ``hint``: the best
        of the symmetric maps and partitions that they lean to; and ``place_at_0_s``: what
        :func:`doppler.place` answers without a budget, the best of these and the list schedules.
        One that finds nothing that fits in memory is among its ``failures``.

    Raises
    ------
    MemoryLimitError
        If nothing fits in memory.
    """
    from doppler.portfolio import HINTING, MOST_FREE_OPS, search

    # A number of samples keeps heuristics from helping out where nothing fits in memory.
    asked: dict[str, dict[str, Any]] = {
        GREEDY: {"alone": True, "samples": 0},
        f"best_of_{samples}": {"alone": True, "samples": samples},
        PLACE: {},
    }
    if problem.n_ops <= MOST_FREE_OPS:
        asked[HINT] = {"starts": HINTING, "samples": 0}
    found: dict[str, Solution] = {}
    failures: dict[str, str] = {}
    for name, how in asked.items():
        try:
            found[name] = search(problem, policy, budget=0.0, seed=seed, jitter=jitter, **how)
        except MemoryLimitError as error:
            failures[name] = str(error)
    if not found:
        raise MemoryLimitError(failures[PLACE])
    if best_known is None and search_seconds > 0:
        # Of a run without noise, as what is known from elsewhere.
        best_known = search(problem, policy, budget=search_seconds, seed=seed, jitter=0.0).makespan
    results = {
        name: measure(problem, solution, jitter, jitter_seeds) for name, solution in found.items()
    }
    case = as_case(
        problem, results, jitter=jitter, best_known=best_known, graph=graph, cluster=cluster
    )
    return Comparison(
        case, {name: solution.placement for name, solution in found.items()}, failures
    )
