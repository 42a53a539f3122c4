"""The experiments by name, and their modules."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from doppler.checks import check_name
from doppler.experiments.cell import Experiment

#: In the order in which the pipeline runs them: those that need the whole machine last.
EXPERIMENTS = (
    "exact",
    "synchronous",
    "seconds",
    "episodes",
    "ablation",
    "transfer",
    "robustness",
    "search",
    "scaling",
    "stages",
    "measured",
)


def experiment(name: str) -> Experiment:
    """Load the module of an experiment.

    Raises
    ------
    UnknownNameError
        If there is none of that name.
    """
    check_name(name, "experiment", EXPERIMENTS)
    return cast(Experiment, import_module(f"doppler.experiments.{name}"))
