"""What the stages of training share: the problems, and where each stage leaves what of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from common import graph_path
from doppler.cases import Case, Grids, cases
from doppler.cluster import Cluster
from doppler.graph.formats import load_graph
from doppler.problem import Problem
from doppler.settings import Seed, Settings
from doppler.training.case import TrainingCase
from doppler.training.demonstrations import Demonstrations, load_demonstrations
from doppler.training.generated import GeneratedSettings, generate

# Numbers of generated cases from here on are for validation.
VALIDATION = 1_000_000


class TrainingSections(Settings):
    """The sections that all stages of training read."""

    seed: Seed
    training: Grids
    generated: GeneratedSettings


class Training(NamedTuple):
    """A problem to train on, or to choose weights by.

    Attributes
    ----------
    name : str
        ``graph@cluster``, or the number of a generated case.
    traces : Path
        Where the traces stage leaves its traces and hints.
    load : callable
        Makes the problem.
    """

    name: str
    traces: Path
    load: Callable[[], Problem]


def training_set(params: TrainingSections) -> list[Training]:
    """List the problems that are trained on: those with a name, then those that are drawn."""
    named = [
        Training(str(case), _traces_path(case.file_name), partial(_load_problem, case))
        for case in cases(params.training)
    ]
    drawn = params.generated
    return named + _generated(params.seed, range(drawn.training), drawn.ops)


def validation_set(params: TrainingSections) -> list[Training]:
    """List the problems whose greedy episodes decide on the weights to end with."""
    drawn = params.generated
    numbers = range(VALIDATION, VALIDATION + drawn.validation)
    return _generated(params.seed, numbers, drawn.validation_ops)


def traced_cases(chosen: list[Training]) -> tuple[list[TrainingCase], list[Demonstrations]]:
    """Load problems with what the traces stage left of each."""
    problems = [case.load() for case in chosen]
    traces = [
        load_demonstrations(case.traces, problem)
        for case, problem in zip(chosen, problems, strict=True)
    ]
    cases_ = [
        TrainingCase(case.name, problem, hints=shown.made_hints(problem))
        for case, problem, shown in zip(chosen, problems, traces, strict=True)
    ]
    return cases_, traces


def state_path(stage: str) -> Path:
    """Where a training stage that is running keeps its checkpoint; not an artifact."""
    return Path(".cache/training", f"{stage}.safetensors")


def _load_problem(case: Case) -> Problem:
    return Problem(load_graph(graph_path(case.graph)), Cluster.load(case.cluster))


def _generated(seed: int, numbers: range, ops: list[int]) -> list[Training]:
    return [
        Training(
            f"generated-{number}",
            _traces_path(f"generated-{number}"),
            partial(generate, seed, number, (ops[0], ops[1])),
        )
        for number in numbers
    ]


def _traces_path(name: str) -> Path:
    return Path("data/traces", f"{name}.safetensors")
