"""The pipeline's parameters: ``params.yaml``, validated before anything runs."""

from __future__ import annotations

import difflib
import re
import zoneinfo
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from doppler.cluster import Cluster
from doppler.cluster.cluster import MAX_DEVICES
from doppler.errors import DopplerError, ParamsError, PromotionError, UnknownNameError
from doppler.files import read_text
from doppler.graph import Graph
from doppler.graph.workloads import WORKLOADS, make
from doppler.problem import Problem
from doppler.refinement.paired_test import check_comparison
from doppler.training.traces import TEACHERS

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class Section(BaseModel):
    """Base of all sections: immutable, no unknown key, no silent conversion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, values: Any) -> Any:
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                raise ValueError(UnknownNameError("parameter", str(key), cls.model_fields))
        return values


class GraphParams(Section):
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


class Grid(Section):
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


class GeneratedParams(Section):
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

    training: Annotated[int, Field(ge=0)]
    ops: Annotated[list[Count], Field(min_length=2, max_length=2)]
    validation: Annotated[int, Field(ge=0)]
    validation_ops: Annotated[list[Count], Field(min_length=2, max_length=2)]

    @field_validator("ops", "validation_ops")
    @classmethod
    def _fewest_comes_first(cls, ops: list[int]) -> list[int]:
        if ops[0] > ops[1]:
            raise ValueError(f"the fewest ops, {ops[0]}, are more than the most, {ops[1]}")
        return ops


class TracesParams(Section):
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
    hints: Annotated[int, Field(ge=0)]


class PolicyParams(Section):
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


class ImitateParams(Section):
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


class ReinforceParams(Section):
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
    entropy: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    cases: Count
    self_imitation: bool
    validate_every: Annotated[int, Field(ge=0)]
    styles: Annotated[int, Field(ge=0)]
    jitter: Fraction
    draws: Annotated[int, Field(ge=0)]
    unhinted: Annotated[float, Field(ge=0, le=1)]


class SuiteParams(Section):
    """Cases on which every method is run.

    Attributes
    ----------
    cases : list of Grid
    budget : float
        Seconds of one core that each anytime method may search on each case.
    """

    cases: Annotated[list[Grid], Field(min_length=1)]
    budget: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class EvaluateParams(Section):
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
    search: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    jitter: Fraction
    jitter_seeds: Count

    @property
    def suites(self) -> dict[str, SuiteParams]:
        """The suites by name."""
        return {"suite": self.suite, "large": self.large, "operators": self.operators}


class SystemParams(Section):
    """A graph that runs on real devices, and how to improve its placement there (Stage III).

    Attributes
    ----------
    graph : str
        Name of the graph.
    backend : {"cpu", "cuda"}
    devices : int
        How many devices of the backend.
    profile_seconds : float
        Time to measure the devices in, about, for the cluster to begin with.
    budget : float
        Seconds of search for the placement to begin with.
    timeout : float
        Seconds after which one run of the graph is given up.
    max_regret : float
        What exploring may cost on average, as a share of the champion's time.
    margin : float
        A placement that is simulated to be slower than the champion by more than this share is
        not tried.
    """

    graph: Name
    backend: Literal["cpu", "cuda"]
    devices: Annotated[int, Field(ge=1, le=MAX_DEVICES)]
    profile_seconds: Positive
    budget: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    timeout: Positive
    max_regret: Positive
    margin: Positive


class RefineParams(SystemParams):
    """Stage III as a stage of the pipeline.

    Attributes
    ----------
    episodes : int
        Runs of the graph.
    pairs : int
        Paired runs in which the result is compared with what it began with.
    """

    episodes: Count
    pairs: Count

    @model_validator(mode="after")
    def _pairs_can_tell(self) -> Self:
        _refuse_what_cannot_tell(self.pairs)
        return self


class NightlyParams(SystemParams):
    """The nightly refinement of the deployed policy.

    Attributes
    ----------
    seconds : float
        Time to refine for.
    pairs : int
        Paired runs of champion and challenger, at most.
    confidence : float
        Of the interval that decides on a promotion.
    min_gain : float
        Share by which a challenger must be faster at least.
    looks : int
        How often to look whether the comparison is decided before all pairs have run.
    wait : float
        Seconds that a second refinement on this machine waits for the first, before it is skipped.
    lock : str
        File that they lock: those that name the same one take turns.
    commit : bool
        Whether to commit what is recorded of the registry to Git.
    cron : str
        When the flow is served: minute, hour, day of the month, month, day of the week.
    timezone : str
        Of ``cron``, ``Europe/Berlin``.
    """

    seconds: Positive
    pairs: Count
    confidence: Annotated[float, Field(ge=0.5, lt=1)]
    min_gain: Fraction
    looks: Count
    wait: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    lock: Annotated[str, Field(min_length=1)]
    commit: bool
    cron: Annotated[str, Field(pattern=r"^\S+( +\S+){4}$")]
    timezone: str

    @model_validator(mode="after")
    def _pairs_can_tell(self) -> Self:
        _refuse_what_cannot_tell(self.pairs, self.confidence, self.min_gain, self.looks)
        return self

    @field_validator("timezone")
    @classmethod
    def _timezone_exists(cls, timezone: str) -> str:
        known = zoneinfo.available_timezones()
        if timezone not in known:
            near = difflib.get_close_matches(timezone, known, n=1, cutoff=0.5)
            hint = f": did you mean {near[0]!r}?" if near else ", such as 'Europe/Berlin'"
            raise ValueError(f"{timezone!r} is not a time zone{hint}")
        return timezone


class Params(Section):
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
    text = read_text(path, "parameter", ParamsError)
    try:
        values = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it is cut short"
        raise ParamsError(f"{path}: not valid YAML{line} ({problem})") from None
    if not isinstance(values, dict):
        raise ParamsError(f"{path}: must hold the sections {', '.join(Params.model_fields)}")
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        raise ParamsError(f"{path}: {_first_problem(error)}") from None


def _refuse_what_cannot_tell(
    pairs: int, confidence: float = 0.95, min_gain: float = 0.0, looks: int = 1
) -> None:
    """Refuse a paired comparison now, not after the refinement that comes before it."""
    try:
        check_comparison(pairs, confidence, min_gain, looks)
    except PromotionError as error:
        raise ValueError(str(error)) from None


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{name} is missing"
    if problem["type"] == "value_error":
        return f"{name}: {message}" if name else message
    return f"{name} is {problem['input']!r}: {message[0].lower()}{message[1:]}"


class _Loader(yaml.SafeLoader):
    """Reads ``1e-3`` as a number, as YAML 1.2 and so DVC do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            seen: set[Any] = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node)
                if key in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"{key!r} is given twice", problem_mark=key_node.start_mark
                    )
                seen.add(key)
        return mapping


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)
