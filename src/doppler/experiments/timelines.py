"""Runs of the best and of the worst case, made again from what their cells were given."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from doppler.evaluation.report import CaseTimeline, load_report, save_timeline
from doppler.experiments.claims import compared
from doppler.experiments.contrasts import JITTER, by_case, pairs, seconds_table
from doppler.experiments.problems import problem_of
from doppler.experiments.results import Results, SecondsCell
from doppler.methods import LEARNED, METHODS, solve
from doppler.simulator import simulate
from doppler.viewer.units import format_percent

#: Of larger graphs a timeline is a carpet.
_MOST_OPS = 1_000


class Extreme(NamedTuple):
    """A case of the main comparison that is drawn.

    Attributes
    ----------
    cell : SecondsCell
        Of its first seed.
    rival : str
        The best of the other methods on it.
    ratio : float
        Makespan of doppler over that of the rival.
    said : str
        ``best`` or ``worst``, with the ratio.
    """

    cell: SecondsCell
    rival: str
    ratio: float
    said: str


def extremes(results: Results) -> list[Extreme]:
    """Find where doppler is the farthest below the best rival, and where the least or above."""
    cells = [cell for cell in compared(results.seconds) if cell.result.ops <= _MOST_OPS]
    table = seconds_table(cells)
    methods = {method for row in table.values() for method in row}
    rivals = [name for name in METHODS if name in methods and name != LEARNED]
    means = by_case(pairs(table, LEARNED, rivals))
    if not means:
        return []
    ordered = sorted(means, key=lambda case: means[case].value)
    found = []
    for case, word in dict([(ordered[-1], "worst"), (ordered[0], "best")]).items():
        cell = min(
            (cell for cell in cells if cell.given.case == case), key=lambda cell: cell.given.seed
        )
        ratio = means[case].value
        row = table[case, cell.given.seed]
        rival = min((row[name], name) for name in rivals if name in row)[1]
        below = "below" if ratio < 1 else "above"
        said = f"{word} case, {format_percent(abs(ratio - 1))} {below} the best rival"
        found.append(Extreme(cell, rival, ratio, said))
    return found[::-1]


def save_timelines(results: Results, folder: Path) -> list[Path]:
    """Place the best and the worst case again, by doppler and by the best rival; save their runs.

    Takes the seconds that the methods were given, a few in all.

    Parameters
    ----------
    results : Results
    folder : Path
        Emptied of other timelines first.

    Raises
    ------
    DopplerError
        If a file of a graph is gone, or nothing can be written.
    """
    for path in folder.rglob("*.json"):
        path.unlink()
    saved = []
    for extreme in extremes(results):
        given = extreme.cell.given
        settings = given.model_dump()
        problem = problem_of(settings)
        for method in (LEARNED, extreme.rival):
            jitter = JITTER if method == LEARNED else 0.0
            budget = float(settings["budget"])
            solution = solve(problem, method, budget=budget, seed=given.seed, jitter=jitter)
            trace = simulate(problem, solution.placement).trace
            timeline = CaseTimeline(given.graph, given.cluster, method, trace, problem.graph)
            saved.append(save_timeline(timeline, folder / extreme.said.split()[0] / method))
    return saved


def load_timelines(folder: Path) -> list[CaseTimeline]:
    """Read saved runs, those of one case beside each other; none if there is no such folder.

    Raises
    ------
    DopplerError
        If a file is damaged.
    """
    found: list[CaseTimeline] = []
    for path in sorted({path.parent for path in folder.rglob("*.json")}):
        found += load_report({}, timelines=path).timelines
    return found
