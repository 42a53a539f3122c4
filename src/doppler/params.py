"""The pipeline's parameters: ``params.yaml``, validated before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from doppler.cluster import Cluster
from doppler.documents.yaml_text import read_yaml
from doppler.errors import DopplerError, ParamsError, UnknownNameError
from doppler.graph import Graph
from doppler.graph.workloads import WORKLOADS, make
from doppler.problem import Problem
from doppler.refinement.settings import NightlyParams, RefineParams
from doppler.settings import (
    Count,
    Fraction,
    Name,
    NotNegative,
    Positive,
    Settings,
    Share,
    Whole,
    first_problem,
)
from doppler.training.demonstrations import TEACHERS


class GraphParams(Settings):
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

    def build(self) -> Graph:
        """Generate the graph.

        Raises
        ------
        GraphError, UnknownNameError
            If a size or a number of tiles does not suit the workload.
        """
        tiles = {"tiles": self.tiles} if self.tiles else {}
        return make(self.workload, **tiles, **self.sizes)


class Grid(Settings):
    """Every one of ``graphs`` on every one of ``clusters``."""

    graphs: Annotated[list[Name], Field(min_length=1)]
    clusters: Annotated[list[str], Field(min_length=1)]


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


class GeneratedParams(Settings):
    """Cases that are drawn at random.

    Attributes
    ----------
    training : int
        To train on.
    ops : list of two int
        The fewest and the most ops of one.
    validation : int
        To choose the weights by.
    validation_ops : list of two int
        The fewest and the most ops of one.
    """

    training: Whole
    ops: Annotated[list[Count], Field(min_length=2, max_length=2)]
    validation: Whole
    validation_ops: Annotated[list[Count], Field(min_length=2, max_length=2)]

    @field_validator("ops", "validation_ops")
    @classmethod
    def _fewest_comes_first(cls, ops: list[int]) -> list[int]:
        if ops[0] > ops[1]:
            raise ValueError(f"the fewest ops, {ops[0]}, are more than the most, {ops[1]}")
        return ops


class TracesParams(Settings):
    """What the teacher shows.

    Attributes
    ----------
    teacher : str
        Name of the heuristic.
    count : int
        Traces of each problem.
    hints : int
        Maps and partitions of each problem that are kept, at most.
    """

    teacher: str
    count: Count
    hints: Whole


class PolicyParams(Settings):
    """Shape of the networks.

    Attributes
    ----------
    embedding : int
        Width of the op embeddings.
    layers : int
        Rounds of message passing.
    hidden : int
        Width of the placement policy's hidden layer.
    code : int
        Width of what an op adds to the state of its device.
    features : str
        ``"full"``, or ``"paper"`` for the five device features of the paper alone.
    """

    embedding: Count
    layers: Count
    hidden: Count
    code: Count
    features: Literal["full", "paper"]


class ImitateParams(Settings):
    """Stage I.

    Attributes
    ----------
    updates : int
    traces : int
        Traces in each update.
    learning_rate, final_learning_rate : float
        Of Adam, at the first and at the last update.
    gradient_norm : float
        Longer gradients are scaled down to it.
    log_every : int
        Updates between two rows of metrics.
    """

    updates: Count
    traces: Count
    learning_rate: Positive
    final_learning_rate: Positive
    gradient_norm: Positive
    log_every: Count


class ReinforceParams(Settings):
    """Stage II.

    Attributes
    ----------
    updates : int
    episodes : int
        Episodes of one problem in each update; they are one another's baseline.
    learning_rate, final_learning_rate : float
        Of Adam, at the first and at the last update.
    gradient_norm : float
        Longer gradients are scaled down to it.
    log_every : int
        Updates between two rows of metrics.
    entropy : float
        Weight of the policy's entropy.
    cases : int
        Problems in each update.
    self_imitation : bool
        Whether the best placement of a problem takes part in its batches.
    validate_every : int
        Updates between two looks at the greedy episodes, the best of which decide on the weights
        to end with; 0: end with the last.
    styles : int
        The first so many updates learn the style alone.
    jitter : float
        Of the runs that an episode is judged by.
    draws : int
        Runs with jitter of each episode; 0: one without.
    unhinted : float
        Share of the batches that see no hint.
    """

    updates: Count
    episodes: Annotated[int, Field(ge=2)]
    learning_rate: Positive
    final_learning_rate: Positive
    gradient_norm: Positive
    log_every: Count
    entropy: NotNegative
    cases: Count
    self_imitation: bool
    validate_every: Whole
    styles: Whole
    jitter: Fraction
    draws: Whole
    unhinted: Share


class SuiteParams(Settings):
    """Cases on which every method is run.

    Attributes
    ----------
    cases : list of Grid
    budget : float
        Seconds of one core that each anytime method may search on each case.
    """

    cases: Annotated[list[Grid], Field(min_length=1)]
    budget: NotNegative


class EvaluateParams(Settings):
    """What the report compares.

    Attributes
    ----------
    suite, large, operators : SuiteParams
        Small graphs; large ones and several nodes; irregular ones.
    zero_shot : list of Grid
        Cases whose graphs no training has seen, for the policy alone.
    zero_shot_large : list of Grid
        The same with thousands of ops and several nodes.
    samples : int
        Sampled episodes of the zero-shot comparison.
    search : float
        Seconds of search for what is best known of a zero-shot case that the table lacks.
    jitter : float
        Standard deviation of the logarithm of each duration, for the expected makespans.
    jitter_seeds : int
        Simulated runs with jitter of each placement.
    """

    suite: SuiteParams
    large: SuiteParams
    operators: SuiteParams
    zero_shot: Annotated[list[Grid], Field(min_length=1)]
    zero_shot_large: Annotated[list[Grid], Field(min_length=1)]
    samples: Count
    search: NotNegative
    jitter: Fraction
    jitter_seeds: Count

    @property
    def suites(self) -> dict[str, SuiteParams]:
        """The suites by name."""
        return {"suite": self.suite, "large": self.large, "operators": self.operators}


class Params(Settings):
    """All parameters of the pipeline.

    Attributes
    ----------
    seed : int
        Seeds every stage.
    graphs : dict of str to GraphParams
        What the graphs stage builds, by name.
    training : list of Grid
        Problems that the teacher shows and the policy is trained on.
    generated : GeneratedParams
    traces : TracesParams
    policy : PolicyParams
    imitate : ImitateParams
    reinforce : ReinforceParams
    refine : RefineParams
    evaluate : EvaluateParams
    nightly : NightlyParams
    """

    seed: Annotated[int, Field(ge=0, lt=2**32)]
    graphs: Annotated[dict[Name, GraphParams], Field(min_length=1)]
    training: Annotated[list[Grid], Field(min_length=1)]
    generated: GeneratedParams
    traces: TracesParams
    policy: PolicyParams
    imitate: ImitateParams
    reinforce: ReinforceParams
    refine: RefineParams
    evaluate: EvaluateParams
    nightly: NightlyParams

    @field_validator("graphs")
    @classmethod
    def _workloads_exist(cls, graphs: dict[str, GraphParams]) -> dict[str, GraphParams]:
        for name, graph in graphs.items():
            if graph.workload not in WORKLOADS:
                error = UnknownNameError("workload", graph.workload, WORKLOADS)
                raise ValueError(f"{name}: {error}")
        return graphs

    @field_validator("traces")
    @classmethod
    def _teacher_exists(cls, traces: TracesParams) -> TracesParams:
        if traces.teacher not in TEACHERS:
            raise ValueError(f"teacher: {UnknownNameError('teacher', traces.teacher, TEACHERS)}")
        return traces

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

    @property
    def evaluated(self) -> list[Case]:
        """All cases of the evaluation, each once."""
        suites = [grid for suite in self.evaluate.suites.values() for grid in suite.cases]
        return cases([*suites, *self.evaluate.zero_shot, *self.evaluate.zero_shot_large])

    @property
    def stored_graphs(self) -> list[str]:
        """Names of the graphs that are written to files: all but those that are only evaluated."""
        used = {case.graph for case in cases(self.training)}
        used |= {self.refine.graph, self.nightly.graph}
        only_evaluated = {case.graph for case in self.evaluated} - used
        return [name for name in self.graphs if name not in only_evaluated]

    def problem(self, case: Case) -> Problem:
        """Make the problem of a case; large graphs are generated sooner than read from a file.

        Raises
        ------
        GraphError, ClusterError, UnknownNameError
            If the graph cannot be generated or the cluster not be loaded.
        """
        return Problem(self.graphs[case.graph].build(), Cluster.load(case.cluster))

    def trained(self, case: Case) -> str:
        """Say how much of a case is trained on.

        Returns
        -------
        {"case", "graph", "none"}
            The graph on this cluster, on others only, or not at all.
        """
        seen = cases(self.training)
        if case in seen:
            return "case"
        return "graph" if case.graph in {other.graph for other in seen} else "none"

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
    """Read and validate a parameter file.

    Parameters
    ----------
    path : path-like
        A YAML file with all the sections of :class:`Params`; nothing has a default elsewhere.

    Raises
    ------
    ParamsError
        If the file is missing or not YAML, or a parameter is unknown (the message names the
        nearest), missing, of the wrong type or out of range.
    """
    values = read_yaml(path, "parameter", ParamsError)
    if not isinstance(values, dict):
        raise ParamsError(f"{path}: must hold the sections {', '.join(Params.model_fields)}")
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        raise ParamsError(f"{path}: {first_problem(error)}") from None
