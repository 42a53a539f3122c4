"""The report: one page that shows what the methods reached, made from plain data files."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from doppler.documents.json_text import read_json
from doppler.errors import DopplerError
from doppler.evaluation.curves import Curve, curves_svg, group_curves, load_curves
from doppler.evaluation.results import (
    EXPECTED,
    EXPECTED_FIFO,
    MAKESPAN,
    CaseResult,
    load_results,
)
from doppler.files import write_atomic
from doppler.trace import Trace
from doppler.viewer.chrome import from_chrome, to_chrome
from doppler.viewer.labels import Labels
from doppler.viewer.page import render
from doppler.viewer.palette import color
from doppler.viewer.timeline_svg import timeline_svg
from doppler.viewer.units import count_of, format_percent, format_seconds

#: The method that the report is about, and the one that it is measured from.
METHOD, BASELINE = "doppler", "critical_path"
#: Suites of cases in the order of the report, and what people read above them.
SUITES = {
    "suite": "Small graphs",
    "large": "Large graphs and several nodes",
    "operators": "Irregular graphs",
}
#: The same of the cases without search, on graphs that no training has seen.
UNSEEN = {"zero_shot": "Zero-shot", "zero_shot_large": "Zero-shot, large"}
_MOST_CHARTS = 12
# Axis of ratios to the best known: beyond it a bar or a dot stands at the edge.
_WORST_RATIO = 3.0


@dataclass(frozen=True, eq=False)
class CaseTimeline:
    """The run of one method on one case.

    Attributes
    ----------
    graph, cluster, method : str
        Names, as in the results.
    trace : Trace
    labels : Labels
        Names, kinds and meta-ops of the ops: the graph itself or what its trace file says.
    """

    graph: str
    cluster: str
    method: str
    trace: Trace
    labels: Labels


@dataclass(frozen=True, eq=False)
class Report:
    """All that the page shows.

    Attributes
    ----------
    suites : mapping of str to tuple of CaseResult
        Every method on the cases of each suite, by the names of :data:`SUITES`.
    zero_shot : tuple of CaseResult
        The policy without search on graphs that it never saw.
    curves : mapping of str to tuple of Curve
        Metrics by training stage.
    timelines : tuple of CaseTimeline
        Drawn beside the results of their case.
    title : str
    zero_shot_large : tuple of CaseResult
        As ``zero_shot``, on large graphs.
    """

    suites: Mapping[str, tuple[CaseResult, ...]]
    zero_shot: tuple[CaseResult, ...] = ()
    curves: Mapping[str, tuple[Curve, ...]] = field(default_factory=dict)
    timelines: tuple[CaseTimeline, ...] = ()
    title: str = "Doppler: placements compared"
    zero_shot_large: tuple[CaseResult, ...] = ()

    @property
    def cases(self) -> tuple[CaseResult, ...]:
        """All cases on which methods are compared, suite by suite."""
        return tuple(case for suite in self.suites.values() for case in suite)

    @property
    def unseen(self) -> dict[str, tuple[CaseResult, ...]]:
        """The cases without search, small and large, by name."""
        return {"zero_shot": self.zero_shot, "zero_shot_large": self.zero_shot_large}


def load_report(
    suites: Mapping[str, str | os.PathLike[str]],
    zero_shot: str | os.PathLike[str] | None = None,
    curves: Mapping[str, str | os.PathLike[str]] | None = None,
    timelines: str | os.PathLike[str] | None = None,
    zero_shot_large: str | os.PathLike[str] | None = None,
) -> Report:
    """Collect a report from its files.

    Parameters
    ----------
    suites : mapping of str to path-like
        JSON file of results of each suite.
    zero_shot, zero_shot_large : path-like
        JSON file of results.
    curves : mapping of str to path-like
        CSV file of metrics of each training stage.
    timelines : path-like
        Folder that :func:`save_timeline` filled.

    Raises
    ------
    DopplerError
        If a file is missing or damaged.
    """
    folder = None if timelines is None else Path(timelines)
    files = [] if folder is None else sorted(folder.glob("*.json"))
    return Report(
        suites={name: load_results(path) for name, path in suites.items()},
        zero_shot=() if zero_shot is None else load_results(zero_shot),
        zero_shot_large=() if zero_shot_large is None else load_results(zero_shot_large),
        curves={stage: load_curves(path) for stage, path in (curves or {}).items()},
        timelines=tuple(_load_timeline(path) for path in files),
    )


def save_timeline(timeline: CaseTimeline, folder: str | os.PathLike[str]) -> Path:
    """Write the run of a case as a trace that Chrome and Perfetto open too.

    Raises
    ------
    DopplerError
        If the file cannot be written.
    """
    document = to_chrome(timeline.trace, timeline.labels)
    document["otherData"]["case"] = {
        "graph": timeline.graph,
        "cluster": timeline.cluster,
        "method": timeline.method,
    }
    name = re.sub(r"[^\w.-]+", "_", f"{timeline.graph}-{timeline.cluster}")
    return write_atomic(Path(folder) / f"{name}.json", json.dumps(document) + "\n")


def write_report(report: Report, folder: str | os.PathLike[str]) -> list[Path]:
    """Write ``index.html``, ``report.json`` and ``report.csv``.

    The JSON holds the summary and the results; the CSV one row for each method of each case.

    Raises
    ------
    DopplerError
        If a file cannot be written.
    """
    page = render_report(report)
    data = {
        "summary": summarize(report),
        **{name: [case.to_json() for case in suite] for name, suite in report.suites.items()},
        **{name: [case.to_json() for case in cases] for name, cases in report.unseen.items()},
    }
    where = Path(folder)
    return [
        write_atomic(where / "index.html", page),
        write_atomic(where / "report.json", json.dumps(data, indent=1, allow_nan=False) + "\n"),
        write_atomic(where / "report.csv", _csv(report)),
    ]


def summarize(report: Report, method: str = METHOD, baseline: str = BASELINE) -> dict[str, Any]:
    """Sum up a report in a few figures.

    Returns
    -------
    dict
        ``method``, ``baseline``; ``suites``, for each suite, and ``trained`` and ``held_out``, for
        the cases whose graphs the policy has seen in training and the others of all suites, what
        :func:`summarize_cases` says; and ``zero_shot`` and ``zero_shot_large``, the geometric mean
        over the best known of each method on the graphs that were held out.
    """
    marked = [case for case in report.cases if case.trained is not None]
    return {
        "method": method,
        "baseline": baseline,
        "suites": {
            name: summarize_cases(suite, method, baseline) for name, suite in report.suites.items()
        },
        "trained": summarize_cases(
            [case for case in marked if case.trained != "none"], method, baseline
        ),
        "held_out": summarize_cases(
            [case for case in marked if case.trained == "none"], method, baseline
        ),
        **{
            name: {method: mean_ratio(cases, method) for method in methods_of(cases)}
            for name, cases in report.unseen.items()
        },
    }


def summarize_cases(
    cases: Sequence[CaseResult], method: str = METHOD, baseline: str = BASELINE
) -> dict[str, Any]:
    """Sum up some cases in a few figures.

    Returns
    -------
    dict
        ``cases``; ``wins``, ``expected_wins`` and ``expected_fifo_wins``, those in which the method
        is at or below every other within 0.2 %: without jitter, under jitter, and under jitter
        where the first ready op runs first; ``gap_closed``, mean share of the distance from the
        baseline to the best known, and ``gap_closed_least``; ``ratio_to_best``, geometric mean over
        the best known; and ``rivals``: for each other method the geometric mean of its makespan
        over the method's, ``makespan_s``, ``expected_makespan_s`` and ``expected_fifo_s``, on the
        ``cases`` that both can place. None where nothing tells.
    """
    closed = [share for case in cases if (share := case.closed(method, baseline)) is not None]
    return {
        "cases": len(cases),
        "wins": sum(case.wins(method) for case in cases),
        "expected_wins": _wins(cases, method, EXPECTED),
        "expected_fifo_wins": _wins(cases, method, EXPECTED_FIFO),
        "gap_closed": sum(closed) / len(closed) if closed else None,
        "gap_closed_least": min(closed, default=None),
        "ratio_to_best": mean_ratio(cases, method),
        "rivals": {
            name: {
                "cases": sum(case.has(name, MAKESPAN) for case in cases),
                **{
                    column: _over(cases, name, method, column)
                    for column in (MAKESPAN, EXPECTED, EXPECTED_FIFO)
                },
            }
            for name in methods_of(cases)
            if name != method
        },
    }


def methods_of(cases: Sequence[CaseResult]) -> list[str]:
    """Every method, the one of the report first, the others from the best to the worst."""
    found = list(dict.fromkeys(name for case in cases for name in case.methods))
    column = EXPECTED if _all_expected(cases) else MAKESPAN
    return sorted(
        found, key=lambda name: (name != METHOD, mean_ratio(cases, name, column) or math.inf)
    )


def mean_ratio(cases: Iterable[CaseResult], method: str, column: str = MAKESPAN) -> float | None:
    """Geometric mean of a method's figure over the best one, of the cases that it can place."""
    return _mean([case.ratio(method, column) for case in cases if case.has(method, column)])


def _over(cases: Iterable[CaseResult], rival: str, method: str, column: str) -> float | None:
    """Geometric mean of a rival's figure over a method's; above 1 the method is better."""
    return _mean(
        [
            case.ratio(rival, column) / case.ratio(method, column)
            for case in cases
            if case.has(rival, column)
            and case.has(method, column)
            and math.isfinite(case.ratio(rival, column))
            and math.isfinite(case.ratio(method, column))
        ]
    )


def _mean(ratios: Sequence[float]) -> float | None:
    finite = [ratio for ratio in ratios if math.isfinite(ratio)]
    return math.exp(sum(map(math.log, finite)) / len(finite)) if finite else None


def _wins(cases: Sequence[CaseResult], method: str, column: str) -> int | None:
    told = [case for case in cases if case.best(column) is not None]
    return sum(case.wins(method, column) for case in told) if told else None


def _all_expected(cases: Sequence[CaseResult]) -> bool:
    return bool(cases) and all(case.judged_by == EXPECTED for case in cases)


def render_report(report: Report) -> str:
    """Write the report as one self-contained HTML page.

    Parameters
    ----------
    report : Report

    Returns
    -------
    str
        HTML that needs no other file and no network.
    """
    return render(
        "doppler.evaluation",
        "report.html",
        title=report.title,
        subtitle=_subtitle(report),
        cards=_cards(report),
        suites=[
            _suite(SUITES.get(name, name), suite, report.timelines)
            for name, suite in report.suites.items()
            if suite
        ],
        unseen=[
            (UNSEEN[name], _matrix(cases, MAKESPAN, anchors=False))
            for name, cases in report.unseen.items()
            if cases
        ],
        stages=[_stage(name, curves) for name, curves in report.curves.items() if curves],
        method=METHOD,
        baseline=BASELINE,
    )


def _load_timeline(path: Path) -> CaseTimeline:
    document = read_json(path, "trace", DopplerError)
    trace, labels = from_chrome(document, str(path))
    case = document["otherData"].get("case")
    if not isinstance(case, dict) or not {"graph", "cluster", "method"} <= case.keys():
        raise DopplerError(f"{path}: does not say which case it belongs to; make the report again")
    graph, cluster, method = (str(case[key]) for key in ("graph", "cluster", "method"))
    return CaseTimeline(graph, cluster, method, trace, labels)


def _subtitle(report: Report) -> str:
    graphs = len({case.graph for case in report.cases})
    clusters = len({case.cluster for case in report.cases})
    methods = len(methods_of(report.cases))
    return (
        f"{count_of(graphs, 'graph')} on {count_of(clusters, 'cluster')}, "
        f"{count_of(methods, 'method')}, simulated"
        + "".join(f", time spent is of {count_of(n, 'core')}" for n in _cores(report.cases))
    )


def _cores(cases: Iterable[CaseResult]) -> list[int]:
    """How many cores the methods had: one number, or none if cases differ or do not tell."""
    found = {case.cores for case in cases}
    return [n for n in found if n is not None] if len(found) == 1 else []


def _cards(report: Report) -> list[dict[str, str]]:
    cards = []
    for name, suite in report.suites.items():
        if suite:
            cards.append(_card(SUITES.get(name, name), suite))
    for label, seen in (("Trained on", True), ("Held out of training", False)):
        cases = [c for c in report.cases if c.trained is not None and (c.trained != "none") == seen]
        if cases:
            cards.append(_card(label, cases))
    for group, name in (
        (group, name) for group, cases in report.unseen.items() for name in methods_of(cases)[:2]
    ):
        ratio = mean_ratio(report.unseen[group], name)
        cards.append(
            {
                "value": "-" if ratio is None else f"+{format_percent(ratio - 1)}",
                "name": f"{UNSEEN[group].lower()}, {name.replace('_', ' ')}",
                "note": "over the best known on graphs held out of training, geometric mean",
            }
        )
    return cards


def _card(label: str, cases: Sequence[CaseResult]) -> dict[str, str]:
    """Wins, and the strongest rival: the one that is nearest on geometric mean."""
    summary = summarize_cases(cases)
    column = EXPECTED if _all_expected(cases) else MAKESPAN
    wins = summary["expected_wins"] if column == EXPECTED else summary["wins"]
    rivals = {
        name: rival[column]
        for name, rival in summary["rivals"].items()
        if rival[column] is not None
    }
    note = f"cases in which {METHOD} is at or below every other method, within 0.2%"
    if column == EXPECTED:
        note += ", under jitter"
    if rivals:
        nearest = min(rivals, key=lambda name: rivals[name])
        share = rivals[nearest] - 1
        note += (
            f"; {nearest} is {format_percent(abs(share))} {'above' if share >= 0 else 'below'} it"
        )
    return {"value": f"{wins} / {summary['cases']}", "name": label, "note": note}


def _suite(
    title: str, cases: Sequence[CaseResult], timelines: Sequence[CaseTimeline]
) -> dict[str, Any]:
    noisy = _all_expected(cases)
    return {
        "title": title,
        "jitter": _jitter_text(cases) if noisy else None,
        "ranking": _ranking(cases, EXPECTED if noisy else MAKESPAN),
        "expected": _matrix(cases, EXPECTED, anchors=True) if noisy else None,
        "makespan": _matrix(cases, MAKESPAN, anchors=not noisy),
        "cases": [_case(case, timelines) for case in cases],
    }


def _jitter_text(cases: Sequence[CaseResult]) -> str:
    found = sorted({case.jitter for case in cases if case.jitter})
    return ", ".join(format_percent(jitter, 0) for jitter in found) + " jitter"


def _across(ratio: float) -> float:
    """Percent of the way along an axis of ratios from 1, logarithmic."""
    return 100 * min(1.0, math.log(max(1.0, ratio)) / math.log(_WORST_RATIO))


def _ranking(cases: Sequence[CaseResult], column: str) -> list[dict[str, Any]]:
    rows = []
    for name in methods_of(cases):
        own = [case for case in cases if case.has(name, column)]
        closed = [share for case in own if (share := case.closed(name, BASELINE)) is not None]
        seconds = sum(case.methods[name].seconds for case in own) / len(own)
        means = {each: mean_ratio(own, name, each) for each in (MAKESPAN, EXPECTED, EXPECTED_FIFO)}
        mean_closed = sum(closed) / len(closed) if closed else None
        rows.append(
            {
                "name": name,
                "means": [
                    {
                        "value": "" if mean is None else mean,
                        "text": "-" if mean is None else f"+{format_percent(mean - 1)}",
                    }
                    for mean in means.values()
                ],
                "closed": mean_closed,
                "closed_text": "-" if mean_closed is None else format_percent(mean_closed),
                "wins": sum(case.wins(name, column) for case in own),
                "cases": len(own),
                "seconds": seconds,
                "seconds_text": format_seconds(seconds, 3),
                "dots": [f"{_across(case.ratio(name, column)):.2f}" for case in own],
                "mean": f"{_across(means[column] or 1.0):.2f}",
            }
        )
    return rows


def _matrix(cases: Sequence[CaseResult], column: str, anchors: bool) -> dict[str, Any]:
    methods = methods_of(cases)
    rows = []
    for case in cases:
        cells: list[dict[str, Any]] = []
        for name in methods:
            own = case.methods[name].figure(column) if name in case.methods else None
            if own is None:
                cells.append({"text": "", "value": "", "shade": 0, "best": False, "title": ""})
                continue
            ratio = case.ratio(name, column)
            cells.append(
                {
                    "text": f"{ratio:.3f}",
                    "value": f"{ratio:.9g}",
                    "shade": round(_across(ratio) * 0.55),
                    "best": ratio <= 1 + 1e-9,
                    "title": format_seconds(own),
                }
            )
        rows.append(
            {
                "graph": case.graph,
                "cluster": case.cluster,
                "ops": case.ops,
                "devices": case.devices,
                "anchor": _anchor(case) if anchors else "",
                "trained": case.trained in ("case", "graph"),
                "best": case.best(column),
                "best_text": format_seconds(case.best(column) or 0.0),
                "cells": cells,
            }
        )
    means = [mean_ratio(cases, name, column) for name in methods]
    return {
        "best_name": "best known" if column == MAKESPAN else "best",
        "methods": methods,
        "rows": rows,
        "means": ["" if mean is None else f"{mean:.3f}" for mean in means],
    }


def _case(case: CaseResult, timelines: Sequence[CaseTimeline]) -> dict[str, Any]:
    from markupsafe import Markup

    slowest = max(
        max(r.makespan_s, (r.expected_makespan_s or 0.0) + (r.makespan_std_s or 0.0))
        for r in case.methods.values()
    )
    # One method that is many times slower than the rest must not flatten the others.
    axis = min(slowest, 4 * case.best_s) * 1.03

    def across(seconds: float) -> str:
        return f"{min(100.0, 100 * seconds / axis):.2f}"

    rows = []
    for name in case.ranked():
        result = case.methods[name]
        mean, spread, fifo = (
            result.expected_makespan_s,
            result.makespan_std_s,
            result.expected_fifo_s,
        )
        row: dict[str, Any] = {
            "name": name,
            "makespan": result.makespan_s,
            "makespan_text": format_seconds(result.makespan_s),
            "bar": across(result.makespan_s),
            "cut": result.makespan_s > axis,
            "jitter": "" if mean is None else mean,
            "jitter_text": "-",
            "fifo": "" if fifo is None else fifo,
            "fifo_text": "-" if fifo is None else format_seconds(fifo),
            "origin": str(result.extra.get("origin") or ""),
            "whisker": None,
            "seconds": result.seconds,
            "seconds_text": format_seconds(result.seconds, 3),
            "gap": case.ratio(name) - 1,
            "gap_text": f"+{format_percent(case.ratio(name) - 1)}",
            "bound": "",
            "bound_text": "-",
        }
        if mean is not None:
            row["jitter_text"] = format_seconds(mean)
            row["whisker"] = {"low": across(mean), "high": across(mean), "mean": across(mean)}
        if mean is not None and spread is not None:
            row["jitter_text"] += f" ± {format_percent(spread / mean) if mean else '0%'}"
            row["whisker"]["low"] = across(max(0.0, mean - spread))
            row["whisker"]["high"] = across(mean + spread)
        if case.lower_bound_s > 0:
            over = result.makespan_s / case.lower_bound_s - 1
            row["bound"] = over
            row["bound_text"] = f"+{format_percent(max(0.0, over))}"
        rows.append(row)
    drawn = [t for t in timelines if (t.graph, t.cluster) == (case.graph, case.cluster)]
    return {
        "anchor": _anchor(case),
        "graph": case.graph,
        "cluster": case.cluster,
        "size": f"{count_of(case.ops, 'op')}, {count_of(case.devices, 'device')}",
        "winner": case.winner,
        "winner_text": format_seconds(case.methods[case.winner].figure(case.judged_by) or 0.0),
        "noisy": case.judged_by == EXPECTED,
        "seen": {
            "case": "The policy was trained on this case.",
            "graph": "The policy was trained on this graph, on other clusters.",
            "none": "The policy was not trained on this graph.",
        }.get(case.trained or "", ""),
        "best_text": format_seconds(case.best_s),
        "bound_text": format_seconds(case.lower_bound_s),
        "best_at": across(case.best_s),
        "bound_at": across(case.lower_bound_s) if case.lower_bound_s > 0 else None,
        "rows": rows,
        "timelines": [
            {
                "method": t.method,
                "makespan": format_seconds(t.trace.makespan),
                "svg": Markup(timeline_svg(t.trace, t.labels, title="", width=1000)),
            }
            for t in drawn
        ],
    }


def _stage(name: str, curves: Sequence[Curve]) -> dict[str, Any]:
    from markupsafe import Markup

    groups = group_curves(curves)
    charts = []
    for title, members in list(groups.items())[:_MOST_CHARTS]:
        legend = [
            {"name": curve.name.partition("/")[2] or curve.name, "color": color(i)}
            for i, curve in enumerate(members[:8])
        ]
        charts.append(
            {
                "title": title,
                "svg": Markup(curves_svg(title, members)),
                "last": f"{members[0].y[-1]:.4g}" if len(members) == 1 else "",
                "legend": legend if len(members) > 1 else [],
                "more": max(0, len(members) - len(legend)),
            }
        )
    return {"name": name, "charts": charts, "more": max(0, len(groups) - _MOST_CHARTS)}


def _anchor(case: CaseResult) -> str:
    return re.sub(r"[^\w.-]+", "_", f"case-{case.graph}-{case.cluster}")


def _csv(report: Report) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            *("set", "graph", "cluster", "ops", "devices", "method", "makespan_s", "seconds"),
            *("expected_makespan_s", "makespan_std_s", "expected_fifo_s"),
            *("best_known_s", "lower_bound_s", "ratio_to_best", "trained"),
        ]
    )
    for name, cases in (*report.suites.items(), *report.unseen.items()):
        for case in cases:
            for method, result in case.methods.items():
                writer.writerow(
                    [
                        *(name, case.graph, case.cluster, case.ops, case.devices, method),
                        *(result.makespan_s, result.seconds),
                        *(result.expected_makespan_s, result.makespan_std_s),
                        *(result.expected_fifo_s, case.best_s, case.lower_bound_s),
                        *(case.ratio(method), case.trained),
                    ]
                )
    return text.getvalue()
