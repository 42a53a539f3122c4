"""Charts of the experiments as SVG: lines with bands, and points with a fit, also on logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from doppler.viewer.palette import color
from doppler.viewer.units import significant

FloatArray = npt.NDArray[np.float64]

_WIDTH, _HEIGHT = 360, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 18, 12, 38
_TICKS = 4
# So that a method has one color on all charts.
_METHODS = (
    "doppler",
    "gdp",
    "critical_path",
    "placeto",
    "doppler-policy",
    "doppler-paper",
    "single_device",
    "enumerative",
    "critical_path, first ready",
    "sibling_affinity",
    "partition",
    "local_search",
    "spmd",
    "heft",
    "round_robin",
    "random",
)


def method_color(name: str, others: Sequence[str] = ()) -> str:
    """Return the color of a method, the same on all charts.

    Parameters
    ----------
    name : str
    others : sequence of str
        All names of the chart, for one that is no method.
    """
    if name in _METHODS:
        return color(_METHODS.index(name))
    return color(others.index(name) if name in others else len(_METHODS))


@dataclass(frozen=True, eq=False)
class Line:
    """A line of a chart.

    Attributes
    ----------
    name : str
    x, y : float64 array, shape [points]
        With finite values; positive on a logarithmic axis.
    color : str
        ``#rrggbb``.
    low, high : float64 array, shape [points], optional
        Band around it.
    dots : bool
        Whether the points are drawn.
    joined : bool
        Whether the points are joined.
    dashed : bool
    """

    name: str
    x: FloatArray
    y: FloatArray
    color: str
    low: FloatArray | None = None
    high: FloatArray | None = None
    dots: bool = False
    joined: bool = True
    dashed: bool = False


class _Axis:
    """Values to the share of the way along an axis, and the ticks."""

    def __init__(self, values: FloatArray, logarithmic: bool) -> None:
        self.logarithmic = logarithmic
        scaled = self._scale(values)
        low, high = float(scaled.min()), float(scaled.max())
        if high - low <= 1e-9 * max(1.0, abs(low), abs(high)):
            margin = 0.1 if logarithmic else abs(high) * 0.1 or 1.0
            low, high = low - margin, high + margin
        self.low, self.high = low, high
        self.ticks = self._round(low, high)

    def _scale(self, values: FloatArray) -> FloatArray:
        return np.log10(values) if self.logarithmic else np.asarray(values, dtype=np.float64)

    def __call__(self, values: npt.ArrayLike) -> FloatArray:
        scaled = self._scale(np.asarray(values, dtype=np.float64))
        return np.clip((scaled - self.low) / (self.high - self.low), 0.0, 1.0)

    def _round(self, low: float, high: float) -> list[float]:
        """Round values within the axis: powers of ten, their parts on a short one."""
        if self.logarithmic:
            powers = range(math.floor(low), math.ceil(high) + 1)
            for parts in ((1,), (1, 3), (1, 2, 5)):
                found = [p * 10.0**e for e in powers for p in parts]
                inside = [v for v in found if low - 1e-9 <= math.log10(v) <= high + 1e-9]
                if len(inside) >= 3:
                    return inside[:: math.ceil(len(inside) / 7)]
            low, high = 10**low, 10**high
        step = 10.0 ** math.floor(math.log10((high - low) / _TICKS))
        step = next(step * m for m in (1, 2, 2.5, 5, 10) if step * m >= (high - low) / _TICKS)
        first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
        return [i * step for i in range(first, last + 1) if i or not self.logarithmic]


def chart_svg(
    title: str,
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    x_log: bool = False,
    y_log: bool = False,
    y_from: float | None = None,
) -> str:
    """Draw lines, their bands and points on common axes as one SVG element.

    Parameters
    ----------
    title : str
        For readers who do not see it.
    lines : sequence of Line
        The first is drawn on top.
    x_label, y_label : str
    x_log, y_log : bool
        Whether an axis is logarithmic.
    y_from : float, optional
        A value that the axis holds at least, such as 1 for ratios.
    """
    across = _Axis(np.concatenate([line.x for line in lines]), x_log)
    floor = [] if y_from is None else [np.array([y_from])]
    down = _Axis(np.concatenate([*floor, *(_extent(line) for line in lines)]), y_log)
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def px(x: npt.ArrayLike) -> FloatArray:
        return _LEFT + across(x) * (right - _LEFT)

    def py(y: npt.ArrayLike) -> FloatArray:
        return bottom - down(y) * (bottom - _TOP)

    parts: list[str] = []
    for tick in down.ticks:
        y = float(py(tick))
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 6, y + 4, _label(tick), "end"))
    for tick in across.ticks:
        x = float(px(tick))
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(_text(x, bottom + 15, _label(tick), "middle"))
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 6, x_label, "middle"))
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text transform="translate(11 {middle:g}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )
    for line in reversed(lines):
        if line.low is not None and line.high is not None and line.x.size > 1:
            edge = _points(
                np.concatenate([px(line.x), px(line.x)[::-1]]),
                np.concatenate([py(line.low), py(line.high)[::-1]]),
            )
            parts.append(f'<polygon points="{edge}" fill="{line.color}" fill-opacity=".16"/>')
    for line in reversed(lines):
        if line.joined and line.x.size > 1:
            dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
            parts.append(
                f'<polyline fill="none" stroke="{line.color}" stroke-width="1.8"{dashes} '
                f'stroke-linejoin="round" points="{_points(px(line.x), py(line.y))}"/>'
            )
        if line.dots or line.x.size == 1:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{line.color}"/>'
                for x, y in zip(px(line.x), py(line.y), strict=True)
            ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img" aria-label="{escape(title, quote=True)}">{"".join(parts)}</svg>'
    )


def _extent(line: Line) -> FloatArray:
    """Values that must be seen: of a band what is within a wide margin of the line.

    A band of two or three seeds may be many times as wide as all lines together.
    """
    if line.low is None or line.high is None:
        return line.y
    low, high = float(line.y.min()), float(line.y.max())
    margin = 0.25 * (high - low)
    least = low - margin if low > margin else low * 0.75
    return np.concatenate(
        [line.y, np.maximum(line.low, least), np.minimum(line.high, high + margin)]
    )


def _points(x: FloatArray, y: FloatArray) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _label(value: float) -> str:
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{suffix}"
    if value and abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    text = significant(value, 4)
    return text.rstrip("0").rstrip(".") if "." in text else text
