"""Learning curves: columns of a CSV of metrics, and their drawing."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from doppler.errors import DopplerError
from doppler.files import read_text
from doppler.viewer.palette import color
from doppler.viewer.units import significant

FloatArray = npt.NDArray[np.float64]

_WIDTH, _HEIGHT = 340, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 24
_POINTS = 300
_LINES = 8


@dataclass(frozen=True, eq=False)
class Curve:
    """One metric over the steps of a run.

    Attributes
    ----------
    name : str
        Column of the file.
    x, y : float64 array, shape [points]
        Step and value, where the file has one.
    """

    name: str
    x: FloatArray
    y: FloatArray


def load_curves(path: str | os.PathLike[str]) -> tuple[Curve, ...]:
    """Read the numeric columns of a CSV file whose first column counts steps.

    Columns without a number are left out, and so are empty or infinite cells.

    Raises
    ------
    DopplerError
        If the file is missing, has no header, or its first column is not numeric.
    """
    lines = read_text(path, "metrics", DopplerError).splitlines()
    reader = csv.reader(lines)
    header = next(reader, [])
    if not header:
        raise DopplerError(f"{path}: is empty, must have a header and a row for each step")
    rows = [row for row in reader if row]
    steps = np.array([_number(row[0]) for row in rows])
    if not np.isfinite(steps).all():
        raise DopplerError(f"{path}: column {header[0]!r} must count the steps")
    curves: list[Curve] = []
    for place, name in enumerate(header[1:], start=1):
        values = np.array([_number(row[place]) if place < len(row) else np.nan for row in rows])
        there = np.isfinite(values)
        if there.any():
            curves.append(Curve(name, steps[there], values[there]))
    return tuple(curves)


def group_curves(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Collect curves that belong on one chart: ``makespan/a`` and ``makespan/b`` share one."""
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(curve.name.split("/", 1)[0], []).append(curve)
    return groups


def curves_svg(title: str, curves: Sequence[Curve]) -> str:
    """Draw curves on common axes as one SVG element.

    Long curves are thinned to their moving mean over a pale line of the values themselves. The
    first eight are colored, the others gray.
    """
    x_end = max(float(curve.x.max()) for curve in curves)
    x_start = min(float(curve.x.min()) for curve in curves)
    low, high = _limits(np.concatenate([curve.y for curve in curves]))
    y_ticks = _ticks_between(low, high)
    low, high = min(low, y_ticks[0]), max(high, y_ticks[-1])

    def place(x: FloatArray, y: FloatArray) -> str:
        across = (x - x_start) / ((x_end - x_start) or 1.0)
        down = (high - np.clip(y, low, high)) / (high - low)
        px = _LEFT + across * (_WIDTH - _LEFT - _RIGHT)
        py = _TOP + down * (_HEIGHT - _TOP - _BOTTOM)
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(px, py, strict=True))

    parts: list[str] = []
    for tick in y_ticks:
        row = _TOP + (high - tick) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" '
            f'y1="{row:.1f}" y2="{row:.1f}"/>'
        )
        parts.append(
            f'<text x="{_LEFT - 6}" y="{row + 4:.1f}" text-anchor="end">{_label(tick)}</text>'
        )
    bottom = _HEIGHT - 6
    parts.append(f'<text x="{_LEFT}" y="{bottom}">{_label(x_start)}</text>')
    parts.append(
        f'<text x="{_WIDTH - _RIGHT}" y="{bottom}" text-anchor="end">step {_label(x_end)}</text>'
    )
    for i, curve in reversed(list(enumerate(curves))):
        stroke = color(i) if i < _LINES else "#8d95a0"
        x, y = curve.x, curve.y
        if x.size == 1:
            cx, cy = place(x, y).split(",")
            parts.append(f'<circle cx="{cx}" cy="{cy}" r="3" fill="{stroke}"/>')
            continue
        if x.size > 40:
            x, y = _thin(x, y)
            if len(curves) == 1:
                parts.append(_line(place(x, y), stroke, 1, 0.3))
            y = _smooth(y)
        parts.append(_line(place(x, y), stroke, 1.8 if i < _LINES else 1, 1))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img" aria-label="{escape(title, quote=True)}">{"".join(parts)}</svg>'
    )


def _line(points: str, stroke: str, width: float, opacity: float) -> str:
    return (
        f'<polyline fill="none" stroke="{stroke}" stroke-width="{width}" '
        f'stroke-opacity="{opacity}" stroke-linejoin="round" points="{points}"/>'
    )


def _thin(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean of neighbors, so that at most ``_POINTS`` remain."""
    size = math.ceil(x.size / _POINTS)
    edges = np.arange(0, x.size, size)
    counts = np.diff(np.append(edges, x.size))
    return np.add.reduceat(x, edges) / counts, np.add.reduceat(y, edges) / counts


def _smooth(y: FloatArray) -> FloatArray:
    """Centered moving mean over a twentieth of the curve, narrower at the ends."""
    half = max(1, y.size // 40)
    total = np.concatenate([[0.0], np.cumsum(y)])
    first = np.maximum(np.arange(y.size) - half, 0)
    last = np.minimum(np.arange(y.size) + half + 1, y.size)
    means: FloatArray = (total[last] - total[first]) / (last - first)
    return means


def _limits(values: FloatArray) -> tuple[float, float]:
    # Half a percent at either end may be cut off, so that one wild step does not flatten a curve.
    low, high = (float(v) for v in np.quantile(values, [0.005, 0.995]))
    if low > 0 and low < 0.35 * high:
        low = 0.0
    if high - low <= 1e-12 * max(abs(high), abs(low)):
        margin = abs(high) * 0.1 or 1.0
        return low - margin, high + margin
    return low, high


def _ticks_between(low: float, high: float) -> list[float]:
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return [i * step for i in range(first, last + 1)]


def _label(value: float) -> str:
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.3g}"
    if value == int(value):
        return f"{int(value):,}"
    text = significant(value, 4)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
