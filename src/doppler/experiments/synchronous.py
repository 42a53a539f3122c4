"""Bulk-synchronous execution against work-conserving execution, the paper's motivation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field

from doppler.cases import Grid, Grids
from doppler.checks import check_name
from doppler.errors import MemoryLimitError
from doppler.experiments.cell import Cell
from doppler.experiments.problems import PUBLISHED_FOLDER, problem_of, suite_cases
from doppler.experiments.synchronous_search import search_synchronous
from doppler.graph.workloads.settings import Graphs
from doppler.methods import METHODS, solve
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.schedule.ranks import rank_of
from doppler.settings import Count, Positive, Settings
from doppler.simulator import makespan_of
from doppler.simulator.bulk_synchronous import make_supersteps, synchronous_makespan

NAME = "synchronous"
EXCLUSIVE = False
#: The method whose placement is searched for synchronous execution itself.
FOR_SYNCHRONOUS = "best_synchronous"

Method = Annotated[str, AfterValidator(lambda name: check_name(name, "method", METHODS))]


class SynchronousSettings(Settings):
    """What is compared.

    Attributes
    ----------
    suites : dict of str to list of Grid
        Cases; a suite ``published`` names the paper's own graphs.
    published : str
        Folder of those graphs; where it is missing, the suite is left out.
    methods : list of str
    budget : float
        Seconds of each method.
    search : float
        Seconds of the search for synchronous execution.
    seeds : int
    """

    suites: dict[str, Grids] = Field(
        {
            "workloads": [
                Grid(
                    graphs=["chainmm", "ffnn", "llama_block", "llama_layer", "moe_layer"],
                    clusters=["p100x4", "v100x8"],
                )
            ]
        }
    )
    published: str = PUBLISHED_FOLDER
    methods: list[Method] = Field(
        ["critical_path", "enumerative", "sibling_affinity", "doppler"], min_length=1
    )
    budget: Positive = 0.5
    search: Positive = 1.0
    seeds: Count = 2


SETTINGS = SynchronousSettings


def cells(settings: SynchronousSettings, graphs: Graphs) -> Iterator[Cell]:
    """One for each case and seed."""
    for suite, given in suite_cases(settings.suites, graphs, settings.published):
        for seed in range(settings.seeds):
            yield Cell(
                NAME,
                {
                    "suite": suite,
                    **given,
                    "seed": seed,
                    "budget": settings.budget,
                    "search": settings.search,
                    "methods": settings.methods,
                },
                seconds=settings.budget * (len(settings.methods) + 1) + settings.search,
            )


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Run every placement both ways, and the best that is found for synchronous execution.

    Returns
    -------
    dict
        ``runs`` with ``method``, ``work_conserving_s`` and ``synchronous_s``.
    """
    problem = problem_of(given)
    budget, seed = given["budget"], given["seed"]
    runs: list[dict[str, Any]] = []
    found: list[Placement] = []
    for method in given["methods"]:
        try:
            solution = solve(problem, method, budget=budget, seed=seed, jitter=0.0)
        except MemoryLimitError:
            continue
        found.append(solution.placement)
        runs.append(_both(problem, method, solution.placement))
    if found:
        # Symmetric maps are what supersteps like best.
        with suppress(MemoryLimitError):
            found.append(solve(problem, "spmd", budget=budget, seed=seed).placement)
        best = search_synchronous(problem, found, budget=given["search"], seed=seed)
        ranked = min(_orders(problem, best), key=lambda each: makespan_of(problem, each))
        runs.append(_both(problem, FOR_SYNCHRONOUS, ranked))
    return {
        "ops": problem.n_ops,
        "devices": problem.n_devices,
        "lower_bound_s": problem.lower_bound,
        "runs": runs,
    }


def _orders(problem: Problem, placement: Placement) -> Iterator[Placement]:
    """Give orders to a placement that has none: by the way that is left, and by superstep."""
    left = problem.b_level(problem.mean_compute, transfers=True)
    for order in ((-left).argsort(kind="stable"), make_supersteps(problem).ops):
        yield Placement(placement.devices, rank_of(order.astype(np.int32)))


def _both(problem: Problem, method: str, placement: Placement) -> dict[str, Any]:
    return {
        "method": method,
        "work_conserving_s": makespan_of(problem, placement),
        "synchronous_s": synchronous_makespan(problem, placement),
    }
