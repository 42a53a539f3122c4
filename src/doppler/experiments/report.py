"""The report of the experiments: verdicts, tables and charts as a page, Markdown and JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from doppler.errors import DopplerError
from doppler.evaluation.report import CaseTimeline
from doppler.experiments.claims import claims
from doppler.experiments.compact import compact_cells
from doppler.experiments.layout import Chart, Entry, Section, Table
from doppler.experiments.results import Results, load_results
from doppler.experiments.sections import sections
from doppler.experiments.timelines import load_timelines
from doppler.experiments.verdict import RULES, VERDICTS, Claim
from doppler.files import write_atomic
from doppler.markdown import markdown_cell, markdown_table
from doppler.methods import LEARNED
from doppler.viewer.page import render
from doppler.viewer.timeline_svg import timeline_svg
from doppler.viewer.units import count_of, format_seconds

if TYPE_CHECKING:
    from markupsafe import Markup

TITLE = "The paper's evaluation, reproduced and gone beyond"
#: Folder of timelines beside those of the experiments.
TIMELINES = "timelines"
_NOTES = (
    "Makespans are simulated unless it says measured. A gain is 1 less the ratio of makespans; "
    "means are geometric, intervals Student's on the logarithms. Over seeds: the cases of a seed "
    "are averaged first, and the interval says what other seeds would show on the same cases. "
    "Over cases: the seeds of a case are averaged first, and it says what other cases would show. "
    "The largest of several cases is chosen by what is shown, as in the paper, and its interval "
    "does not count the choice; the geometric mean beside it chooses nothing."
)


@dataclass(frozen=True)
class ExperimentReport:
    """All that is shown.

    Attributes
    ----------
    claims : tuple of Claim
    sections : tuple of Section
    cells : list of dict
        In a few figures each.
    faults : tuple of str
        One line for each file that could not be used.
    timelines : tuple of CaseTimeline
    seconds : float
        Core-seconds of all cells.
    """

    claims: tuple[Claim, ...]
    sections: tuple[Section, ...]
    cells: list[dict[str, Any]]
    faults: tuple[str, ...] = ()
    timelines: tuple[CaseTimeline, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return claims and cells as plain JSON."""
        return {"claims": [claim.to_json() for claim in self.claims], "cells": self.cells}


class LoggedTable(NamedTuple):
    """A table for trackers: ``trackers.log_table(*table)``."""

    name: str
    columns: tuple[str, ...]
    rows: list[list[str | float | None]]


def build_report(folder: Path) -> ExperimentReport:
    """Make the report of the cells below a folder, ``{experiment}/{name}.json``.

    Timelines in its folder ``timelines`` are drawn too.

    Raises
    ------
    DopplerError
        If there is no such folder. A damaged file raises nothing: the report says so.
    """
    results = load_results(folder)
    faults = list(results.faults)
    timelines: list[CaseTimeline] = []
    try:
        timelines = load_timelines(folder / TIMELINES)
    except DopplerError as error:
        faults.append(str(error))
    return report_of(results, timelines, faults)


def report_of(
    results: Results, timelines: Sequence[CaseTimeline] = (), faults: Sequence[str] = ()
) -> ExperimentReport:
    """Make the report of cells that were read."""
    return ExperimentReport(
        tuple(claims(results)),
        tuple(sections(results)),
        compact_cells(results),
        tuple(faults),
        tuple(timelines),
        sum(cell.seconds for cells in results.experiments.values() for cell in cells),
    )


def write_report(report: ExperimentReport, stem: Path) -> list[Path]:
    """Write ``STEM.json``, ``STEM.html`` and ``STEM.md``, each whole or not at all.

    Raises
    ------
    DopplerError
        If a file cannot be written.
    """
    texts = {".json": _json(report), ".html": render_report(report), ".md": markdown(report)}
    return [
        write_atomic(stem.with_name(stem.name + ending), text) for ending, text in texts.items()
    ]


def report_tables(report: ExperimentReport) -> Iterator[LoggedTable]:
    """Yield every table for W&B, the claims first; numbers where there are numbers."""
    columns = ("topic", "claim", "paper", "ours", "low", "high", "verdict", "remark")
    entries = [claim.to_json() for claim in report.claims]
    rows: list[list[str | float | None]] = [
        [None if entry[name] is None else entry[name] for name in columns] for entry in entries
    ]
    # One type to a column: the paper says a figure here and a word there.
    for row in rows:
        row[2] = None if row[2] is None else str(row[2])
    yield LoggedTable("claims", columns, rows)
    for section in report.sections:
        for i, table in enumerate(section.tables):
            shown = [
                [cell.text if cell.value is None else cell.value for cell in row]
                for row in _without_strips(table).rows
            ]
            yield LoggedTable(
                f"{section.name}_{i + 1}", _without_strips(table).columns, [[*row] for row in shown]
            )


def markdown(report: ExperimentReport) -> str:
    """Write the verdicts and the tables as Markdown, without charts and what is folded."""
    parts = [f"# {TITLE}", f"{_summary(report)}", "## Verdicts", _rules(), _claims_markdown(report)]
    parts += [f"Left out: {markdown_cell(fault)}" for fault in report.faults]
    parts.append(_NOTES)
    for section in report.sections:
        parts += [f"## {section.title}", section.asked, markdown_cell(section.found)]
        for table in section.tables:
            if table.folded:
                continue
            plain = _without_strips(table)
            columns = [markdown_cell(name) for name in plain.columns]
            rows = [[_marked(cell) for cell in row] for row in plain.rows]
            parts += [f"### {markdown_cell(table.title)}", markdown_table(columns, rows)]
            if table.note:
                parts.append(markdown_cell(table.note))
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _rules() -> str:
    return "\n".join(f"- **{verdict}**: {rule}" for verdict, rule in RULES.items())


def _marked(cell: Entry) -> str:
    return f"**{cell.text}**" if cell.bad else cell.text


def _claims_markdown(report: ExperimentReport) -> str:
    rows = [
        [
            claim.topic,
            claim.claim,
            _paper(claim),
            _ours(claim),
            _interval(claim),
            f"**{claim.verdict}**" + (f" ({claim.remark})" if claim.remark else ""),
        ]
        for claim in report.claims
    ]
    columns = ["claim", "in particular", "paper or bar", "ours", "95% interval", "verdict"]
    return markdown_table(columns, rows)


def _without_strips(table: Table) -> Table:
    """Leave out columns that are drawn."""
    kept = [i for i in range(len(table.columns)) if not any(row[i].dots for row in table.rows)]
    return Table(
        table.title,
        tuple(table.columns[i] for i in kept),
        [tuple(row[i] for i in kept) for row in table.rows],
        table.note,
    )


def _json(report: ExperimentReport) -> str:
    """Write one claim and one cell a line: small, and a change is seen in a diff."""
    data = report.to_json()
    parts = []
    for name, entries in data.items():
        lines = ",\n".join(
            json.dumps(entry, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            for entry in entries
        )
        parts.append(f'"{name}": [\n{lines}\n]' if lines else f'"{name}": []')
    return "{" + ",\n".join(parts) + "}\n"


def render_report(report: ExperimentReport) -> str:
    """Write the report as one HTML page that needs no other file and no network."""
    return render(
        "doppler.experiments",
        "experiments.html",
        title=TITLE,
        subtitle=_summary(report),
        method=LEARNED,
        cards=_cards(report),
        rules=RULES,
        notes=_NOTES,
        topics=_topics(report.claims),
        faults=report.faults,
        sections=[_section(section) for section in report.sections],
        timelines=[_timeline(timeline) for timeline in report.timelines],
    )


def _summary(report: ExperimentReport) -> str:
    run = Counter(cell["experiment"] for cell in report.cells)
    absent = [section.title for section in report.sections if section.name not in run]
    said = (
        f"{count_of(len(report.cells), 'cell')} of {count_of(len(run), 'experiment')}, "
        f"{format_seconds(report.seconds, 3)} of computing"
    )
    return said + (f"; not run: {', '.join(absent)}" if absent else "")


def _cards(report: ExperimentReport) -> list[dict[str, str]]:
    counts = Counter(claim.verdict for claim in report.claims)
    absent = sum(claim.estimate is None for claim in report.claims)
    notes = {
        "surpassed": "the whole interval is at the figure of the paper or the bar, or beyond it",
        "reproduced": "the effect is there, and its interval excludes none",
        "not reproduced": "no effect that excludes chance, or the opposite"
        + (f"; {absent} of them were not run" if absent else ""),
    }
    return [
        {
            "value": f"{counts[verdict]} / {len(report.claims)}",
            "name": verdict,
            "note": notes[verdict],
        }
        for verdict in VERDICTS
    ]


def _topics(found: Sequence[Claim]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for claim in found:
        topics.setdefault(claim.topic, []).append(
            {
                "claim": claim.claim,
                "paper": _paper(claim),
                "ours": _ours(claim),
                "interval": _interval(claim),
                "verdict": claim.verdict,
                "style": claim.verdict.replace(" ", "-"),
                "remark": claim.remark,
                "note": claim.note,
                "plot": _plot(claim),
            }
        )
    return [{"name": name, "rows": rows} for name, rows in topics.items()]


def _paper(claim: Claim) -> str:
    if claim.bar is not None:
        figure = f"{claim.bar:g}" if claim.unit == "number" else claim.text(claim.bar)
        bar = f"{'≥' if claim.higher else '≤'} {figure}"
        return f"{claim.paper}: {bar}" if isinstance(claim.paper, str) else bar
    return claim.text(claim.paper)


def _ours(claim: Claim) -> str:
    return "-" if claim.estimate is None else claim.text(claim.estimate.value)


def _interval(claim: Claim) -> str:
    found = claim.estimate
    if found is None or found.low is None or found.high is None:
        return "-"
    return f"{claim.text(found.low)} to {claim.text(found.high)}"


def _plot(claim: Claim) -> dict[str, str] | None:
    """Lay out the figure, its interval, no effect and the target on an axis of their own."""
    found = claim.estimate
    if found is None:
        return None
    marks = [found.value, found.low, found.high, claim.target, claim.none]
    known = [mark for mark in marks if mark is not None]
    low, high = min(known), max(known)
    margin = 0.08 * (high - low) or 1.0

    def at(value: float) -> str:
        return f"{100 * (value - low + margin) / (high - low + 2 * margin):.2f}"

    ends = {"value": found.value, "low": found.low, "high": found.high}
    ends |= {"target": claim.target, "none": claim.none}
    return {name: "" if value is None else at(value) for name, value in ends.items()}


def _section(section: Section) -> dict[str, Any]:
    return {
        "anchor": section.name,
        "title": section.title,
        "asked": section.asked,
        "found": section.found,
        "tables": [table for table in section.tables if not table.folded],
        "folded": [table for table in section.tables if table.folded],
        "charts": [_chart(chart) for chart in section.charts],
        "more": [_chart(chart) for chart in section.more],
    }


def _chart(chart: Chart) -> dict[str, Any]:
    return {"title": chart.title, "svg": _markup(chart.svg), "legend": chart.legend}


def _timeline(timeline: CaseTimeline) -> dict[str, Any]:
    svg = timeline_svg(timeline.trace, timeline.labels, title="", width=1000)
    return {
        "title": f"{timeline.method} on {timeline.graph}, {timeline.cluster}",
        "makespan": format_seconds(timeline.trace.makespan),
        "svg": _markup(svg),
    }


def _markup(svg: str) -> Markup:
    # Imported late: only pages need it. What is drawn has escaped its names.
    from markupsafe import Markup

    return Markup(svg)
