"""Cells in a few figures each, for a file that people and programs read whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

from doppler.experiments.results import (
    AblationCell,
    EpisodesCell,
    ExactCell,
    MeasuredCell,
    Results,
    RobustnessCell,
    ScalingCell,
    SearchCell,
    SecondsCell,
    StagesCell,
    StoredCell,
    SynchronousCell,
    TransferCell,
)


def compact_cells(results: Results) -> list[dict[str, Any]]:
    """Return every cell as plain JSON: experiment, what was given, and its key figures.

    Settings of workloads, curves and single samples are left out; times are in seconds.
    """
    return [
        {
            "experiment": name,
            "given": cell.given.settings,
            "seconds": short(cell.seconds),
            "result": figures(cell),
        }
        for name, cells in results.experiments.items()
        for cell in cells
    ]


def short(value: float | None) -> float | None:
    """Round to five figures."""
    return None if value is None else float(f"{value:.5g}")


@singledispatch
def figures(cell: StoredCell) -> dict[str, Any]:
    """Return the key figures of a cell."""
    raise TypeError(cell)


def _plain(cell: Any) -> dict[str, Any]:
    values = cell.result.model_dump(exclude={"curve_scratch", "curve_few"})
    return {
        name: short(value) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None
    }


for _kind in (TransferCell, ScalingCell, SearchCell, ExactCell):
    figures.register(_kind, _plain)


@figures.register
def _(cell: SecondsCell) -> dict[str, Any]:
    found: dict[str, dict[str, float | None]] = {}
    for run in cell.result.runs:
        name = f"{run.runtime}, jitter {run.jitter:g}"
        found.setdefault(name, {})[run.method] = short(run.makespan_s)
    return {"lower_bound_s": short(cell.result.lower_bound_s), "makespan_s": found}


@figures.register
def _(cell: EpisodesCell) -> dict[str, Any]:
    columns = ("makespan_s", "greedy_s", "first_s", "last_s", "seconds")
    return {
        "lower_bound_s": short(cell.result.lower_bound_s),
        "runs": _rows(cell.result.runs, "method", columns),
    }


@figures.register
def _(cell: SynchronousCell) -> dict[str, Any]:
    return _rows(cell.result.runs, "method", ("work_conserving_s", "synchronous_s"))


@figures.register
def _(cell: AblationCell) -> dict[str, Any]:
    return _rows(cell.result.runs, "variant", ("makespan_s", "greedy_s", "seconds"))


@figures.register
def _(cell: StagesCell) -> dict[str, Any]:
    return _rows(cell.result.runs, "stages", ("measured_s", "low_s", "high_s", "simulated_s"))


@figures.register
def _(cell: MeasuredCell) -> dict[str, Any]:
    return _rows(cell.result.runs, "method", ("median_s", "low_s", "high_s", "simulated_s"))


@figures.register
def _(cell: RobustnessCell) -> dict[str, Any]:
    return {
        f"{row.kind} {row.level:g}": {
            "informed_s": short(row.informed_s),
            **{run.method: short(run.makespan_s) for run in row.runs},
        }
        for row in cell.result.rows
    }


def _rows(runs: Any, name: str, columns: tuple[str, ...]) -> dict[str, Any]:
    read: Callable[[Any, str], Any] = getattr
    return {
        read(run, name): {column: short(read(run, column)) for column in columns} for run in runs
    }
