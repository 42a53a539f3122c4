"""The main comparison at equal episodes: what each learned method makes of as many placements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from doppler.cases import Grid
from doppler.experiments.cell import Cell
from doppler.experiments.learners import LEARNERS, run_of
from doppler.experiments.problems import (
    PUBLISHED_FOLDER,
    problem_of,
    suite_cases,
)
from doppler.graph.workloads.settings import Graphs
from doppler.settings import Count, Settings, name_of
from doppler.training.single import learn

NAME = "episodes"
EXCLUSIVE = False
Learning = Annotated[str, name_of("method", LEARNERS)]


class EpisodesSettings(Settings):
    """What is compared.

    Attributes
    ----------
    suites : dict of str to list of Grid
        Cases; a suite ``published`` names the paper's own graphs.
    published : str
        Folder of those graphs; where it is missing, the suite is left out.
    seeds : int
    episodes : int
        Of each method on each case: placements that are tried and simulated.
    batch : int
        Episodes of one update.
    batch_of : dict of str to int
        The same of methods that learn better by others.
    methods : list of str
        Of ``LEARNERS``.
    most_episodes : dict of str to int
        A method that is so slow that it plays no more; the others are held against it after as
        many.
    """

    suites: dict[str, list[Grid]]
    published: str = PUBLISHED_FOLDER
    seeds: Count = 5
    episodes: Count = 512
    batch: Count = 16
    batch_of: dict[Learning, Count] = Field({})
    methods: list[Learning] = Field(list(LEARNERS), min_length=1)
    most_episodes: dict[Learning, Count] = Field({})


SETTINGS = EpisodesSettings


def cells(settings: EpisodesSettings, graphs: Graphs) -> Iterator[Cell]:
    """One for each case and seed."""
    for suite, given in suite_cases(settings.suites, graphs, settings.published):
        for seed in range(settings.seeds):
            yield Cell(
                NAME,
                {
                    "suite": suite,
                    **given,
                    "seed": seed,
                    "episodes": settings.episodes,
                    "batch": settings.batch,
                    "batch_of": settings.batch_of,
                    "methods": settings.methods,
                    "most_episodes": settings.most_episodes,
                },
                seconds=0.04 * settings.episodes,
            )


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Let every method play as many episodes on one case, with one seed."""
    problem = problem_of(given)
    runs = []
    for method in given["methods"]:
        learner = LEARNERS[method](problem, given["seed"])
        episodes = min(given["episodes"], given["most_episodes"].get(method, given["episodes"]))
        batch = given["batch_of"].get(method, given["batch"])
        found = learn(problem, learner, episodes=episodes, batch=batch, seed=given["seed"])
        runs.append({"method": method, **run_of(found)})
    return {
        "ops": problem.n_ops,
        "devices": problem.n_devices,
        "lower_bound_s": problem.lower_bound,
        "runs": runs,
    }
