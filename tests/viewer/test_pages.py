"""The HTML pages: whole, escaped, of a bearable size."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from doppler import Cluster, Graph, Placement, Problem, simulate
from doppler.errors import DopplerError, PlacementError
from doppler.viewer import OpLabels, render_graph, render_timeline
from doppler.viewer.page import embed_json, numbers


class Tags(HTMLParser):
    """Collects the elements of a page as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts = 0
        self.title = ""
        self.heading = ""
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.scripts += tag == "script"
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, text: str) -> None:
        if self._open == "title":
            self.title += text
        if self._open == "h1":
            self.heading += text


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


def test_graph_page_holds_the_graph(layered, assert_self_contained):
    graph = layered(6, 5)
    page = render_graph(graph)
    assert_self_contained(page)
    data = data_of(page)
    assert data["names"] == list(graph.names)
    assert data["src"] == graph.src.tolist()
    assert data["dst"] == graph.dst.tolist()
    assert [c["name"] for c in data["costs"]] == ["compute", "transfer"]
    np.testing.assert_allclose(data["costs"][0]["values"], graph.compute_s, rtol=1e-4)
    assert "device" not in data["groups"]
    assert "30 ops, " in page
    assert "6 levels" in page


def test_graph_page_colors_by_device_first(layered):
    graph = layered(3, 2)
    data = data_of(render_graph(graph, Placement(np.array([0, 0, 2, 2, 0, 0])), device_names="abc"))
    assert data["first"] == "device"
    assert data["groups"]["device"]["values"] == ["a", "b", "c"]
    assert data["groups"]["device"]["counts"] == [4, 0, 2]
    assert data["groups"]["device"]["index"] == [0, 0, 2, 2, 0, 0]


def test_graph_page_refuses_a_placement_of_another_graph(layered):
    with pytest.raises(PlacementError, match=r"3 ops, but graph 'layered' has 6"):
        render_graph(layered(3, 2), Placement(np.zeros(3, int)))
    with pytest.raises(PlacementError, match=r"uses device 4, but there are 2 devices"):
        render_graph(layered(3, 2), Placement(np.full(6, 4)), device_names=["a", "b"])


def test_graph_page_of_one_op(assert_self_contained):
    page = render_graph(Graph.build(1, [], []))
    assert_self_contained(page)
    assert "1 op, 0 edges, 1 level<" in page
    assert data_of(page)["costs"] == []


def test_graph_page_writes_an_impossible_op_as_null():
    seconds = {"gpu": [1.0, np.inf], "cpu": [2.0, 3.0]}
    costs = data_of(render_graph(Graph.build(2, [0], [1], class_compute_s=seconds)))["costs"]
    assert {c["name"]: c["values"] for c in costs} == {
        "compute (gpu)": [1, None],
        "compute (cpu)": [2, 3],
    }


def test_pages_of_many_ops_stay_small(layered, ran, assert_self_contained):
    graph = layered(500, 40)
    problem, trace = ran(graph, 8)
    page = render_graph(graph)
    assert_self_contained(page)
    assert len(page) < 3_000_000
    timeline = render_timeline(trace, problem)
    assert_self_contained(timeline)
    assert len(timeline) < 4_000_000


def test_pages_escape_every_string(nasty, ran, assert_self_contained):
    problem, trace = ran(nasty, 2)
    named = dataclasses.replace(trace, device_names=("<b>", "</script>"), label="<i>&")
    for page, own in (
        (render_graph(nasty, title=None), 2),
        (render_timeline([named, trace], problem, "<img src=x onerror=alert(1)>"), 2),
    ):
        assert_self_contained(page)
        tags = Tags(page)
        assert tags.scripts == own
        assert tags.title == tags.heading
        assert data_of(page)["names"] == list(nasty.names)
        assert "alert(1)</script>" not in page
        assert "<img" not in page
        assert "<i>&" not in page


def test_timeline_holds_every_op_and_transfer(layered, ran, assert_self_contained):
    graph = layered(6, 6)
    problem, trace = ran(graph, 3)
    page = render_timeline(trace, problem, "A title")
    assert_self_contained(page)
    lanes = data_of(page)["traces"][0]["lanes"]
    devices = [lane for lane in lanes if lane["device"]]
    links = [lane for lane in lanes if not lane["device"]]
    assert [lane["name"] for lane in devices] == list(trace.device_names)
    assert sorted(op for lane in devices for op in lane["op"]) == list(range(graph.n_ops))
    assert sum(len(lane["op"]) for lane in links) == trace.transfer_op.size
    busy = sum(length for lane in devices for length in lane["length"])
    np.testing.assert_allclose(busy, (trace.end - trace.start).sum(), rtol=1e-5)
    for lane, device in zip(devices, range(3), strict=True):
        mine = trace.device == device
        share = (trace.end - trace.start)[mine].sum() / trace.makespan
        assert lane["utilization"] == pytest.approx(share, abs=1e-4)
        assert lane["rows"] == 1
    assert "<title>A title</title>" in page


def test_timeline_of_channels_and_their_links():
    graph = Graph.build(4, [0, 1], [2, 3], flops=[1e9] * 4, output_bytes=[1e8] * 4)
    problem = Problem(graph, Cluster.load("p100x4"))
    trace = simulate(problem, Placement(np.array([0, 1, 2, 3]))).trace
    lanes = data_of(render_timeline(trace, problem))["traces"][0]["lanes"]
    routes = [route for lane in lanes for route in lane["route"]]
    assert len(routes) == 2
    assert all("→" in route for route in routes)


def test_timelines_side_by_side_share_one_page(layered, ran):
    graph = layered(3, 3)
    _, trace = ran(graph, 2)
    slower = dataclasses.replace(trace, start=trace.start * 2, end=trace.end * 2, label="measured")
    page = render_timeline([trace, slower], graph)
    assert page.count("<canvas") == 2
    assert "<h2>simulated</h2>" in page
    assert "<h2>measured</h2>" in page
    spans = [t["makespan"] for t in data_of(page)["traces"]]
    assert spans == [trace.makespan, slower.makespan]


def test_timeline_without_devices_or_transfers(no_devices, ran, assert_self_contained):
    labels = OpLabels((), (), ())
    assert_self_contained(render_timeline(no_devices, labels))
    problem, trace = ran(Graph.build(1, [], [], compute_s=[0], transfer_s=[0]), 1)
    assert trace.makespan == 0
    assert_self_contained(render_timeline(trace, problem))


def test_timeline_refuses_what_it_cannot_draw(layered, ran):
    _, trace = ran(layered(3, 3), 2)
    with pytest.raises(DopplerError, match="no trace to draw"):
        render_timeline([], layered(3, 3))
    with pytest.raises(DopplerError, match=r"runs op 8, but the graph has 4 ops"):
        render_timeline(trace, layered(2, 2))


def test_embedded_json_is_the_same_json():
    value = {"</script>": ["<!--", "&", "\u2028", "\\", '"', "π"]}
    text = embed_json(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028") & set(text)
    with pytest.raises(ValueError, match="Out of range"):
        embed_json(float("inf"))


def test_numbers_are_short():
    assert numbers([1.0, 1 / 3, float("inf"), 0.0, 1e300], 3) == [1, 0.333, None, 0, 1e300]
