"""Graphs on clusters, by name: what the pipeline trains on and compares on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, NamedTuple

from pydantic import Field

from doppler.settings import Name, Settings


class Grid(Settings):
    """Every one of ``graphs`` on every one of ``clusters``."""

    graphs: Annotated[list[Name], Field(min_length=1)]
    clusters: Annotated[list[str], Field(min_length=1)]


Grids = Annotated[list[Grid], Field(min_length=1)]


def file_name(case: str) -> str:
    """Make a file name without suffix of the name of a case."""
    return re.sub(r"[^\w.@-]+", "-", case)


class Case(NamedTuple):
    """A graph on a cluster, both by name."""

    graph: str
    cluster: str

    def __str__(self) -> str:
        return f"{self.graph}@{self.cluster}"

    @property
    def file_name(self) -> str:
        """The case as a file name without suffix: ``llama_layer@uniform-4``."""
        return file_name(str(self))


def cases(grids: Iterable[Grid]) -> list[Case]:
    """All cases of the grids, each once, in their order."""
    return list(
        dict.fromkeys(
            Case(graph, cluster)
            for grid in grids
            for graph in grid.graphs
            for cluster in grid.clusters
        )
    )


def trained_on(case: Case, grids: Iterable[Grid]) -> str:
    """Say how much of a case is trained on.

    Returns
    -------
    {"case", "graph", "none"}
        The graph on this cluster, on others only, or not at all.
    """
    seen = cases(grids)
    if case in seen:
        return "case"
    return "graph" if case.graph in {other.graph for other in seen} else "none"
