"""Which graph to generate, as a parameter file says it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from doppler.errors import UnknownNameError
from doppler.graph.graph import Graph
from doppler.graph.workloads import WORKLOADS, make
from doppler.settings import Count, Name, Settings


class WorkloadSettings(Settings):
    """One graph: a workload at given sizes, cut into given tiles.

    Attributes
    ----------
    workload : str
        Name of the workload.
    sizes : dict of str to number
        Arguments of the workload; those left out keep its defaults.
    tiles : int or dict of str to int
        Tiles of every dimension, or of those named; the others keep the workload's own. Operator
        graphs have none: ``{}``.
    """

    workload: str
    sizes: dict[str, int | float | bool]
    tiles: Count | dict[str, Count]

    @field_validator("workload")
    @classmethod
    def _exists(cls, workload: str) -> str:
        if workload not in WORKLOADS:
            raise ValueError(UnknownNameError("workload", workload, WORKLOADS))
        return workload

    def build(self) -> Graph:
        """Generate the graph.

        Raises
        ------
        GraphError, UnknownNameError
            If a size or a number of tiles does not suit the workload.
        """
        tiles = {"tiles": self.tiles} if self.tiles else {}
        return make(self.workload, **tiles, **self.sizes)


Graphs = Annotated[dict[Name, WorkloadSettings], Field(min_length=1)]
