"""The main comparison at equal seconds: every method on every case, under four run-times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from doppler.checks import RUNTIMES
from doppler.errors import MemoryLimitError
from doppler.evaluation.settings import SuiteSettings
from doppler.experiments.cell import Cell
from doppler.experiments.problems import PUBLISHED_FOLDER, problem_of, suite_cases
from doppler.graph.workloads.settings import Graphs
from doppler.heuristics import Solution
from doppler.methods import LEARNED, METHODS, fresh_seeds, solve
from doppler.problem import Problem
from doppler.settings import Count, Settings, name_of
from doppler.simulator import spread

NAME = "seconds"
EXCLUSIVE = False
#: Standard deviations of the logarithm of every duration.
JITTERS = (0.0, 0.1)

Method = Annotated[str, name_of("method", METHODS)]


class SecondsSettings(Settings):
    """What is compared.

    Attributes
    ----------
    suites : dict of str to SuiteSettings
        Cases, and the seconds of one core that each method has on each of them; a suite
        ``published`` names the paper's own graphs.
    published : str
        Folder of those graphs; where it is missing, the suite is left out.
    seeds : int
    methods : list of str, optional
        By default all.
    most_ops : dict of str to int
        Beyond so many ops a method is left out: it could not end one batch of episodes.
    jitter_seeds : int
        Runs with jitter behind a mean.
    """

    suites: dict[str, SuiteSettings]
    published: str = PUBLISHED_FOLDER
    seeds: Count = 5
    methods: list[Method] = Field(list(METHODS), min_length=1)
    most_ops: dict[str, Count] = Field({})
    jitter_seeds: Count = 64


SETTINGS = SecondsSettings


def cells(settings: SecondsSettings, graphs: Graphs) -> Iterator[Cell]:
    """One for each case and seed: all methods meet the same machine at the same time."""
    grids = {name: suite.cases for name, suite in settings.suites.items()}
    for suite, given in suite_cases(grids, graphs, settings.published):
        budget = settings.suites[suite].budget
        for seed in range(settings.seeds):
            yield Cell(
                NAME,
                {
                    "suite": suite,
                    **given,
                    "seed": seed,
                    "budget": budget,
                    "methods": settings.methods,
                    "most_ops": settings.most_ops,
                    "jitter_seeds": settings.jitter_seeds,
                },
                # Some four methods answer once; the learned one answers for each run-time.
                seconds=budget * max(1, len(settings.methods) - 1),
            )


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the methods on one case, with one seed.

    The heuristics and the baselines plan for one run-time, and their placements are judged under
    each; the learned method plans for the one that it is judged under.
    """
    problem = problem_of(given)
    seeds = fresh_seeds(problem, given["jitter_seeds"])
    runs: list[dict[str, Any]] = []
    for method in given["methods"]:
        if problem.n_ops > given["most_ops"].get(method, problem.n_ops):
            continue
        found: Solution | None = None
        for runtime in RUNTIMES:
            for jitter in JITTERS:
                try:
                    if found is None or method == LEARNED:
                        found = _solve(problem, method, given, runtime, jitter)
                except MemoryLimitError:
                    break
                expected = spread(
                    problem,
                    found.placement,
                    runtime=runtime,
                    jitter=jitter,
                    seeds=seeds if jitter else seeds[:1],
                )
                runs.append(
                    {
                        "method": method,
                        "runtime": runtime,
                        "jitter": jitter,
                        "makespan_s": expected.mean,
                        "seconds": found.seconds,
                        "origin": found.origin,
                    }
                )
    return {
        "ops": problem.n_ops,
        "devices": problem.n_devices,
        "lower_bound_s": problem.lower_bound,
        "runs": runs,
    }


def _solve(
    problem: Problem, method: str, given: Mapping[str, Any], runtime: str, jitter: float
) -> Solution:
    budget, seed = given["budget"], given["seed"]
    if method != LEARNED:
        # They know no jitter; the run-time that they plan for is that of priorities.
        return solve(problem, method, budget=budget, seed=seed)
    return solve(problem, budget=budget, seed=seed, runtime=runtime, jitter=jitter)
