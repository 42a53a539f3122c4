"""Methods held against each other, in pairs of equal case and seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from doppler.experiments.results import (
    AblationCell,
    EpisodesCell,
    EpisodesRun,
    MeasuredCell,
    RobustnessCell,
    SecondsCell,
    StagesCell,
)
from doppler.experiments.statistics import (
    Estimate,
    geometric_mean,
    mean_by,
    plain_geometric_mean,
)

#: Makespans in seconds by the name of the method, of each case and seed.
Makespans = Mapping[tuple[str, int], Mapping[str, float]]

#: The paper's learned baselines.
LEARNED_BASELINES = ("placeto", "gdp")
#: The run-time and the jitter by which methods are compared unless said otherwise.
RUNTIME, JITTER = "priority", 0.1


class RatioPair(NamedTuple):
    """The ratio of two makespans on one case with one seed."""

    case: str
    seed: int
    ratio: float


def seconds_table(
    cells: Iterable[SecondsCell], runtime: str = RUNTIME, jitter: float = JITTER
) -> Makespans:
    """Return the expected makespan of every method at equal seconds, under one run-time."""
    return {
        (cell.given.case, cell.given.seed): {
            run.method: run.makespan_s
            for run in cell.result.runs
            if (run.runtime, run.jitter) == (runtime, jitter)
        }
        for cell in cells
    }


def episodes_table(cells: Iterable[EpisodesCell], as_many_as: str | None = None) -> Makespans:
    """Return the best makespan of every learned method at equal episodes.

    Parameters
    ----------
    cells : iterable of EpisodesCell
    as_many_as : str, optional
        A method that played fewer: all are judged after as many. By default those that played
        fewer than the others are left out.
    """
    return {
        (cell.given.case, cell.given.seed): _after_as_many(cell.result.runs, as_many_as)
        for cell in cells
    }


def _after_as_many(runs: Sequence[EpisodesRun], as_many_as: str | None) -> dict[str, float]:
    played = {run.method: max(run.curve.episodes) for run in runs}
    count = played.get(as_many_as, 0) if as_many_as else max(played.values(), default=0)
    row = {}
    for run in runs:
        if played[run.method] == count:
            row[run.method] = run.makespan_s
        elif played[run.method] > count > 0:
            best = zip(run.curve.episodes, run.curve.best_s, strict=True)
            found = [seconds for episodes, seconds in best if episodes <= count]
            if found:
                row[run.method] = found[-1]
    return row


def ablation_table(
    cells: Iterable[AblationCell], family: str, column: str = "makespan_s"
) -> Makespans:
    """Return a figure of every variant of one family."""
    return {
        (cell.given.case, cell.given.seed): {
            run.variant: float(getattr(run, column)) for run in cell.result.runs
        }
        for cell in cells
        if cell.given.family == family
    }


def stages_table(cells: Iterable[StagesCell], column: str = "measured_s") -> Makespans:
    """Return a figure of every combination of stages."""
    return {
        (cell.given.graph, cell.given.seed): {
            run.stages: float(getattr(run, column)) for run in cell.result.runs
        }
        for cell in cells
    }


def measured_table(cells: Iterable[MeasuredCell]) -> Makespans:
    """Return the median measured makespan of every method."""
    return {
        (measured_case(cell), 0): {run.method: run.median_s for run in cell.result.runs}
        for cell in cells
    }


def measured_case(cell: MeasuredCell) -> str:
    """Name of the case of a measured cell."""
    return f"{cell.given.graph} on {cell.given.devices} devices"


def robustness_table(cells: Iterable[RobustnessCell], kind: str, level: float) -> Makespans:
    """Return the makespan of every method at one level of what disturbs."""
    return {
        (cell.given.case, cell.given.seed): {run.method: run.makespan_s for run in row.runs}
        for cell in cells
        for row in cell.result.rows
        if (row.kind, row.level) == (kind, level)
    }


def cases_of(table: Makespans) -> list[str]:
    """All cases of a table, in their order."""
    return list(dict.fromkeys(case for case, _ in table))


def methods_in(table: Makespans) -> list[str]:
    """All methods of a table, in their order."""
    return list(dict.fromkeys(name for row in table.values() for name in row))


def pairs(table: Makespans, ours: str, theirs: str | Sequence[str]) -> list[RatioPair]:
    """Ratios of a method to a rival, where both are there.

    Parameters
    ----------
    table : mapping
    ours : str
    theirs : str or sequence of str
        Of several, the one that is best on the case by geometric mean over its seeds.
    """
    rivals = [theirs] if isinstance(theirs, str) else list(theirs)
    found = []
    for case in cases_of(table):
        rows = {seed: row for (name, seed), row in table.items() if name == case}
        rival = _best(list(rows.values()), rivals)
        if rival is not None:
            found += [
                RatioPair(case, seed, row[ours] / row[rival])
                for seed, row in rows.items()
                if ours in row and rival in row
            ]
    return found


def best_rival(table: Makespans, case: str, rivals: Sequence[str]) -> str | None:
    """Return the rival that is best on a case by geometric mean over its seeds."""
    return _best([row for (name, _), row in table.items() if name == case], rivals)


def _best(rows: Sequence[Mapping[str, float]], rivals: Sequence[str]) -> str | None:
    means = {
        name: plain_geometric_mean(found)
        for name in rivals
        if (found := [row[name] for row in rows if name in row])
    }
    return min(means, key=lambda name: means[name]) if means else None


def over_cases(found: Sequence[RatioPair]) -> Estimate | None:
    """Geometric mean; its interval says what other cases would show.

    The seeds of a case are averaged first.
    """
    means = mean_by((pair.case, pair.ratio) for pair in found)
    return geometric_mean(list(means.values())) if means else None


def over_seeds(found: Sequence[RatioPair]) -> Estimate | None:
    """Geometric mean; its interval says what other seeds would show on the same cases.

    The cases of a seed are averaged first.
    """
    means = mean_by((pair.seed, pair.ratio) for pair in found)
    return geometric_mean(list(means.values())) if means else None


def by_case(found: Sequence[RatioPair]) -> dict[str, Estimate]:
    """Geometric mean of each case, with its interval over seeds."""
    ratios: dict[str, list[float]] = {}
    for pair in found:
        ratios.setdefault(pair.case, []).append(pair.ratio)
    return {case: geometric_mean(members) for case, members in ratios.items()}


def gain(ratio: Estimate) -> Estimate:
    """Share by which a ratio is below 1."""
    return ratio.map(lambda value: 1 - value)


def excess(ratio: Estimate) -> Estimate:
    """Share by which a ratio is above 1."""
    return ratio.map(lambda value: value - 1)
