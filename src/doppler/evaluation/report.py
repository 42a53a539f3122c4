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

from doppler.errors import DopplerError
from doppler.evaluation.curves import Curve, curves_svg, group_curves, load_curves
from doppler.evaluation.results import CaseResult, load_results
from doppler.files import read_text, write_atomic
from doppler.trace import Trace
from doppler.viewer.chrome import from_chrome, to_chrome
from doppler.viewer.labels import Labels
from doppler.viewer.page import render
from doppler.viewer.palette import colour
from doppler.viewer.timeline_svg import timeline_svg
from doppler.viewer.units import count_of, format_percent, format_seconds

#: The method that the report is about, and the one that it is measured from.
METHOD, BASELINE = "doppler", "critical_path"
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
    suite, zero_shot : tuple of CaseResult
        Every method on every graph and cluster; and the policy on graphs that it never saw.
    curves : mapping of str to tuple of Curve
        Metrics by training stage.
    timelines : tuple of CaseTimeline
        Drawn beside the results of their case.
    title : str
    """

    suite: tuple[CaseResult, ...]
    zero_shot: tuple[CaseResult, ...] = ()
    curves: Mapping[str, tuple[Curve, ...]] = field(default_factory=dict)
    timelines: tuple[CaseTimeline, ...] = ()
    title: str = "Doppler: placements compared"


def load_report(
    suite: str | os.PathLike[str],
    zero_shot: str | os.PathLike[str] | None = None,
    curves: Mapping[str, str | os.PathLike[str]] | None = None,
    timelines: str | os.PathLike[str] | None = None,
) -> Report:
    """Collect a report from its files.

    Parameters
    ----------
    suite, zero_shot : path-like
        JSON files of results.
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
        suite=load_results(suite),
        zero_shot=() if zero_shot is None else load_results(zero_shot),
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
        "suite": [case.to_json() for case in report.suite],
        "zero_shot": [case.to_json() for case in report.zero_shot],
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
        ``cases``; ``wins``, cases in which the method is at or below every other within 0.2 %;
        ``gap_closed``, mean share of the distance from the baseline to the best known, and
        ``gap_closed_least``; ``ratio_to_best``, geometric mean over the suite; and
        ``zero_shot``, the same mean for each method on the graphs that were held out. None where
        nothing tells.
    """
    closed = [
        share for case in report.suite if (share := case.closed(method, baseline)) is not None
    ]
    return {
        "method": method,
        "baseline": baseline,
        "cases": len(report.suite),
        "wins": sum(case.wins(method) for case in report.suite),
        "gap_closed": sum(closed) / len(closed) if closed else None,
        "gap_closed_least": min(closed, default=None),
        "ratio_to_best": _mean_ratio(report.suite, method),
        "zero_shot": {
            name: _mean_ratio(report.zero_shot, name) for name in _methods(report.zero_shot)
        },
    }


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
        cards=_cards(summarize(report)),
        ranking=_ranking(report.suite),
        suite=_matrix(report.suite, anchors=True),
        cases=[_case(case, report.timelines) for case in report.suite],
        zero_shot=_matrix(report.zero_shot, anchors=False),
        stages=[_stage(name, curves) for name, curves in report.curves.items() if curves],
        method=METHOD,
        baseline=BASELINE,
    )


def _load_timeline(path: Path) -> CaseTimeline:
    try:
        document = json.loads(read_text(path, "trace", DopplerError))
    except (ValueError, RecursionError) as error:
        raise DopplerError(f"{path}: is not JSON ({error}), so it cannot be a trace") from None
    trace, labels = from_chrome(document, str(path))
    case = document["otherData"].get("case")
    if not isinstance(case, dict) or not {"graph", "cluster", "method"} <= case.keys():
        raise DopplerError(f"{path}: does not say which case it belongs to; make the report again")
    graph, cluster, method = (str(case[key]) for key in ("graph", "cluster", "method"))
    return CaseTimeline(graph, cluster, method, trace, labels)


def _methods(cases: Iterable[CaseResult]) -> list[str]:
    """Every method, the one of the report first, the others from the best to the worst."""
    found = list(dict.fromkeys(name for case in cases for name in case.methods))
    kept = list(cases)
    return sorted(found, key=lambda name: (name != METHOD, _mean_ratio(kept, name) or math.inf))


def _mean_ratio(cases: Iterable[CaseResult], method: str) -> float | None:
    logs = [math.log(case.ratio(method)) for case in cases if method in case.methods]
    return math.exp(sum(logs) / len(logs)) if logs else None


def _subtitle(report: Report) -> str:
    graphs = len({case.graph for case in report.suite})
    clusters = len({case.cluster for case in report.suite})
    methods = len(_methods(report.suite))
    return (
        f"{count_of(graphs, 'graph')} on {count_of(clusters, 'cluster')}, "
        f"{count_of(methods, 'method')}, simulated"
        + "".join(f", time spent is of {count_of(n, 'core')}" for n in _cores(report.suite))
    )


def _cores(cases: Iterable[CaseResult]) -> list[int]:
    """How many cores the methods had: one number, or none if cases differ or do not tell."""
    found = {case.cores for case in cases}
    return [n for n in found if n is not None] if len(found) == 1 else []


def _cards(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    def over(ratio: float | None) -> str:
        return "-" if ratio is None else f"+{format_percent(ratio - 1)}"

    method, baseline = summary["method"], summary["baseline"]
    closed, least = summary["gap_closed"], summary["gap_closed_least"]
    cards = [
        {
            "value": "-" if closed is None else format_percent(closed),
            "name": "of the gap closed",
            "note": f"from {baseline} to the best known, mean over the suite"
            + ("" if least is None else f"; least {format_percent(least)}"),
        },
        {
            "value": f"{summary['wins']} / {summary['cases']}",
            "name": "cases won",
            "note": f"{method} at or below every other method, within 0.2%",
        },
        {
            "value": over(summary["ratio_to_best"]),
            "name": "over the best known",
            "note": f"{method}, geometric mean over the suite",
        },
    ]
    cards += [
        {
            "value": over(ratio),
            "name": f"zero-shot, {name.replace('_', ' ')}",
            "note": "over the best known on graphs held out of training, geometric mean",
        }
        for name, ratio in list(summary["zero_shot"].items())[:2]
    ]
    return cards


def _across(ratio: float) -> float:
    """Percent of the way along an axis of ratios from 1, logarithmic."""
    return 100 * min(1.0, math.log(max(1.0, ratio)) / math.log(_WORST_RATIO))


def _ranking(cases: Sequence[CaseResult]) -> list[dict[str, Any]]:
    rows = []
    for name in _methods(cases):
        own = [case for case in cases if name in case.methods]
        closed = [share for case in own if (share := case.closed(name, BASELINE)) is not None]
        seconds = sum(case.methods[name].seconds for case in own) / len(own)
        ratio = _mean_ratio(own, name) or 1.0
        mean_closed = sum(closed) / len(closed) if closed else None
        rows.append(
            {
                "name": name,
                "ratio": ratio,
                "over": f"+{format_percent(ratio - 1)}",
                "closed": mean_closed,
                "closed_text": "-" if mean_closed is None else format_percent(mean_closed),
                "wins": sum(case.wins(name) for case in own),
                "cases": len(own),
                "seconds": seconds,
                "seconds_text": format_seconds(seconds, 3),
                "dots": [f"{_across(case.ratio(name)):.2f}" for case in own],
                "mean": f"{_across(ratio):.2f}",
            }
        )
    return rows


def _matrix(cases: Sequence[CaseResult], anchors: bool) -> dict[str, Any]:
    methods = _methods(cases)
    rows = []
    for case in cases:
        cells: list[dict[str, Any]] = []
        for name in methods:
            if name not in case.methods:
                cells.append({"text": "", "value": "", "shade": 0, "best": False, "title": ""})
                continue
            ratio = case.ratio(name)
            cells.append(
                {
                    "text": f"{ratio:.3f}",
                    "value": f"{ratio:.9g}",
                    "shade": round(_across(ratio) * 0.55),
                    "best": case.methods[name].makespan_s <= case.best_s * (1 + 1e-9),
                    "title": format_seconds(case.methods[name].makespan_s),
                }
            )
        rows.append(
            {
                "graph": case.graph,
                "cluster": case.cluster,
                "ops": case.ops,
                "devices": case.devices,
                "anchor": _anchor(case) if anchors else "",
                "best": case.best_s,
                "best_text": format_seconds(case.best_s),
                "cells": cells,
            }
        )
    means = [_mean_ratio(cases, name) for name in methods]
    return {
        "methods": methods,
        "rows": rows,
        "means": ["" if mean is None else f"{mean:.3f}" for mean in means],
    }


def _case(case: CaseResult, timelines: Sequence[CaseTimeline]) -> dict[str, Any]:
    from markupsafe import Markup

    slowest = max(
        max(r.makespan_s, (r.jitter_mean_s or 0.0) + (r.jitter_std_s or 0.0))
        for r in case.methods.values()
    )
    # One method that is many times slower than the rest must not flatten the others.
    axis = min(slowest, 4 * case.best_s) * 1.03

    def across(seconds: float) -> str:
        return f"{min(100.0, 100 * seconds / axis):.2f}"

    rows = []
    for name, result in sorted(case.methods.items(), key=lambda item: item[1].makespan_s):
        mean, spread = result.jitter_mean_s, result.jitter_std_s
        row: dict[str, Any] = {
            "name": name,
            "makespan": result.makespan_s,
            "makespan_text": format_seconds(result.makespan_s),
            "bar": across(result.makespan_s),
            "cut": result.makespan_s > axis,
            "jitter": "" if mean is None else mean,
            "jitter_text": "-",
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
        "winner_text": format_seconds(case.methods[case.winner].makespan_s),
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
            {"name": curve.name.partition("/")[2] or curve.name, "colour": colour(i)}
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
            *("jitter_mean_s", "jitter_std_s", "best_known_s", "lower_bound_s", "ratio_to_best"),
        ]
    )
    for name, cases in (("suite", report.suite), ("zero_shot", report.zero_shot)):
        for case in cases:
            for method, result in case.methods.items():
                writer.writerow(
                    [
                        *(name, case.graph, case.cluster, case.ops, case.devices, method),
                        *(result.makespan_s, result.seconds),
                        *(result.jitter_mean_s, result.jitter_std_s),
                        *(case.best_s, case.lower_bound_s, case.ratio(method)),
                    ]
                )
    return text.getvalue()
