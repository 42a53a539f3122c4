"""A report in a few numbers, for ``dvc metrics``."""

from __future__ import annotations

from collections.abc import Sequence

from doppler.evaluation.report import BASELINE, METHOD, Report, summarize
from doppler.evaluation.results import EXPECTED, CaseResult


def flat_metrics(report: Report) -> dict[str, float]:
    """Sum up a report as numbers by name; what nothing tells is left out.

    Parameters
    ----------
    report : Report

    Returns
    -------
    dict of str to float
        For each suite, and for the cases ``trained`` on and ``held_out`` of all suites, under
        ``NAME.``: ``cases``, ``wins``, ``expected_wins`` and ``expected_fifo_wins``;
        ``ratio_to_best``; ``gap_closed``, ``gap_closed_least`` and ``gap_closed_pooled``, the share
        of the distance from the baseline to the best known that the method closes: mean of the
        cases, least, and pooled, so that a case counts by how far the baseline is from the best
        known, in multiples of that; and ``over.RIVAL``, the expected makespan of each rival over
        the method's. ``zero_shot.METHOD`` and ``zero_shot_large.METHOD``: the ratio to the best
        known, without search, on the graphs that were
        held out. Ratios are geometric means.
    """
    summary = summarize(report)
    groups = {
        **summary["suites"],
        "trained": summary["trained"],
        "held_out": summary["held_out"],
    }
    figures: dict[str, float | None] = {}
    for group, own in groups.items():
        if not own["cases"]:
            continue
        for name, value in own.items():
            if name != "rivals":
                figures[f"{group}.{name}"] = value
        if group in report.suites:
            figures[f"{group}.gap_closed_pooled"] = _pooled(report.suites[group])
        for rival, ratios in own["rivals"].items():
            figures[f"{group}.over.{rival}"] = ratios[EXPECTED]
    for group in report.unseen:
        figures |= {f"{group}.{name}": ratio for name, ratio in summary[group].items()}
    return {name: value for name, value in figures.items() if value is not None}


def _pooled(suite: Sequence[CaseResult]) -> float | None:
    told = [case for case in suite if case.closed(METHOD, BASELINE) is not None]
    distance = sum(case.ratio(BASELINE) - 1 for case in told)
    gained = sum(case.ratio(BASELINE) - case.ratio(METHOD) for case in told)
    return gained / distance if distance > 0 else None
