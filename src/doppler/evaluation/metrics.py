"""A report in a few numbers, for ``dvc metrics``."""

from __future__ import annotations

from collections.abc import Sequence

from doppler.evaluation.report import BASELINE, METHOD, Report, summarize
from doppler.evaluation.results import CaseResult


def flat_metrics(report: Report) -> dict[str, float]:
    """Sum up a report as numbers by name; what nothing tells is left out.

    Parameters
    ----------
    report : Report

    Returns
    -------
    dict of str to float
        ``cases`` and ``wins`` of the suite; ``gap_closed``, ``gap_closed_least`` and
        ``gap_closed_pooled``, the share of the distance from the baseline to the best known that
        the method closes: mean of the cases, least, and pooled, so that a case counts by how far
        the baseline is from the best known, in multiples of that; ``ratio_to_best`` over the
        suite; and ``zero_shot.METHOD``, the same ratio on the graphs that were held out. Ratios
        are geometric means.
    """
    summary = summarize(report)
    figures = {
        **{
            name: summary[name]
            for name in ("cases", "wins", "gap_closed", "gap_closed_least", "ratio_to_best")
        },
        "gap_closed_pooled": _pooled(report.suite),
        **{f"zero_shot.{name}": ratio for name, ratio in summary["zero_shot"].items()},
    }
    return {name: value for name, value in figures.items() if value is not None}


def _pooled(suite: Sequence[CaseResult]) -> float | None:
    told = [case for case in suite if case.closed(METHOD, BASELINE) is not None]
    distance = sum(case.ratio(BASELINE) - 1 for case in told)
    gained = sum(case.ratio(BASELINE) - case.ratio(METHOD) for case in told)
    return gained / distance if distance > 0 else None
