"""The stored cells of a folder, each checked: what is damaged is named, and the others are read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from doppler.documents.json_text import read_json
from doppler.documents.schema import check
from doppler.errors import DopplerError

Time = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Size = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class StoredRecord(BaseModel):
    """Base of what a stored cell holds: more keys than these may be there."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, defer_build=True)


class Given(StoredRecord):
    """What tells a cell from the others of its experiment, and its settings."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, defer_build=True)

    @property
    def settings(self) -> dict[str, str | int | float | bool]:
        """All plain values: names and numbers, without the settings of workloads and methods."""
        values = self.model_dump()
        return {k: v for k, v in values.items() if isinstance(v, str | int | float | bool)}


class CaseGiven(Given):
    """A cell of one graph on one cluster."""

    graph: str
    cluster: str
    seed: int = 0
    suite: str = "workloads"

    @property
    def case(self) -> str:
        """Name of the case, for people."""
        return f"{self.graph} on {self.cluster}"


class LearningCurve(StoredRecord):
    """Mean and best simulated seconds after each batch of episodes."""

    episodes: list[Finite]
    mean_s: list[Time]
    best_s: list[Time]
    seconds: list[Finite] = Field(default_factory=list)

    @model_validator(mode="after")
    def _equally_long(self) -> Self:
        if not len(self.episodes) == len(self.mean_s) == len(self.best_s):
            raise ValueError("episodes, mean_s and best_s must be equally long")
        return self


class MethodRun(StoredRecord):
    """A method and the makespan of its placement."""

    method: str
    makespan_s: Time


class SecondsRun(MethodRun):
    """A method under one run-time and jitter."""

    runtime: Literal["priority", "fifo"]
    jitter: Finite
    seconds: Finite = 0.0
    origin: str = ""


class EpisodesRun(MethodRun):
    """A method that learned for some episodes."""

    greedy_s: Time
    first_s: Time
    last_s: Time
    seconds: Finite
    curve: LearningCurve


class SynchronousRun(StoredRecord):
    """A placement under both kinds of run-time."""

    method: str
    work_conserving_s: Time
    synchronous_s: Time


class AblationRun(StoredRecord):
    """A variant of the policy; ``last_s`` is the mean of the last eighth of its episodes."""

    variant: str
    makespan_s: Time
    greedy_s: Time
    last_s: Time
    seconds: Time
    curve: LearningCurve | None = None


class StagesRun(StoredRecord):
    """Some stages of the training, measured on the engine."""

    stages: str
    measured_s: Time
    low_s: Time | None = None
    high_s: Time | None = None
    simulated_s: Time
    curve: LearningCurve | None = None


class MeasuredRun(StoredRecord):
    """A placement on the engine."""

    method: str
    median_s: Time
    low_s: Time
    high_s: Time
    simulated_s: Time
    samples_s: list[Time] = Field(min_length=1)


class RobustnessRow(StoredRecord):
    """Every method at one level of what disturbs, and who plans knowing it."""

    kind: Literal["jitter", "costs"]
    level: Finite
    runs: list[MethodRun]
    informed_s: Time


class StoredCell(StoredRecord):
    """A stored cell; ``NAME`` is its experiment."""

    NAME: ClassVar[str]
    experiment: str
    given: Given
    seconds: Finite = 0.0


class _Sized(StoredRecord):
    ops: Count
    devices: Count
    lower_bound_s: Finite


class _SecondsResult(_Sized):
    runs: list[SecondsRun]


class SecondsCell(StoredCell):
    """Every method on a case at equal seconds."""

    NAME: ClassVar[str] = "seconds"
    given: CaseGiven
    result: _SecondsResult


class _EpisodesResult(_Sized):
    runs: list[EpisodesRun]


class EpisodesCell(StoredCell):
    """Every learned method on a case at equal episodes."""

    NAME: ClassVar[str] = "episodes"
    given: CaseGiven
    result: _EpisodesResult


class _SynchronousResult(StoredRecord):
    runs: list[SynchronousRun]


class SynchronousCell(StoredCell):
    """Placements of a case under both kinds of run-time."""

    NAME: ClassVar[str] = "synchronous"
    given: CaseGiven
    result: _SynchronousResult


class _AblationGiven(CaseGiven):
    family: Literal["paper", "ours", "messages"]


class _AblationResult(StoredRecord):
    runs: list[AblationRun]


class AblationCell(StoredCell):
    """Variants of a policy on a case."""

    NAME: ClassVar[str] = "ablation"
    given: _AblationGiven
    result: _AblationResult


class _StagesGiven(Given):
    graph: str
    seed: int = 0


class _StagesResult(StoredRecord):
    runs: list[StagesRun]


class StagesCell(StoredCell):
    """Stages of the training on a graph, on the engine."""

    NAME: ClassVar[str] = "stages"
    given: _StagesGiven
    result: _StagesResult


class _TransferGiven(Given):
    source: str
    target: str
    kind: Literal["workload", "devices", "machine"]
    seed: int = 0


class _TransferResult(StoredRecord):
    scratch_s: Time
    zero_shot_s: Time
    few_shot_s: Time
    few_scratch_s: Time | None = None
    few_episodes: Size
    scratch_episodes: Size
    curve_scratch: LearningCurve | None = None
    curve_few: LearningCurve | None = None


class TransferCell(StoredCell):
    """A policy of one problem that goes on on another, beside one from scratch."""

    NAME: ClassVar[str] = "transfer"
    given: _TransferGiven
    result: _TransferResult


class _ScalingGiven(Given):
    method: str


class _ScalingResult(StoredRecord):
    ops: Count
    train_step_s: Time | None = None
    inference_s: Time | None = None
    # Nothing, where a small graph took no more than the process had already held.
    train_memory_bytes: Amount | None = None
    inference_memory_bytes: Amount | None = None


class ScalingCell(StoredCell):
    """Time and memory of a method at one size."""

    NAME: ClassVar[str] = "scaling"
    given: _ScalingGiven
    result: _ScalingResult


class _RobustnessResult(StoredRecord):
    rows: list[RobustnessRow]


class RobustnessCell(StoredCell):
    """Placements of a case under what they were not planned for."""

    NAME: ClassVar[str] = "robustness"
    given: CaseGiven
    result: _RobustnessResult


class _SearchGiven(CaseGiven):
    budget: Size


class _SearchResult(StoredRecord):
    with_policy_s: Time
    search_alone_s: Time


class SearchCell(StoredCell):
    """Search with and without a policy for the same seconds."""

    NAME: ClassVar[str] = "search"
    given: _SearchGiven
    result: _SearchResult


class _ExactGiven(Given):
    kind: Literal["optimum", "bound"]
    graph: str = ""
    cluster: str = ""
    number: int | None = None


class _ExactResult(StoredRecord):
    doppler_s: Time
    bound_s: Finite | None = None
    simple_bound_s: Finite | None = None
    own_bound_s: Finite | None = None
    optimum_s: Time | None = None
    proven: bool = False
    critical_path_s: Time | None = None


class ExactCell(StoredCell):
    """An optimum of a small graph, or a bound of a large one."""

    NAME: ClassVar[str] = "exact"
    given: _ExactGiven
    result: _ExactResult

    @model_validator(mode="after")
    def _complete(self) -> Self:
        need = {"optimum": ("optimum_s",), "bound": ("simple_bound_s", "bound_s")}
        for name in need[self.given.kind]:
            if getattr(self.result, name) is None:
                raise ValueError(f"result.{name} is missing")
        return self


class _MeasuredGiven(Given):
    graph: str
    devices: int = 2


class _MeasuredResult(StoredRecord):
    runs: list[MeasuredRun]


class MeasuredCell(StoredCell):
    """Every method on a graph, on the engine."""

    NAME: ClassVar[str] = "measured"
    given: _MeasuredGiven
    result: _MeasuredResult


@dataclass(frozen=True)
class Results:
    """All stored cells by experiment, in the order of the report.

    Attributes
    ----------
    seconds, episodes, ... : tuple of StoredCell
        Empty where an experiment was not run.
    faults : tuple of str
        One line for each file that cannot be used; it names the file and the fix.
    """

    seconds: tuple[SecondsCell, ...] = ()
    episodes: tuple[EpisodesCell, ...] = ()
    synchronous: tuple[SynchronousCell, ...] = ()
    ablation: tuple[AblationCell, ...] = ()
    stages: tuple[StagesCell, ...] = ()
    transfer: tuple[TransferCell, ...] = ()
    scaling: tuple[ScalingCell, ...] = ()
    robustness: tuple[RobustnessCell, ...] = ()
    search: tuple[SearchCell, ...] = ()
    exact: tuple[ExactCell, ...] = ()
    measured: tuple[MeasuredCell, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def experiments(self) -> dict[str, tuple[StoredCell, ...]]:
        """The cells by the name of their experiment."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "faults"}


C = TypeVar("C", bound=StoredCell)


def load_results(folder: Path) -> Results:
    """Read every stored cell, ``{experiment}/{name}.json`` below a folder.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    Results
        A file that is damaged is no cell but a line of ``faults``.

    Raises
    ------
    DopplerError
        If there is no such folder.
    """
    if not folder.is_dir():
        raise DopplerError(f"{folder}: no such folder; run the experiments first")
    faults: list[str] = []

    def load(schema: type[C]) -> tuple[C, ...]:
        name = schema.NAME
        found = []
        for path in sorted((folder / name).glob("*.json")):
            try:
                found.append(_load(path, schema, name))
            except DopplerError as error:
                faults.append(f"{error}; remove the file and run the experiment {name} again")
        return tuple(found)

    return Results(
        seconds=load(SecondsCell),
        episodes=load(EpisodesCell),
        synchronous=load(SynchronousCell),
        ablation=load(AblationCell),
        stages=load(StagesCell),
        transfer=load(TransferCell),
        scaling=load(ScalingCell),
        robustness=load(RobustnessCell),
        search=load(SearchCell),
        exact=load(ExactCell),
        measured=load(MeasuredCell),
        faults=tuple(faults),
    )


def _load(path: Path, schema: type[C], name: str) -> C:
    document: Any = read_json(path, "cell", DopplerError)
    cell = check(schema, document, str(path), DopplerError)
    if cell.experiment != name:
        raise DopplerError(f"{path}: is a cell of the experiment {cell.experiment!r}")
    return cell
