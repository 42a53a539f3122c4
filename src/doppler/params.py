"""The whole of ``params.yaml``, of which each stage reads sections (`doppler.parameter_file`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import model_validator

from doppler.cases import Grid, cases
from doppler.cluster import Cluster
from doppler.errors import DopplerError, UnknownNameError
from doppler.evaluation.settings import EvaluationSections
from doppler.parameter_file import load_sections
from doppler.policy.settings import PolicySettings
from doppler.refinement.settings import NightlyParams, RefineParams
from doppler.training.generated import GeneratedSettings
from doppler.training.imitation import ImitationSettings
from doppler.training.reinforce import ReinforceSettings
from doppler.training.teaching import TraceSettings


class Params(EvaluationSections):
    """All parameters of the pipeline, beside those that an evaluation reads.

    Attributes
    ----------
    generated : GeneratedSettings
    traces : TraceSettings
    policy : PolicySettings
    imitate : ImitationSettings
    reinforce : ReinforceSettings
    refine : RefineParams
    nightly : NightlyParams
    """

    generated: GeneratedSettings
    traces: TraceSettings
    policy: PolicySettings
    imitate: ImitationSettings
    reinforce: ReinforceSettings
    refine: RefineParams
    nightly: NightlyParams

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        for section, grids in self._grids():
            for graph, cluster in cases(grids):
                try:
                    if graph not in self.graphs:
                        raise UnknownNameError("graph", graph, self.graphs)
                    Cluster.load(cluster)
                except DopplerError as error:
                    raise ValueError(f"{section}: {error}") from None
        return self

    @model_validator(mode="after")
    def _graphs_of_systems_exist(self) -> Self:
        for section, system in (("refine", self.refine), ("nightly", self.nightly)):
            if system.graph not in self.graphs:
                error = UnknownNameError("graph", system.graph, self.graphs)
                raise ValueError(f"{section}.graph: {error}")
        return self

    @model_validator(mode="after")
    def _held_out_is_held_out(self) -> Self:
        trained = {case.graph for case in cases(self.training)}
        for section, grids in self._grids():
            for case in cases(grids) if "zero_shot" in section else ():
                if case.graph in trained:
                    raise ValueError(
                        f"{section}: {case.graph} is trained on; name a graph that is not"
                    )
        return self

    def _grids(self) -> Iterator[tuple[str, list[Grid]]]:
        yield "training", self.training
        for name, suite in self.evaluate.suites.items():
            yield f"evaluate.{name}", suite.cases
        yield "evaluate.zero_shot", self.evaluate.zero_shot
        yield "evaluate.zero_shot_large", self.evaluate.zero_shot_large


def load_params(path: str | Path = "params.yaml") -> Params:
    """Read and validate a whole parameter file.

    Raises
    ------
    ParamsError
        As :func:`~doppler.parameter_file.load_sections`; or if a section names a graph or cluster
        that does not exist, or trains on what is to be held out.
    """
    return load_sections(path, Params)
