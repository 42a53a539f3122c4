"""Charts: well-formed, within their box, and true to the values."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from doppler.experiments.figures import Line, chart_svg, method_color
from doppler.experiments.layout import interval_text, signed
from doppler.experiments.learning_curves import band, curves_chart
from doppler.experiments.results import LearningCurve
from doppler.experiments.statistics import Estimate

NASTY = "</text><script>alert(1)</script>\"'&"
SVG = "{http://www.w3.org/2000/svg}"


def curve(*means: float, seconds: bool = True) -> LearningCurve:
    episodes = [16.0 * (i + 1) for i in range(len(means))]
    return LearningCurve(
        episodes=episodes,
        mean_s=list(means),
        best_s=np.minimum.accumulate(means).tolist(),
        seconds=[e / 10 for e in episodes] if seconds else [],
    )


def points(svg: str, tag: str = "polyline") -> list[list[tuple[float, float]]]:
    return [
        [tuple(map(float, pair.split(","))) for pair in each.attrib["points"].split()]  # type: ignore[misc]
        for each in ElementTree.fromstring(svg).iter(f"{SVG}{tag}")
    ]


@pytest.mark.parametrize("logarithmic", [False, True])
def test_lines_and_bands_are_within_the_axes(logarithmic: bool) -> None:
    x = np.array([1.0, 10, 100, 1000])
    y = np.array([3.0, 2, 1.5, 1.2])
    line = Line("a", x, y, "#000000", 0.5 * y, 100 * y, dots=True)
    svg = chart_svg(NASTY, [line], NASTY, NASTY, x_log=logarithmic, y_log=logarithmic)
    assert "<script" not in svg
    _, _, width, height = map(float, ElementTree.fromstring(svg).attrib["viewBox"].split())
    for across, down in points(svg)[0] + points(svg, "polygon")[0]:
        assert 0 <= across <= width
        assert 0 <= down <= height
    heights = [down for _, down in points(svg)[0]]
    assert heights == sorted(heights), "smaller values lie lower"
    steps = np.diff([across for across, _ in points(svg)[0]])
    assert (np.ptp(steps) < 0.3) == logarithmic, "decades are equally wide"


def test_ticks_are_round_and_labeled() -> None:
    x, y = np.geomspace(1e3, 1e5, 5), np.geomspace(1e-2, 10, 5)
    svg = chart_svg("t", [Line("a", x, y, "#000000")], "ops", "seconds", x_log=True, y_log=True)
    labels = re.findall(r">([^<>]+)</text>", svg)
    assert {"1k", "10k", "100k", "0.01", "0.1", "1", "10", "ops", "seconds"} <= set(labels)


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0], [1e-9, 2e-9], [1.0, 1e9]])
def test_any_values_can_be_drawn(values: list[float]) -> None:
    y = np.array(values)
    for logarithmic in (False, True):
        svg = chart_svg(
            "t", [Line("a", y, y, "#0")], "x", "y", x_log=logarithmic, y_log=logarithmic
        )
        ElementTree.fromstring(svg)
        assert "nan" not in svg


def test_methods_keep_their_color() -> None:
    assert method_color("doppler") == method_color("doppler", ["gdp", "doppler"])
    assert method_color("doppler") != method_color("gdp")
    assert method_color("x", ["x", "y"]) != method_color("y", ["x", "y"])


def test_band_of_several_seeds() -> None:
    line = band("a", "#0", [curve(4.0, 2.0), curve(1.0, 2.0, 9.0)], [1.0, 1.0])
    assert line.x.tolist() == [16, 32], "cut to the shortest"
    assert line.y.tolist() == pytest.approx([2, 2])
    assert line.low is not None
    assert line.high is not None
    assert line.low[0] < 2 < line.high[0]
    assert line.low[1] == pytest.approx(2)
    assert band("a", "#0", [curve(4.0, 2.0)], [2.0]).y.tolist() == [2, 1]
    assert band("a", "#0", [curve(4.0, 2.0)], [2.0]).low is None
    best = band("a", "#0", [curve(2.0, 4.0)], [1.0], best=True, clock=True)
    assert best.y.tolist() == pytest.approx([2, 2])
    assert best.x.tolist() == pytest.approx([1.6, 3.2])


def test_curves_without_points_or_clock_are_left_out() -> None:
    empty = LearningCurve(episodes=[], mean_s=[], best_s=[])
    made = {"a": ("#0", [(empty, 1.0)]), "b": ("#1", [(curve(2.0, 1.0, seconds=False), 1.0)])}
    assert [name for name, _ in curves_chart("t", made, "y").legend] == ["b"]
    assert curves_chart("t", made, "y", clock=True).svg == ""


def test_figures_for_people() -> None:
    assert signed(0.1234) == "+12.3%"
    assert signed(-0.1234) == "−12.3%"
    assert signed(-0.00001) == "0.0%"
    assert interval_text(Estimate(0.1, -0.05, 0.25, 5)) == "+10.0% [−5.0, +25.0]"
    assert interval_text(Estimate(0.1, None, None, 1)) == "+10.0%"
