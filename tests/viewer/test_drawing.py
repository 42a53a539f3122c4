"""Layout, lanes, static pictures, colors and units."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import graphs

from doppler import Graph, Trace
from doppler.errors import DopplerError
from doppler.viewer import OpLabels, timeline_svg
from doppler.viewer.lanes import MAX_ROWS, device_lanes, link_lanes
from doppler.viewer.layout import layered_layout
from doppler.viewer.palette import categorize, color
from doppler.viewer.units import (
    count_of,
    format_bytes,
    format_flops,
    format_seconds,
    seconds_unit,
    significant,
    ticks,
)


@given(graphs(max_ops=40))
@settings(max_examples=60)
def test_layout_goes_forward_and_never_overlaps(graph):
    x, y = layered_layout(graph)
    assert (x[graph.dst] > x[graph.src]).all()
    assert y.min() == 0
    for column in np.unique(x):
        rows = np.sort(y[x == column])
        assert (np.diff(rows) >= 1 - 1e-9).all()


def test_layout_folds_a_level_that_is_too_tall():
    x, y = layered_layout(Graph.build(4001, np.arange(4000), np.full(4000, 4000)))
    assert y.max() < 200
    assert x[4000] == x.max() > x[:4000].max()


def test_layout_keeps_a_chain_straight():
    _, y = layered_layout(Graph.build(50, np.arange(49), np.arange(1, 50)))
    assert not y.any()


def sent(starts: list[float], ends: list[float]) -> Trace:
    m = len(starts)
    none = np.zeros(m, np.int32)
    return Trace(
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
        np.zeros(1),
        np.ones(1),
        none,
        none,
        none + 1,
        np.array(starts),
        np.array(ends),
        none - 1,
        ("a", "b"),
    )


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.3)), max_size=40))
@settings(max_examples=60)
def test_rows_of_a_link_never_overlap(spans):
    trace = sent([s for s, _ in spans], [s + d for s, d in spans])
    for lane in link_lanes(trace, max_rows=None):
        assert lane.peak == lane.n_rows == lane.rows.max() + 1
        for row in range(lane.n_rows):
            mine = lane.rows == row
            assert (lane.starts[mine][1:] >= lane.ends[mine][:-1] - 1e-8).all()
    for lane in link_lanes(trace):
        assert lane.n_rows <= MAX_ROWS
        assert lane.rows.max() < lane.n_rows


def test_utilization_counts_an_overlap_once():
    (lane,) = link_lanes(sent([0.0, 0.1, 0.6], [0.3, 0.2, 0.7]))
    assert lane.utilization == pytest.approx(0.4)
    assert lane.name == "a → b"
    assert [lane.utilization for lane in device_lanes(sent([], []))] == [1.0, 0.0]


def test_svg_is_whole_and_escaped(nasty, ran):
    problem, trace = ran(nasty, 2)
    named = dataclasses.replace(trace, device_names=("<b>\x00", "</svg>"), label="a\"'<&")
    text = timeline_svg(named, problem)
    root = ET.fromstring(text)
    assert root.get("aria-label") == f"a\"'<&: {format_seconds(trace.makespan)}"
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in text
    assert "\x1b" not in text


def test_svg_of_many_ops_stays_small(layered, ran):
    graph = layered(500, 40)
    problem, trace = ran(graph, 4)
    text = timeline_svg(trace, problem)
    ET.fromstring(text)
    assert len(text) < 500_000


def test_svg_draws_every_wide_op(layered, ran):
    graph = layered(4, 4)
    problem, trace = ran(graph, 2)
    text = timeline_svg(trace, problem, links=False, width=20000, by="meta_op", title="")
    assert sum(part.count("M") for part in text.split(' d="')[1:]) == graph.n_ops


def test_svg_without_devices(no_devices):
    ET.fromstring(timeline_svg(no_devices, OpLabels((), (), ())))


def test_svg_refuses_a_trace_of_another_graph(layered, ran):
    _, trace = ran(layered(3, 3), 2)
    with pytest.raises(DopplerError, match=r"runs op 8, but the graph has 4 ops"):
        timeline_svg(trace, layered(2, 2))


def test_categories_count_from_the_most_frequent():
    found = categorize(["b", "a", "b"])
    assert found.values == ("b", "a")
    assert found.index == (0, 1, 0)
    assert found.counts == (2, 1)
    assert len({color(i) for i in range(24)}) == 24
    assert color(24) == color(0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1200.14, "1200 s"),
        (0.99999, "1.000 s"),
        (0.0123, "12.30 ms"),
        (8.75e-5, "87.50 µs"),
        (3e-9, "3.000 ns"),
        (1e-13, "0.0001000 ns"),
        (float("inf"), "∞ s"),
    ],
)
def test_seconds(seconds, text):
    assert format_seconds(seconds) == text


def test_other_units():
    assert format_bytes(1.5e9) == "1.50 GB"
    assert format_bytes(12) == "12.0 B"
    assert format_flops(2.2e12) == "2.20 TFLOP"
    assert format_flops(0) == "0 FLOP"
    assert significant(123456) == "123500"
    assert significant(5e-324) == "4.941e-324"
    assert significant(1e300) == "1.000e+300"
    assert significant(float("nan")) == "-"
    assert count_of(1, "op") == "1 op"
    assert count_of(1200, "op") == "1,200 ops"
    assert seconds_unit(0) == (1.0, "s")


@given(st.floats(1e-12, 1e12))
def test_ticks_are_even_and_inside(largest):
    found = ticks(largest)
    assert found[0] == 0
    assert 3 <= len(found) <= 8
    assert found[-1] <= largest * (1 + 1e-6)
    np.testing.assert_allclose(np.diff(found), found[1])
    assert ticks(0) == [0.0]
