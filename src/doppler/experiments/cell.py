"""A cell: the smallest part of an experiment that is run, kept and run again alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from doppler.graph.workloads.settings import Graphs
from doppler.settings import Settings


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of an experiment.

    Attributes
    ----------
    experiment : str
        Name of the experiment.
    given : mapping
        What tells it from the others, and all settings that its result depends on, as plain JSON.
    seconds : float
        About how long it takes on one core.
    """

    experiment: str
    given: Mapping[str, Any]
    seconds: float = 1.0

    @property
    def name(self) -> str:
        """A file name without suffix, of what is given: ``llama_layer-p100x4-seed3``."""
        parts = (_part(key, value) for key, value in self.given.items())
        return re.sub(r"[^\w.@-]+", "-", "-".join(filter(None, parts)))


def _part(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{key}{value:g}"
    if isinstance(value, int):
        return f"{key}{value}"
    return ""


class Experiment(Protocol):
    """A module of this package that is an experiment.

    Attributes
    ----------
    NAME : str
    EXCLUSIVE : bool
        Whether a cell needs the whole machine: it measures time or uses every core.
    SETTINGS : type
        Of its section in the parameter file.
    """

    NAME: str
    EXCLUSIVE: bool
    SETTINGS: type[Settings]

    @staticmethod
    def cells(settings: Any, graphs: Graphs) -> Sequence[Cell]:
        """List the cells; their names differ."""
        ...

    @staticmethod
    def run(given: Mapping[str, Any]) -> dict[str, Any]:
        """Run one cell in a process of its own; returns plain JSON."""
        ...
