"""The record of one nightly refinement, as Markdown and as a page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doppler.evaluation.curves import Curve, curves_svg
from doppler.evaluation.promotion import PairedResult, decision_markdown
from doppler.files import write_atomic
from doppler.graph import Graph
from doppler.refinement.health import Health
from doppler.registry import Registry
from doppler.trace import Trace
from doppler.training.history import History
from doppler.viewer.page import render
from doppler.viewer.timeline_svg import timeline_svg
from doppler.viewer.units import count_of, format_percent, format_seconds

TITLE = "Doppler: nightly refinement"
_MOST_VERSIONS = 20


@dataclass(frozen=True, eq=False)
class Night:
    """What one refinement did.

    Attributes
    ----------
    began : str
        UTC, ISO 8601.
    graph : Graph
    backend : str
    health : tuple of Health
    runs : History
        All runs of the refinement, those before it was interrupted included.
    mean_regret : float
    champion, challenger : str
        Ids of the versions that were compared.
    result : PairedResult or None
        None if there was nothing to compare: the placements are equal.
    timelines : mapping of str to Trace
        A measured run of each version, by its id.
    """

    began: str
    graph: Graph
    backend: str
    health: tuple[Health, ...]
    runs: History
    mean_regret: float
    champion: str
    challenger: str
    result: PairedResult | None
    timelines: Mapping[str, Trace]

    @property
    def promoted(self) -> bool:
        """Whether the challenger became champion."""
        return self.result is not None and self.result.promote

    @property
    def decision(self) -> str:
        """What was decided and why, in one line."""
        if self.result is None:
            return f"{SAME}: {self.champion} stays champion"
        return f"{self.challenger} against {self.champion}: {self.result.text}"

    @property
    def metrics(self) -> dict[str, float]:
        """The figures of the night."""
        found = {
            "runs": float(len(self.runs)),
            "mean_regret": self.mean_regret,
            "promoted": float(self.promoted),
        }
        if self.result is not None:
            for name in ("ratio", "low", "high"):
                value = getattr(self.result, name)
                if value is not None:
                    found[name] = value
        return found


#: Why nothing is compared.
SAME = "the challenger places the graph as the champion does"


def night_markdown(night: Night) -> str:
    """Write the record as Markdown, for Prefect and W&B."""
    lines = [
        f"# {TITLE}, {night.began}",
        "",
        f"**{night.decision[0].upper()}{night.decision[1:]}.**",
        "",
        f"{count_of(len(night.runs), 'run')} of {night.graph.name} on {night.backend}, "
        f"mean regret {format_percent(night.mean_regret)}.",
        "",
        health_markdown(night.health),
    ]
    if night.result is not None:
        lines += ["", decision_markdown(night.result, night.champion, night.challenger)]
    return "\n".join(lines).rstrip() + "\n"


def health_markdown(health: Sequence[Health]) -> str:
    """Lay out the findings on the devices as a Markdown table."""
    rows = [
        f"| {each.device} | {'healthy' if each.healthy else '**unhealthy**'} | "
        f"{format_seconds(each.seconds)} | {' '.join(each.finding.split()).replace('|', '/')} |"
        for each in health
    ]
    return "\n".join(["| device | | check took | finding |", "| --- | --- | --- | --- |", *rows])


def write_night(night: Night, registry: Registry, path: str | os.PathLike[str]) -> Path:
    """Write the record as one self-contained HTML page.

    Parameters
    ----------
    night : Night
    registry : Registry
        Its latest versions and what was decided about them are listed.
    path : path-like

    Raises
    ------
    DopplerError
        If the registry is damaged or the page cannot be written.
    """
    page = render(
        "doppler.refinement",
        "night.html",
        title=TITLE,
        subtitle=(
            f"{night.graph.name} on {night.backend}, "
            f"{count_of(sum(each.device != 'all' for each in night.health), 'device')}, "
            f"began {night.began}"
        ),
        decision=night.decision,
        promoted=night.promoted,
        cards=_cards(night),
        charts=_charts(night),
        health=[
            {**each._asdict(), "seconds": format_seconds(each.seconds)} for each in night.health
        ],
        timelines=[
            {"id": name, "svg": _markup(timeline_svg(trace, night.graph, title=""))}
            for name, trace in night.timelines.items()
        ],
        versions=_versions(registry),
    )
    return write_atomic(path, page)


def _markup(svg: str) -> Any:
    from markupsafe import Markup

    return Markup(svg)


def _cards(night: Night) -> list[dict[str, str]]:
    result = night.result
    if result is None or result.ratio is None or result.low is None or result.high is None:
        why = SAME if result is None else str(result.failure)
        compared = {"value": "-", "name": "not compared", "note": why}
    else:
        compared = {
            "value": f"{result.ratio:.3f}",
            "name": f"time of {night.challenger} over {night.champion}",
            "note": f"{100 * result.confidence:g}% interval {result.low:.3f} to {result.high:.3f}, "
            f"{count_of(result.pairs, 'pair')}",
        }
    return [
        compared,
        {
            "value": f"{len(night.runs):,}",
            "name": "runs",
            "note": f"{sum(run.kind != 'champion' for run in night.runs):,} of them explored",
        },
        {
            "value": format_percent(night.mean_regret),
            "name": "mean regret",
            "note": "what exploring cost, over the champion's time",
        },
    ]


def _charts(night: Night) -> list[dict[str, Any]]:
    runs = list(night.runs)
    steps = np.array([run.run for run in runs], np.float64)
    found: list[tuple[str, str, list[Curve]]] = []
    for name, title, note in (
        ("regret", "Regret", "running mean, as a share of the champion's time"),
        ("measured", "Makespan", "seconds of every run"),
    ):
        values = np.array([getattr(run, name) for run in runs], np.float64)
        known = np.isfinite(values)
        if known.any():
            found.append((title, note, [Curve(name, steps[known], values[known])]))
    if night.result is not None and night.result.pairs:
        pairs = np.arange(1.0, night.result.pairs + 1)
        curves = [
            Curve(name, pairs, np.array(rows).mean(axis=1))
            for name, rows in (
                (night.champion, night.result.champion_s),
                (night.challenger, night.result.challenger_s),
            )
        ]
        note = f"seconds by pair: {night.champion} the first colour, {night.challenger} the second"
        found.append(("Comparison", note, curves))
    return [
        {"title": title, "note": note, "svg": _markup(curves_svg(title, curves))}
        for title, note, curves in found
    ]


def _versions(registry: Registry) -> list[dict[str, str]]:
    history = registry.history
    rows = []
    for version in reversed(registry.versions()[-_MOST_VERSIONS:]):
        events = history.of(version.id)
        said = events[-1].evidence if events else {}
        rows.append(
            {
                "id": version.id,
                "status": history.status(version.id),
                "created": version.created,
                "parent": version.parent or "-",
                "reason": str(said.get("text") or said.get("reason") or ""),
            }
        )
    return rows
