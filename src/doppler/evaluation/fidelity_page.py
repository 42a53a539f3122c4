"""The page of a fidelity measurement: a scatter plot and the worst offenders of every graph."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from doppler.evaluation.fidelity import BALANCED, Fidelity, Point
from doppler.files import write_atomic
from doppler.viewer.page import render
from doppler.viewer.palette import color
from doppler.viewer.units import format_percent, format_seconds, seconds_unit, significant, ticks

_WIDTH, _HEIGHT = 460, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 40


def save_fidelity(
    results: Sequence[Fidelity],
    json_path: str | os.PathLike[str],
    html_path: str | os.PathLike[str],
    about: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write the figures by the name of the graph as JSON, and a page that shows them.

    Parameters
    ----------
    results : sequence of Fidelity
    json_path, html_path : path-like
    about : mapping, optional
        What the page says about the machine, by name.

    Raises
    ------
    DopplerError
        If a file cannot be written.
    """
    data = {result.name: result.to_json() for result in results}
    page = render_fidelity(results, about)
    return [
        write_atomic(html_path, page),
        write_atomic(json_path, json.dumps(data, indent=1, allow_nan=False) + "\n"),
    ]


def render_fidelity(results: Sequence[Fidelity], about: Mapping[str, Any] | None = None) -> str:
    """Show results as one self-contained HTML page: a scatter plot and the worst of each graph."""
    from markupsafe import Markup

    graphs = []
    for result in results:
        figures = result.to_json()
        kinds = _kinds(result.points)
        graphs.append(
            {
                "name": result.name,
                "size": f"{result.ops:,} ops on {result.devices} devices",
                "pearson": _coefficient(figures["pearson"]),
                "spearman": _coefficient(figures["spearman"]),
                "placements": len(result.points),
                "balanced_pearson": _coefficient(figures["balanced"]["pearson"]),
                "balanced_spearman": _coefficient(figures["balanced"]["spearman"]),
                "balanced": figures["balanced"]["placements"],
                "ratio": f"{result.ratio:.3f}",
                "error": format_percent(result.error),
                "svg": Markup(scatter_svg(result)),
                "legend": [{"name": kind, "color": color(place)} for kind, place in kinds.items()],
                "disturbed": figures["disturbed"],
                "worst": [_shown(point) for point in result.offenders()],
            }
        )
    return render(
        "doppler.evaluation",
        "fidelity.html",
        title="Doppler: simulated and measured",
        subtitle="; ".join(f"{name}: {value}" for name, value in (about or {}).items()),
        graphs=graphs,
        limit=format_percent(BALANCED - 1, 0),
    )


def scatter_svg(result: Fidelity) -> str:
    """Draw measured over simulated makespans as one SVG element, with the line of equality."""
    kinds = _kinds(result.points)
    largest = max(max(p.simulated_s, p.measured_s + p.spread_s) for p in result.points) * 1.04
    scale, unit = seconds_unit(largest)

    def across(seconds: float) -> float:
        return _LEFT + seconds / largest * (_WIDTH - _LEFT - _RIGHT)

    def down(seconds: float) -> float:
        return _HEIGHT - _BOTTOM - seconds / largest * (_HEIGHT - _TOP - _BOTTOM)

    parts: list[str] = []
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for tick in ticks(largest / scale):
        x, y, label = across(tick * scale), down(tick * scale), significant(tick, 3)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{label}</text>')
    parts.append(
        f'<line class="equal" x1="{across(0):.1f}" y1="{down(0):.1f}" '
        f'x2="{across(largest):.1f}" y2="{down(largest):.1f}"/>'
    )
    parts.append(
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">'
        f"simulated, {unit}</text>"
    )
    parts.append(
        f'<text transform="translate(13 {(_TOP + bottom) / 2}) rotate(-90)" '
        f'text-anchor="middle">measured, {unit}</text>'
    )
    for point in result.points:
        x, y = across(point.simulated_s), down(point.measured_s)
        fill = color(kinds[_family(point.kind)])
        high, low = down(point.measured_s + point.spread_s), down(point.measured_s - point.spread_s)
        title = escape(
            f"{point.kind}: simulated {format_seconds(point.simulated_s)}, "
            f"measured {format_seconds(point.measured_s)} ± {format_seconds(point.spread_s, 2)}"
        )
        parts.append(
            f'<g><title>{title}</title><path class="spread" d="M{x:.1f} {high:.1f}V{low:.1f}"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}"/></g>'
        )
    label = escape(f"Measured against simulated makespans of {result.name}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="scatter" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


def _family(kind: str) -> str:
    """Return the first words of a kind, by which it is colored."""
    if "moved" in kind:
        return "ops moved at random"
    if kind.startswith(("random", "policy", "local search", "single device", "cut")):
        return next(
            word
            for word in ("random", "policy", "local search", "single device", "cut")
            if kind.startswith(word)
        )
    return "heuristics"


def _kinds(points: Sequence[Point]) -> dict[str, int]:
    return {
        kind: place
        for place, kind in enumerate(dict.fromkeys(_family(point.kind) for point in points))
    }


def _shown(point: Point) -> dict[str, str]:
    return {
        "kind": point.kind,
        "simulated": format_seconds(point.simulated_s),
        "measured": f"{format_seconds(point.measured_s)} ± {format_seconds(point.spread_s, 2)}",
        "ratio": f"{point.ratio:.3f}",
    }


def _coefficient(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
