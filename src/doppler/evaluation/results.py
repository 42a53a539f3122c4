"""Results of comparisons: what each method reached on each graph and cluster, as plain JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel

from doppler.documents.json_text import read_json
from doppler.documents.schema import Strict, check
from doppler.errors import DopplerError
from doppler.files import write_atomic

Scalar = str | int | float | bool | None

#: The figures by which methods can be judged: without noise; the mean of runs whose durations vary;
#: the same where the first ready op runs first.
MAKESPAN, EXPECTED, EXPECTED_FIFO = "makespan_s", "expected_makespan_s", "expected_fifo_s"
#: How much of a case the policy has seen in training: the graph on this cluster, the graph on
#: others, neither.
TRAINED = ("case", "graph", "none")
#: Least distance of a baseline from the best known, relative, of which a share is told.
LEAST_GAP = 0.01
_OPTIONAL = (EXPECTED, "makespan_std_s", EXPECTED_FIFO)


@dataclass(frozen=True, slots=True)
class MethodResult:
    """What one method reached.

    Attributes
    ----------
    makespan_s : float
        Simulated seconds of its placement, without jitter.
    seconds : float
        Time that the method took to find it.
    expected_makespan_s, makespan_std_s : float or None
        Mean and standard deviation of the makespan when durations vary, over seeds that the method
        has not seen.
    expected_fifo_s : float or None
        The mean where the first ready op runs first, whatever its priority.
    extra : mapping of str to a plain value
        Further figures of the method (episodes, how the placement was found), kept as they are.
    """

    makespan_s: float
    seconds: float
    expected_makespan_s: float | None = None
    makespan_std_s: float | None = None
    expected_fifo_s: float | None = None
    extra: Mapping[str, Scalar] = field(default_factory=dict)

    def figure(self, column: str) -> float | None:
        """Return one of the figures by which methods can be judged, in seconds."""
        value: float | None = getattr(self, column)
        return value


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One graph on one cluster.

    Attributes
    ----------
    graph, cluster : str
        Their names.
    ops, devices : int
    methods : mapping of str to MethodResult
    best_known_s : float
        Smallest makespan ever found, by whatever means.
    lower_bound_s : float
        No placement can be faster.
    cores : int or None
        How many each method had for its seconds, where that is known.
    jitter : float or None
        Standard deviation of the logarithm of every duration behind the expected makespans.
    trained : {"case", "graph", "none"} or None
        How much of it the policy has seen in training, see :data:`TRAINED`.
    """

    graph: str
    cluster: str
    ops: int
    devices: int
    methods: Mapping[str, MethodResult]
    best_known_s: float
    lower_bound_s: float
    cores: int | None = None
    jitter: float | None = None
    trained: str | None = None

    @property
    def best_s(self) -> float:
        """The best makespan known, the methods of this case included."""
        return min(self.best_known_s, *(result.makespan_s for result in self.methods.values()))

    @property
    def judged_by(self) -> str:
        """The figure that decides: the expected makespan where durations vary, if all have it."""
        expected = [result.expected_makespan_s for result in self.methods.values()]
        return EXPECTED if self.jitter and None not in expected else MAKESPAN

    @property
    def winner(self) -> str:
        """Method that is best by what this case is judged by; of equal ones the first."""
        return self.ranked()[0]

    def ranked(self, column: str | None = None) -> list[str]:
        """Methods that have a figure, from the best to the worst; by default what is judged by."""
        found = self._figures(self.judged_by if column is None else column)
        return sorted(found, key=lambda name: found[name])

    def best(self, column: str) -> float | None:
        """Return the least of a figure: of the makespan what is best known, else of the methods."""
        if column == MAKESPAN:
            return self.best_s
        return min(self._figures(column).values(), default=None)

    def ratio(self, method: str, column: str = MAKESPAN) -> float:
        """Figure of a method over the least, at least 1; infinite over a best of 0.

        Raises
        ------
        KeyError
            If the method has no such figure.
        """
        found = self._figures(column)
        best = self.best(column)
        if not best:
            return 1.0 if found[method] == 0 else math.inf
        return found[method] / best

    def closed(self, method: str, baseline: str) -> float | None:
        """Share of the distance from a baseline to the best known that a method closes.

        1 is the best known, 0 no better than the baseline; None where a method is missing or the
        baseline leaves next to nothing to close, less than 1%, of which shares mean nothing.
        """
        if method not in self.methods or baseline not in self.methods:
            return None
        start = self.methods[baseline].makespan_s
        if start <= self.best_s * (1 + LEAST_GAP):
            return None
        return (start - self.methods[method].makespan_s) / (start - self.best_s)

    def wins(self, method: str, column: str = MAKESPAN, tolerance: float = 0.002) -> bool:
        """Whether a method is at or below every other, within a relative tolerance."""
        found = self._figures(column)
        if method not in found:
            return False
        own = found.pop(method)
        return own <= min(found.values(), default=math.inf) * (1 + tolerance)

    def best_other(self, method: str, column: str) -> str | None:
        """Return the best of the other methods, the strongest rival."""
        return next((name for name in self.ranked(column) if name != method), None)

    def has(self, method: str, column: str) -> bool:
        """Whether a method has a figure in this case."""
        return method in self._figures(column)

    def _figures(self, column: str) -> dict[str, float]:
        return {
            name: value
            for name, result in self.methods.items()
            if (value := result.figure(column)) is not None
        }

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, one entry of ``reports/suite.json``."""
        entry = {
            "graph": self.graph,
            "cluster": self.cluster,
            "ops": self.ops,
            "devices": self.devices,
            "methods": {name: _method_to_json(result) for name, result in self.methods.items()},
            "best_known_s": self.best_known_s,
            "lower_bound_s": self.lower_bound_s,
        }
        known = {name: getattr(self, name) for name in ("cores", "jitter", "trained")}
        return entry | {name: value for name, value in known.items() if value is not None}


_Figure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1)]


def _plain(value: Any) -> Any:
    if isinstance(value, list | dict):
        raise ValueError("must be a plain value")
    return value


class _Method(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[Any, AfterValidator(_plain)]]

    makespan_s: _Figure
    seconds: _Figure
    expected_makespan_s: _Figure | None = None
    makespan_std_s: _Figure | None = None
    expected_fifo_s: _Figure | None = None


class _Case(Strict):
    graph: str
    cluster: str
    ops: _Count
    devices: _Count
    methods: Annotated[dict[str, _Method], Field(min_length=1)]
    best_known_s: _Figure
    lower_bound_s: _Figure
    cores: _Count | None = None
    jitter: _Figure | None = None
    trained: Literal["case", "graph", "none"] | None = None


class _File(RootModel[list[_Case]]):
    pass


def load_results(path: str | os.PathLike[str]) -> tuple[CaseResult, ...]:
    """Read a file of results, such as ``reports/suite.json``.

    Raises
    ------
    DopplerError
        If the file is missing, not a JSON list, or breaks a rule; the message names the entry.
    """
    cases = parse_results(read_json(path, "results", DopplerError), str(path))
    _unique(cases, str(path))
    return cases


def parse_results(entries: object, where: str) -> tuple[CaseResult, ...]:
    """Make results of what :meth:`CaseResult.to_json` returned.

    Raises
    ------
    DopplerError
        If a key is missing or unknown, or a figure is impossible.
    """
    return tuple(map(_case_result, check(_File, entries, where, DopplerError).root))


def save_results(cases: Iterable[CaseResult], path: str | os.PathLike[str]) -> Path:
    """Write results as JSON, whole or not at all.

    Raises
    ------
    DopplerError
        If a graph and cluster occur twice, or the file cannot be written.
    """
    kept = list(cases)
    _unique(kept, str(path))
    text = json.dumps([case.to_json() for case in kept], indent=1, allow_nan=False)
    return write_atomic(path, text + "\n")


def _method_to_json(result: MethodResult) -> dict[str, Scalar]:
    figures: dict[str, Scalar] = {"makespan_s": result.makespan_s, "seconds": result.seconds}
    for name in _OPTIONAL:
        value = getattr(result, name)
        if value is not None:
            figures[name] = value
    return {**figures, **result.extra}


def _case_result(case: _Case) -> CaseResult:
    methods = {
        name: MethodResult(
            **{key: value for key, value in method if key in _Method.model_fields},
            extra=dict(method.__pydantic_extra__),
        )
        for name, method in case.methods.items()
    }
    return CaseResult(**{**dict(case), "methods": methods})


def _unique(cases: Iterable[CaseResult], where: str) -> None:
    seen: set[tuple[str, str]] = set()
    for case in cases:
        if (case.graph, case.cluster) in seen:
            raise DopplerError(f"{where}: graph {case.graph!r} on {case.cluster!r} occurs twice")
        seen.add((case.graph, case.cluster))
