"""What a refinement on the real system did: one page, and the same as Markdown."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doppler.evaluation.curves import Curve, curves_svg
from doppler.files import write_atomic
from doppler.markdown import markdown_cell, markdown_table
from doppler.refinement.history import ProductionRun
from doppler.refinement.paired_test import PairedResult, decision_markdown
from doppler.viewer.page import render
from doppler.viewer.palette import color
from doppler.viewer.units import count_of, format_percent, format_seconds

# Of the runs of a long refinement the page lists the last.
_MOST_RUNS = 200
_NEVER = "-"


@dataclass(frozen=True, eq=False)
class RefinementReport:
    """All that the page shows.

    Attributes
    ----------
    runs : sequence of ProductionRun
        The regret curve.
    decision : PairedResult, optional
        Of the comparison of the placements at the end.
    champion, challenger : str
        Ids of the versions that were compared.
    said : str
        The whole decision in one line, that on the policy included.
    max_regret : float, optional
        The guard's limit of the mean regret.
    error, error_left : float, optional
        Chance of any false promotion that a month may have, and what is left of it.
    versions : sequence of mapping
        The registry, as ``Registry.to_json()["versions"]`` gives it.
    backend : str
        What ran: ``cpu``, ``cuda``, ``emulated``.
    title : str
    """

    runs: Sequence[ProductionRun]
    decision: PairedResult | None = None
    champion: str = "champion"
    challenger: str = "challenger"
    said: str = ""
    max_regret: float | None = None
    error: float | None = None
    error_left: float | None = None
    versions: Sequence[Mapping[str, Any]] = ()
    backend: str = ""
    title: str = "Doppler: refinement on the real system"


def refinement_report(
    report: RefinementReport, path: str | os.PathLike[str] = "reports/refinement.html"
) -> Path:
    """Write the page.

    Raises
    ------
    DopplerError
        If the file cannot be written.
    """
    return write_atomic(path, render_refinement(report))


def render_refinement(report: RefinementReport) -> str:
    """Write the report as one HTML page that needs no other file and no network."""
    return render(
        "doppler.refinement",
        "refinement.html",
        title=report.title,
        subtitle=_subtitle(report),
        cards=_cards(report),
        charts=_charts(report),
        said=_sentence(report.said),
        decision=None if report.decision is None else _decision(report, report.decision),
        kinds=_kinds(report.runs),
        runs=[_run_row(run) for run in report.runs[-_MOST_RUNS:]],
        omitted=max(0, len(report.runs) - _MOST_RUNS),
        versions=[_version_row(version) for version in report.versions],
    )


def refinement_markdown(report: RefinementReport) -> str:
    """Write what the page says as Markdown, without the curves and the single runs."""
    parts = [f"# {report.title}", _subtitle(report)]
    if report.decision is not None:
        # Its heading is one below that of the report.
        parts.append("#" + decision_markdown(report.decision, report.champion, report.challenger))
    if report.said:
        parts.append(markdown_cell(_sentence(report.said)))
    if report.error_left is not None:
        parts.append(f"Of the month's error {_error(report)}.")
    if report.runs:
        columns = ["kind", "runs", "failed", "median ratio", "median measured"]
        rows = [
            [k["name"], k["runs"], k["failed"], k["ratio"], k["median"]]
            for k in _kinds(report.runs)
        ]
        parts += ["## Runs", markdown_table(columns, rows)]
    if report.versions:
        columns = ["id", "status", "created", "parent", "metrics", "git"]
        rows = [[v[name] for name in columns] for v in map(_version_row, report.versions)]
        parts += ["## Registry", markdown_table(columns, rows)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _subtitle(report: RefinementReport) -> str:
    failed = sum(math.isnan(run.measured) for run in report.runs)
    return (
        count_of(len(report.runs), "production run")
        + (f", {failed:,} failed" if failed else "")
        + (f", backend {report.backend}" if report.backend else "")
    )


def _cards(report: RefinementReport) -> list[dict[str, str]]:
    cards = []
    decision = report.decision
    if decision is not None:
        versions = f"{report.challenger} against {report.champion}"
        if decision.ratio is not None and decision.low is not None and decision.high is not None:
            gain = 1 - decision.ratio
            cards.append(
                {
                    "value": f"{'−' if gain > 0 else '+'}{format_percent(abs(gain))}",
                    "name": "makespan of the challenger",
                    "note": f"{versions}; {100 * decision.confidence:g}% interval of the ratio "
                    f"{decision.low:.4f} to {decision.high:.4f}",
                }
            )
        cards.append(
            {
                "value": "promoted" if decision.promote else "kept",
                "name": "challenger" if decision.promote else "champion",
                "note": decision.failure or f"{versions}, {count_of(decision.pairs, 'pair')}",
            }
        )
    if report.runs:
        limit = report.max_regret
        cards.append(
            {
                "value": format_percent(report.runs[-1].regret, 2),
                "name": "mean regret",
                "note": "of the production runs over the champion"
                + ("" if limit is None else f"; the guard allows {format_percent(limit)}"),
            }
        )
    if report.error_left is not None:
        cards.append(
            {
                "value": format_percent(report.error_left, 2),
                "name": "left of the month's error",
                "note": f"{_error(report)}, the chance of any false promotion",
            }
        )
    best = min(_finite(report.runs, "ratio"), default=None)
    if best is not None:
        cards.append(
            {
                "value": f"{best:.3f}×",
                "name": "best run",
                "note": "its makespan over that of the champion",
            }
        )
    return cards


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _error(report: RefinementReport) -> str:
    left, whole = (format_percent(each or 0.0, 2) for each in (report.error_left, report.error))
    return f"{left} of {whole} is left"


def _charts(report: RefinementReport) -> list[dict[str, Any]]:
    from markupsafe import Markup

    charts = []
    regret = _curve(report.runs, "regret")
    if regret is not None:
        curves = [regret]
        if report.max_regret is not None:
            # As long as the curve, so that the axis takes it for no outlier.
            limit = np.full_like(regret.y, report.max_regret)
            curves.append(Curve("limit of the guard", regret.x, limit))
        charts.append(("mean regret", curves))
    ratio = _curve(report.runs, "ratio")
    if ratio is not None:
        charts.append(("measured over the champion", [ratio]))
    times = [
        curve
        for name in ("measured", "predicted")
        if (curve := _curve(report.runs, name)) is not None
    ]
    if times:
        charts.append(("makespan in seconds", times))
    return [
        {
            "title": title,
            "svg": Markup(curves_svg(title, curves)),
            "last": f"{curves[0].y[-1]:.4g}",
            "legend": [
                {"name": curve.name.replace("_", " "), "color": color(i)}
                for i, curve in enumerate(curves)
            ]
            if len(curves) > 1
            else [],
        }
        for title, curves in charts
    ]


def _curve(runs: Sequence[ProductionRun], name: str) -> Curve | None:
    points = [(run.run, y) for run in runs if math.isfinite(y := getattr(run, name))]
    if not points:
        return None
    x, y = np.array(points, dtype=np.float64).T
    return Curve(name, x, y)


def _decision(report: RefinementReport, decision: PairedResult) -> dict[str, Any]:
    interval = _interval(decision)
    ratios = decision.by_problem
    problems = []
    if decision.pairs:
        champions = np.median(np.array(decision.champion_s), axis=0)
        challengers = np.median(np.array(decision.challenger_s), axis=0)
        for name, was, now in zip(decision.problems, champions, challengers, strict=True):
            problems.append(
                {
                    "name": name,
                    "champion": float(was),
                    "champion_text": format_seconds(float(was)),
                    "challenger": float(now),
                    "challenger_text": format_seconds(float(now)),
                    "ratio": f"{ratios[name]:.4f}",
                    "faster": ratios[name] < 1,
                }
            )
    p = decision.p_value
    return {
        "versions": f"{report.challenger} against {report.champion}",
        "text": _sentence(decision.text),
        "interval": interval,
        "problems": problems,
        "note": f"{count_of(decision.pairs, 'pair')} of {decision.planned:,} planned"
        + (
            "; each dot is a pair of runs, the line is the "
            f"{100 * decision.confidence:g}% interval (Wilcoxon's signed-rank test, exact)"
            if interval
            else ""
        )
        + ("" if p is None else f", one-sided p-value {p:.2g}")
        + f". Least gain asked for: {format_percent(decision.min_gain)}.",
    }


def _interval(decision: PairedResult) -> dict[str, Any] | None:
    """Lay out interval and pairs on a logarithmic axis of ratios with 1 in its middle."""
    low, high, ratio = decision.low, decision.high, decision.ratio
    if low is None or high is None or ratio is None:
        return None
    logs = (np.log(decision.challenger_s) - np.log(decision.champion_s)).mean(axis=1)
    # A wild run stands at the edge, it does not flatten the others.
    widest = max(float(np.quantile(np.abs(logs), 0.9)), abs(math.log(low)), abs(math.log(high)))
    span = max(0.005, 1.2 * widest)

    def across(log: float) -> str:
        return f"{min(100.0, max(0.0, 50 + 50 * log / span)):.2f}"

    return {
        "dots": [across(float(log)) for log in logs],
        "low": across(math.log(low)),
        "high": across(math.log(high)),
        "ratio": across(math.log(ratio)),
        "left": f"{math.exp(-span):.3f}× (faster)",
        "right": f"{math.exp(span):.3f}× (slower)",
    }


def _kinds(runs: Iterable[ProductionRun]) -> list[dict[str, str]]:
    grouped: dict[str, list[ProductionRun]] = {}
    for run in runs:
        grouped.setdefault(run.kind, []).append(run)
    rows = []
    for name, members in grouped.items():
        measured, ratios = _finite(members, "measured"), _finite(members, "ratio")
        rows.append(
            {
                "name": name,
                "runs": f"{len(members):,}",
                "failed": f"{len(members) - len(measured):,}",
                "median": format_seconds(float(np.median(measured))) if measured else _NEVER,
                "ratio": f"{np.median(ratios):.4f}" if ratios else _NEVER,
                "best": f"{min(ratios):.4f}" if ratios else _NEVER,
            }
        )
    return rows


def _run_row(run: ProductionRun) -> dict[str, Any]:
    known = {
        name: value if math.isfinite(value) else None
        for name, value in run._asdict().items()
        if name not in ("run", "kind", "placement")
    }
    ratio = known["ratio"]
    return {
        "run": run.run,
        "kind": run.kind,
        "failed": known["measured"] is None,
        "raw": known,
        "predicted": _seconds(known["predicted"]),
        "measured": _seconds(known["measured"]),
        "ratio": _NEVER if ratio is None else f"{ratio:.4f}",
        "regret": format_percent(run.regret, 2),
    }


def _version_row(version: Mapping[str, Any]) -> dict[str, str]:
    metrics = version.get("metrics") or {}
    decisions = version.get("decisions") or [{}]
    evidence = decisions[-1].get("evidence") or {}
    return {
        "id": str(version["id"]),
        "status": str(version.get("status", _NEVER)),
        "created": str(version.get("created", _NEVER))[:19].replace("T", " "),
        "parent": str(version.get("parent") or _NEVER),
        "metrics": ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or _NEVER,
        "git": str((version.get("origin") or {}).get("git") or _NEVER)[:12],
        "why": str(evidence.get("text") or evidence.get("reason") or _NEVER),
    }


def _finite(runs: Iterable[ProductionRun], name: str) -> list[float]:
    return [value for run in runs if math.isfinite(value := getattr(run, name))]


def _seconds(value: float | None) -> str:
    return _NEVER if value is None else format_seconds(value)
