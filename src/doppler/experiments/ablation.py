"""What each part of the method contributes: heads, features, priorities, message passing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

import torch
from pydantic import Field

from doppler.baselines.doppler_paper import PUBLISHED, PublishedPolicy
from doppler.baselines.stepwise import StepwiseLearner
from doppler.cases import Grid, Grids
from doppler.cases import cases as cases_of
from doppler.experiments.cell import Cell
from doppler.experiments.learners import Restarts, run_of
from doppler.experiments.problems import given_case, problem_of
from doppler.graph.workloads.settings import Graphs
from doppler.policy.features import FeatureSet
from doppler.policy.frozen import Sizes
from doppler.problem import Problem
from doppler.settings import Count, Settings
from doppler.training.case import new_policy
from doppler.training.dual_learner import DualLearner, DualSettings
from doppler.training.single import EpisodeLearner, learn

NAME = "ablation"
EXCLUSIVE = False
#: Both policies of the paper's family are that small: message passing per step is so slow.
SMALL = Sizes(embedding=32, layers=2, hidden=32, code=8)

WORKLOADS = Grid(
    graphs=["chainmm", "ffnn", "llama_block", "llama_layer", "moe_layer"], clusters=["p100x4"]
)


def published(problem: Problem, seed: int, **changed: Any) -> EpisodeLearner:
    """Make the published method; what does not learn chooses as critical path does."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = PublishedPolicy(SMALL)
    return DualLearner(problem, policy, replace(PUBLISHED, **changed))


def ours(problem: Problem, seed: int, features: str = "full", **changed: Any) -> EpisodeLearner:
    """Start our own policy, without hints and search."""
    policy = new_policy(seed, features=FeatureSet.named(features))
    return DualLearner(problem, policy, DualSettings(**changed))


def per_step(problem: Problem, seed: int) -> EpisodeLearner:
    """Make the published method with message passing at every step."""
    return StepwiseLearner(problem, PUBLISHED, SMALL, seed)


Make = Callable[[Problem, int], EpisodeLearner]
#: What is compared within a family; all learn from the same start by as many episodes.
FAMILIES: dict[str, dict[str, Make]] = {
    "paper": {
        "both": published,
        "SEL only": lambda problem, seed: published(problem, seed, place=False),
        "PLC only": lambda problem, seed: published(problem, seed, select=False),
        "neither": lambda problem, seed: Restarts(problem, "fifo"),
    },
    "ours": {
        "both": ours,
        "SEL only": lambda problem, seed: ours(problem, seed, place=False),
        "PLC only": lambda problem, seed: ours(problem, seed, select=False),
        "neither": lambda problem, seed: Restarts(problem),
        "paper features": lambda problem, seed: ours(problem, seed, "paper"),
        "priority ignored": lambda problem, seed: ours(problem, seed, runtime="fifo"),
    },
    "messages": {
        "both": lambda problem, seed: published(problem, seed, imitation_steps=1),
        "message passing per step": per_step,
    },
}


class Messages(Settings):
    """The comparison of message passing per step and per episode, which costs O(V^2) an episode.

    Attributes
    ----------
    cases : list of Grid
    episodes, batch : int
    seeds : int
    """

    cases: Grids = Field([Grid(graphs=["chainmm", "llama_block_short"], clusters=["p100x4"])])
    episodes: Count = 64
    batch: Count = 8
    seeds: Count = 5


class AblationSettings(Settings):
    """What is compared.

    Attributes
    ----------
    cases : list of Grid
    episodes, batch : int
        Of each variant on each case, and of each update.
    seeds : int
    messages : Messages
    """

    cases: Grids = Field([WORKLOADS])
    episodes: Count = 1024
    batch: Count = 16
    seeds: Count = 5
    messages: Annotated[Messages, Field(default_factory=Messages)]


SETTINGS = AblationSettings


def cells(settings: AblationSettings, graphs: Graphs) -> Iterator[Cell]:
    """One for each family, case and seed."""
    for family in FAMILIES:
        chosen: AblationSettings | Messages = (
            settings.messages if family == "messages" else settings
        )
        slow = 0.25 if family == "messages" else 0.006
        for case in cases_of(chosen.cases):
            for seed in range(chosen.seeds):
                given = {
                    **given_case(case, graphs),
                    "family": family,
                    "seed": seed,
                    "episodes": chosen.episodes,
                    "batch": chosen.batch,
                }
                yield Cell(NAME, given, seconds=slow * chosen.episodes)


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Let every variant of a family learn one case, with one seed."""
    problem = problem_of(given)
    runs = []
    for variant, make in FAMILIES[given["family"]].items():
        learner = make(problem, given["seed"])
        found = learn(
            problem, learner, episodes=given["episodes"], batch=given["batch"], seed=given["seed"]
        )
        runs.append({"variant": variant, **run_of(found)})
    return {"ops": problem.n_ops, "runs": runs}
