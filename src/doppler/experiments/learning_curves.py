"""Learning curves of several seeds as one line with a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from doppler.experiments.figures import Line, chart_svg
from doppler.experiments.layout import Chart
from doppler.experiments.results import LearningCurve
from doppler.experiments.statistics import geometric_mean

FloatArray = npt.NDArray[np.float64]


def curves_chart(
    title: str,
    curves: Mapping[str, tuple[str, Sequence[tuple[LearningCurve, float]]]],
    y_label: str,
    *,
    y_from: float | None = None,
    best: bool = False,
    clock: bool = False,
) -> Chart:
    """Draw learning curves with bands, on a logarithmic axis of makespans.

    Parameters
    ----------
    title : str
    curves : mapping of str to (color, sequence of (LearningCurve, float))
        By the name of the line, its curves and what the seconds of each are divided by.
    y_label : str
    y_from : float, optional
        A value that the axis holds at least.
    best : bool
        Draw the best so far, not the mean of each batch.
    clock : bool
        Against the seconds of training, not against episodes.
    """
    lines = []
    for name, (color, members) in curves.items():
        # A curve without points, or one that kept no clock, has nothing to draw.
        told = [
            (curve, scale)
            for curve, scale in members
            if curve.episodes and (not clock or len(curve.seconds) == len(curve.episodes))
        ]
        if told:
            own = [curve for curve, _ in told]
            scales = [scale for _, scale in told]
            lines.append(band(name, color, own, scales, best=best, clock=clock))
    x_label = "seconds of training" if clock else "episodes"
    svg = ""
    if lines:
        svg = chart_svg(title, lines, x_label, y_label, y_log=True, y_from=y_from)
    return Chart(title, svg, tuple((line.name, line.color) for line in lines))


def band(
    name: str,
    color: str,
    curves: Sequence[LearningCurve],
    scales: Sequence[float],
    *,
    best: bool = False,
    clock: bool = False,
) -> Line:
    """Draw the geometric mean of some curves, and its interval as a band.

    Parameters
    ----------
    name, color : str
    curves : sequence of LearningCurve
        Of other seeds or cases; a longer one is cut to the shortest.
    scales : sequence of float
        What the seconds of each curve are divided by.
    best : bool
        Draw the best so far, not the mean of each batch.
    clock : bool
        Against the seconds of training, not against episodes.
    """
    points = min(len(curve.episodes) for curve in curves)
    x = np.mean([(c.seconds if clock else c.episodes)[:points] for c in curves], axis=0)
    values = [
        np.asarray((curve.best_s if best else curve.mean_s)[:points]) / scale
        for curve, scale in zip(curves, scales, strict=True)
    ]
    means = [geometric_mean([float(each[i]) for each in values]) for i in range(points)]
    y = np.array([mean.value for mean in means])
    if len(curves) < 2:
        return Line(name, x, y, color)
    low = np.array([mean.low for mean in means], dtype=np.float64)
    high = np.array([mean.high for mean in means], dtype=np.float64)
    return Line(name, x, y, color, low, high)
