"""Results of comparisons: what each method reached on each graph and cluster, as plain JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from doppler.documents.json_text import read_json
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

    Raises
    ------
    DopplerError
        If a figure is negative, not finite or not a number.
    """

    makespan_s: float
    seconds: float
    expected_makespan_s: float | None = None
    makespan_std_s: float | None = None
    expected_fifo_s: float | None = None
    extra: Mapping[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_figure(self.makespan_s, "makespan_s")
        _check_figure(self.seconds, "seconds")
        for name in _OPTIONAL:
            value = getattr(self, name)
            if value is not None:
                _check_figure(value, name)

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

    Raises
    ------
    DopplerError
        If a figure is impossible, or there is no method.
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

    def __post_init__(self) -> None:
        for name in ("ops", "devices", "cores"):
            value = getattr(self, name)
            if name == "cores" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise DopplerError(f"{name} is {value!r}, must be a whole number >= 1")
        _check_figure(self.best_known_s, "best_known_s")
        _check_figure(self.lower_bound_s, "lower_bound_s")
        if self.jitter is not None:
            _check_figure(self.jitter, "jitter")
        if self.trained is not None and self.trained not in TRAINED:
            raise DopplerError(
                f"trained is {_short(self.trained)}, must be one of {', '.join(TRAINED)}"
            )
        if not self.methods:
            raise DopplerError("methods is empty, there must be at least one")

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

    @classmethod
    def from_json(cls, entry: Any) -> CaseResult:
        """Read one entry.

        Raises
        ------
        DopplerError
            If a key is missing or unknown, or a figure is impossible.
        """
        if not isinstance(entry, dict):
            raise DopplerError(f"is {_short(entry)}, must be an object")
        known = {"graph", "cluster", "ops", "devices", "methods", "best_known_s", "lower_bound_s"}
        unknown = entry.keys() - known - {"cores", "jitter", "trained"}
        for what, keys in (("lacks", known - entry.keys()), ("has unknown", unknown)):
            if keys:
                raise DopplerError(f"{what} {', '.join(map(repr, sorted(keys)))}")
        if not isinstance(entry["methods"], dict):
            raise DopplerError(f"methods is {_short(entry['methods'])}, must be an object")
        for key in ("graph", "cluster"):
            if not isinstance(entry[key], str):
                raise DopplerError(f"{key} is {_short(entry[key])}, must be a string")
        methods = {name: _method_from_json(name, v) for name, v in entry["methods"].items()}
        return cls(**{**entry, "methods": methods})


def load_results(path: str | os.PathLike[str]) -> tuple[CaseResult, ...]:
    """Read a file of results, such as ``reports/suite.json``.

    Raises
    ------
    DopplerError
        If the file is missing, not a JSON list, or breaks a rule; the message names the entry.
    """
    entries = read_json(path, "results", DopplerError)
    if not isinstance(entries, list):
        raise DopplerError(f"{path}: holds {_short(entries)}, must be a list of results")
    cases: list[CaseResult] = []
    for place, entry in enumerate(entries):
        try:
            cases.append(CaseResult.from_json(entry))
        except DopplerError as error:
            raise DopplerError(f"{path}: entry {place}: {error}") from None
    _unique(cases, str(path))
    return tuple(cases)


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


def _method_from_json(name: str, figures: Any) -> MethodResult:
    if not isinstance(figures, dict):
        raise DopplerError(f"method {name!r} is {_short(figures)}, must be an object")
    own = (MAKESPAN, "seconds", *_OPTIONAL)
    for key in own[:2]:
        if key not in figures:
            raise DopplerError(f"method {name!r} lacks {key!r}")
    extra = {key: value for key, value in figures.items() if key not in own}
    for key, value in extra.items():
        if isinstance(value, list | dict):
            raise DopplerError(f"method {name!r}: {key} must be a plain value")
    try:
        return MethodResult(**{key: figures[key] for key in own if key in figures}, extra=extra)
    except DopplerError as error:
        raise DopplerError(f"method {name!r}: {error}") from None


def _unique(cases: Iterable[CaseResult], where: str) -> None:
    seen: set[tuple[str, str]] = set()
    for case in cases:
        if (case.graph, case.cluster) in seen:
            raise DopplerError(f"{where}: graph {case.graph!r} on {case.cluster!r} occurs twice")
        seen.add((case.graph, case.cluster))


def _check_figure(value: object, name: str) -> None:
    possible = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )
    if not possible:
        raise DopplerError(f"{name} is {_short(value)}, must be a finite number >= 0")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
