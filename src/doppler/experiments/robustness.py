"""Placements under what they were not planned for: durations that vary, costs that are wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field

from doppler.cases import Grid, Grids
from doppler.checks import check_name
from doppler.errors import MemoryLimitError
from doppler.experiments.cell import Cell
from doppler.experiments.problems import PUBLISHED_FOLDER, problem_of, suite_cases
from doppler.graph.op_class import op_classes
from doppler.graph.workloads.settings import Graphs
from doppler.methods import LEARNED, METHODS, fresh_seeds, solve
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.settings import Count, NotNegative, Positive, Settings
from doppler.simulator import DEFAULT_JITTER, check_memory, spread

NAME = "robustness"
EXCLUSIVE = False

Method = Annotated[str, AfterValidator(lambda name: check_name(name, "method", METHODS))]
Levels = Annotated[list[NotNegative], Field(min_length=1)]


class RobustnessSettings(Settings):
    """What is disturbed, and how much.

    Attributes
    ----------
    suites : dict of str to list of Grid
        Cases; a suite ``published`` names the paper's own graphs.
    published : str
        Folder of those graphs; where it is missing, the suite is left out.
    methods : list of str
    jitter : list of float
        Standard deviations of the logarithm of every duration at run time.
    costs : list of float
        Standard deviations of the logarithm of the factor by which the time of each class of ops
        is believed wrongly.
    budget : float
        Seconds of each method, whenever it plans.
    jitter_seeds : int
        Runs with jitter behind a mean.
    seeds : int
    """

    suites: dict[str, Grids] = Field(
        {
            "workloads": [
                Grid(graphs=["llama_layer", "moe_layer"], clusters=["v100x8"]),
                Grid(graphs=["llama_block"], clusters=["p100x4"]),
            ]
        }
    )
    published: str = PUBLISHED_FOLDER
    methods: list[Method] = Field(
        [
            "doppler",
            "critical_path",
            "sibling_affinity",
            "heft",
            "partition",
            "spmd",
            "local_search",
            "enumerative",
        ],
        min_length=1,
    )
    jitter: Levels = Field([0.0, 0.1, 0.2, 0.3, 0.5])
    costs: Levels = Field([0.1, 0.2, 0.3, 0.5])
    budget: Positive = 0.5
    jitter_seeds: Count = 64
    seeds: Count = 5


SETTINGS = RobustnessSettings


def cells(settings: RobustnessSettings, graphs: Graphs) -> Iterator[Cell]:
    """One for each case and seed, with all levels: what is planned once is judged at each."""
    plans = len(settings.methods) * (1 + len(settings.costs)) + len(settings.jitter) + 1
    for suite, given in suite_cases(settings.suites, graphs, settings.published):
        for seed in range(settings.seeds):
            yield Cell(
                NAME,
                {
                    "suite": suite,
                    **given,
                    "seed": seed,
                    "budget": settings.budget,
                    "methods": settings.methods,
                    "jitter": settings.jitter,
                    "costs": settings.costs,
                    "jitter_seeds": settings.jitter_seeds,
                },
                seconds=settings.budget * plans,
            )


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Plan with what is believed and run with what is so.

    Against jitter each method plans once; doppler plans for the jitter that is usual, and is told
    of no other. Against wrong costs each method plans with them, for each level anew, and the
    placements are run at their true costs without jitter.

    Returns
    -------
    dict
        ``rows`` with ``kind``, ``level``, ``runs`` (``method``, ``makespan_s``: expected) and
        ``informed_s``: what doppler reaches that knows the level, or the true costs.
    """
    problem = problem_of(given)
    planned = _plan(problem, problem, given, DEFAULT_JITTER)
    rows = []
    for level in given["jitter"]:
        informed = _doppler(problem, given, level)
        rows.append(_row(problem, given, "jitter", level, planned, informed, jitter=level))
    told = _doppler(problem, given, 0.0)
    for number, level in enumerate(given["costs"]):
        believed = mistaken(problem, level, np.random.default_rng([given["seed"], number]))
        planned = _plan(believed, problem, given, 0.0)
        rows.append(_row(problem, given, "costs", level, planned, told, jitter=0.0))
    return {
        "ops": problem.n_ops,
        "devices": problem.n_devices,
        "lower_bound_s": problem.lower_bound,
        "rows": rows,
    }


def mistaken(problem: Problem, level: float, rng: np.random.Generator) -> Problem:
    """Make the problem as someone sees it who measured the ops wrongly.

    The time of each class of ops, or of each op where there are no classes, is multiplied by a
    log-normal factor of mean 1, the same on every device.

    Parameters
    ----------
    problem : Problem
    level : float
        Standard deviation of the logarithm of the factor.
    rng : numpy.random.Generator
    """
    names = np.array(op_classes(problem.graph))
    classes = np.unique(names, return_inverse=True)[1]
    classes = np.where(names == "", names.size + np.arange(names.size), classes)
    classes = np.unique(classes, return_inverse=True)[1]
    factor = np.exp(level * rng.standard_normal(int(classes.max()) + 1) - level**2 / 2)
    believed = Problem(problem.graph, problem.cluster)
    compute = np.ascontiguousarray(problem.arrays.compute * factor[classes, None])
    compute.setflags(write=False)
    believed.arrays = believed.arrays._replace(compute=compute)
    return believed


def _plan(
    believed: Problem, problem: Problem, given: Mapping[str, Any], jitter: float
) -> dict[str, Placement]:
    """Place with every method; one whose placement does not fit in memory is left out."""
    found = {}
    for method in given["methods"]:
        try:
            solution = solve(
                believed, method, budget=given["budget"], seed=given["seed"], jitter=jitter
            )
            # Whether it fits depends on what is held when.
            check_memory(problem, solution.placement)
        except MemoryLimitError:
            continue
        found[method] = solution.placement
    return found


def _doppler(problem: Problem, given: Mapping[str, Any], jitter: float) -> Placement:
    return solve(
        problem, LEARNED, budget=given["budget"], seed=given["seed"], jitter=jitter
    ).placement


def _row(
    problem: Problem,
    given: Mapping[str, Any],
    kind: str,
    level: float,
    planned: Mapping[str, Placement],
    informed: Placement,
    *,
    jitter: float,
) -> dict[str, Any]:
    seeds = fresh_seeds(problem, given["jitter_seeds"])

    def expected(placement: Placement) -> float:
        return spread(problem, placement, jitter=jitter, seeds=seeds).mean

    return {
        "kind": kind,
        "level": level,
        "runs": [
            {"method": method, "makespan_s": expected(placement)}
            for method, placement in planned.items()
        ],
        "informed_s": expected(informed),
    }
