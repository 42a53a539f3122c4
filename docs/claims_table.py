"""The claims of ``reports/experiments.json``, as README and the documents show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from doppler.documents.json_text import read_json
from doppler.errors import DopplerError
from doppler.experiments.verdict import VERDICTS
from doppler.markdown import markdown_table
from doppler.viewer.units import format_percent, significant

# The claims that the README tells, by how they begin.
HEADLINES = (
    "doppler is below the best of PLACETO and GDP, geometric mean, equal seconds",
    "doppler is below critical path, geometric mean, equal seconds",
    "doppler is below the enumerative optimizer, geometric mean, equal seconds",
)


def read(path: Path) -> list[dict[str, Any]]:
    """Read the claims of a report.

    Raises
    ------
    DopplerError
        If there is no report.
    """
    claims: list[dict[str, Any]] = read_json(path, "report of experiments", DopplerError)["claims"]
    return claims


def table(claims: Sequence[dict[str, Any]]) -> str:
    """Lay out every claim: the paper's figure, ours with its interval, the verdict."""
    rows = [
        (
            claim["topic"],
            claim["claim"],
            _paper(claim),
            _figure(claim, "ours"),
            _interval(claim),
            f"**{claim['verdict']}**" if claim["verdict"] == VERDICTS[-1] else claim["verdict"],
            claim["remark"] or "",
        )
        for claim in claims
    ]
    columns = (
        "topic",
        "claim",
        "the paper, or the bar",
        "ours",
        "95% interval",
        "verdict",
        "remark",
    )
    return markdown_table(columns, rows)


def sentence(claims: Sequence[dict[str, Any]]) -> str:
    """Say in a few lines what came out."""
    counts = Counter(claim["verdict"] for claim in claims)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    found = {claim["claim"]: claim for claim in claims}
    lines = [
        f"- {name}: {_figure(found[name], 'ours')} ({_interval(found[name])})"
        for name in HEADLINES
        if name in found
    ]
    return "\n".join([f"Of {len(claims)} claims: {told}.", "", *lines])


def _paper(claim: dict[str, Any]) -> str:
    if claim["bar"] is not None:
        sign = "≥" if claim["better"] == "higher" else "≤"
        return f"{sign} {_number(claim, claim['bar'])}"
    paper = claim["paper"]
    return "-" if paper is None else paper if isinstance(paper, str) else _number(claim, paper)


def _figure(claim: dict[str, Any], name: str) -> str:
    return "not run" if claim[name] is None else _number(claim, claim[name])


def _interval(claim: dict[str, Any]) -> str:
    if claim["low"] is None or claim["high"] is None:
        return "-"
    return f"{_number(claim, claim['low'])} to {_number(claim, claim['high'])}"


def _number(claim: dict[str, Any], value: float) -> str:
    return significant(value, 3) if claim["unit"] == "number" else format_percent(value)
