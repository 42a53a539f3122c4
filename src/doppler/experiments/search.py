"""What the policy adds to the search: both together against the search alone, at equal seconds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import Field

from doppler import portfolio
from doppler.cases import Grid, Grids, cases
from doppler.evaluation.comparison import measure
from doppler.experiments.cell import Cell
from doppler.experiments.problems import given_case, problem_of
from doppler.graph.workloads.settings import Graphs
from doppler.policy.checkpoint import PRETRAINED, load_frozen
from doppler.settings import Count, Fraction, Positive, Settings

NAME = "search"
EXCLUSIVE = False
#: Starts of the search alone.
ALONE = tuple(start for start in portfolio.STARTS if start != "policy")
# Seconds of a cell beside the two searches: the problem is made, the placements are measured.
_OVERHEAD = 1.0


class Budget(Settings):
    """Seconds that each of the two has, and with how many seeds they are run."""

    seconds: Positive
    seeds: Count = 5


class SearchSettings(Settings):
    """What is searched, and for how long.

    Attributes
    ----------
    cases : list of Grid
        Whose graphs no training of the policy has seen.
    budgets : list of Budget
    jitter : float
        Standard deviation of the logarithm of every duration.
    jitter_seeds : int
        Runs with jitter behind a mean.
    """

    cases: Grids = Field(
        [
            Grid(graphs=["llama_layer_2k"], clusters=["v100x8"]),
            Grid(graphs=["lstm_grid", "moe_layer_32", "llama_four_layers"], clusters=["v100_4x4"]),
            Grid(graphs=["random_heavy"], clusters=["uniform:16"]),
        ]
    )
    budgets: list[Budget] = Field(
        [
            Budget(seconds=0.1),
            Budget(seconds=0.3),
            Budget(seconds=1.0),
            Budget(seconds=3.0, seeds=4),
            Budget(seconds=10.0, seeds=2),
        ],
        min_length=1,
    )
    jitter: Fraction = 0.1
    jitter_seeds: Count = 64


SETTINGS = SearchSettings


def cells(settings: SearchSettings, graphs: Graphs) -> Iterator[Cell]:
    """One for each case, budget and seed."""
    for case in cases(settings.cases):
        given = given_case(case, graphs)
        for budget in settings.budgets:
            for seed in range(budget.seeds):
                yield Cell(
                    NAME,
                    {
                        **given,
                        "seed": seed,
                        "budget": budget.seconds,
                        "jitter": settings.jitter,
                        "jitter_seeds": settings.jitter_seeds,
                    },
                    seconds=2 * budget.seconds + _OVERHEAD,
                )


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Search with and without the policy, one after the other; by turns, which is first.

    Returns
    -------
    dict
        ``with_policy_s`` and ``search_alone_s``, expected makespans under the jitter; what each
        winner came of; and the seconds that each took.
    """
    problem = problem_of(given)
    policy = load_frozen(PRETRAINED)
    found: dict[str, tuple[float, str, float]] = {}

    def search(name: str, starts: Collection[str]) -> None:
        solution = portfolio.search(
            problem,
            policy,
            budget=given["budget"],
            seed=given["seed"],
            jitter=given["jitter"],
            starts=starts,
        )
        judged = measure(problem, solution, given["jitter"], given["jitter_seeds"])
        assert judged.expected_makespan_s is not None
        found[name] = judged.expected_makespan_s, solution.origin, solution.seconds

    contenders = [("with_policy", portfolio.STARTS), ("search_alone", ALONE)]
    # Whoever comes second finds the memory of the problem warm.
    for name, starts in contenders[:: -1 if given["seed"] % 2 else 1]:
        search(name, starts)
    result: dict[str, Any] = {"ops": problem.n_ops, "devices": problem.n_devices}
    for name, _ in contenders:
        seconds, origin, took = found[name]
        result |= {f"{name}_s": seconds, f"{name}_origin": origin, f"{name}_took_s": took}
    return result
