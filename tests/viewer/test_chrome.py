"""Traces in the trace event format, there and back."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise

import numpy as np
import pytest

from doppler import Cluster, Placement, Problem, simulate
from doppler.errors import DopplerError
from doppler.viewer import OpLabels, from_chrome, load_chrome, to_chrome


def test_sums_and_names_equal_the_trace(layered, ran):
    graph = layered(6, 6)
    _, trace = ran(graph, 3)
    document = json.loads(json.dumps(to_chrome(trace, graph), allow_nan=False))
    events = document["traceEvents"]
    ops = [e for e in events if e["ph"] == "X" and e["pid"] == 0]
    sent = [e for e in events if e["ph"] == "X" and e["pid"] == 1]
    assert len(ops) == graph.n_ops
    assert sum(e["dur"] for e in ops) == pytest.approx((trace.end - trace.start).sum() * 1e6)
    moved = (trace.transfer_end - trace.transfer_start).sum() * 1e6
    assert sum(e["dur"] for e in sent) == pytest.approx(moved)
    assert max(e["ts"] + e["dur"] for e in ops) == pytest.approx(trace.makespan * 1e6)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in ops + sent} <= named
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        "devices",
        "links",
    }
    assert {e["cat"] for e in ops} == set(graph.kinds)
    assert ops[0]["name"] == graph.names[ops[0]["args"]["op"]]


def test_events_of_one_thread_never_overlap(layered, ran):
    graph = layered(8, 12)
    _, trace = ran(graph, 3)
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in to_chrome(trace, graph)["traceEvents"]:
        if event["ph"] == "X":
            key = event["pid"], event["tid"]
            threads.setdefault(key, []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in threads.values():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end - 1e-3


@pytest.mark.parametrize("cluster", ["uniform", "p100x4"])
def test_round_trip(layered, cluster, tmp_path):
    graph = layered(5, 5)
    where = Cluster.uniform(4) if cluster == "uniform" else Cluster.load(cluster)
    trace = simulate(Problem(graph, where), Placement(np.arange(25) % 4)).trace
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(to_chrome(trace, graph)))
    again, labels = load_chrome(path)
    for field in dataclasses.fields(trace):
        was, now = getattr(trace, field.name), getattr(again, field.name)
        if isinstance(was, np.ndarray):
            np.testing.assert_allclose(now, was, rtol=1e-12, atol=1e-18)
            assert now.dtype == was.dtype
        else:
            assert now == was
    assert labels.names == graph.names
    assert labels.kinds == graph.kinds
    assert labels.meta_ops == graph.meta_ops


def test_strings_pass_through_unchanged(nasty, ran):
    _, trace = ran(nasty, 2)
    _, labels = from_chrome(json.loads(json.dumps(to_chrome(trace, nasty))))
    assert labels.names == nasty.names


def test_no_device_and_no_transfer(no_devices):
    document = to_chrome(no_devices, OpLabels((), (), ()))
    assert [e for e in document["traceEvents"] if e["ph"] == "X"] == []
    again, labels = from_chrome(document)
    assert again.makespan == 0
    assert again.device_names == ()
    assert labels.names == ()


def test_refuses_a_trace_of_another_graph(layered, ran):
    _, trace = ran(layered(3, 3), 2)
    with pytest.raises(DopplerError, match=r"runs op 8, but the graph has 4 ops"):
        to_chrome(trace, layered(2, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("otherData"), "t.json: is not a trace"),
        (lambda d: d["otherData"].update(version=9), "trace of version 9, this Doppler reads"),
        (lambda d: d.pop("traceEvents"), "damaged trace: an event lacks .traceEvents."),
        (
            lambda d: d["traceEvents"][-1]["args"].pop("op"),
            "damaged trace: an event lacks .op.; make it again",
        ),
        (
            lambda d: d["traceEvents"][-1]["args"].update(op=-3),
            r"transfers.op\[\d+\] is -3, must be greater",
        ),
        (lambda d: d["traceEvents"][-1]["args"].update(op=10**9), "it names 1000000001 ops"),
        (lambda d: d["traceEvents"][-1]["args"].update(channel=float("inf")), "damaged trace"),
        (
            lambda d: d["traceEvents"][-1].update(ts=float("nan")),
            r"ts\[\d+\] is nan, must be a finite number",
        ),
        (
            lambda d: d["otherData"].update(device_names=[]),
            r"device \d has no name",
        ),
        (lambda d: d.update(traceEvents="no"), "damaged trace: string indices"),
        (
            lambda d: d["traceEvents"][-1].update(dur=-0.5),
            r"transfers.dur\[\d+\] is -0.5, must be greater",
        ),
    ],
)
def test_refuses_a_damaged_file(layered, ran, change, message):
    graph = layered(3, 3)
    _, trace = ran(graph, 2)
    document = to_chrome(trace, graph)
    change(document)
    with pytest.raises(DopplerError, match=message):
        from_chrome(document, "t.json")


@pytest.mark.parametrize("document", [None, [], 3, {"nodes": []}])
def test_refuses_other_json(document):
    with pytest.raises(DopplerError, match="is not a trace"):
        from_chrome(document)


def test_refuses_what_is_not_json(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [')
    with pytest.raises(DopplerError, match=r"t\.json: line 1 .*not valid JSON"):
        load_chrome(path)
    with pytest.raises(DopplerError, match="no such file"):
        load_chrome(tmp_path / "missing.json")
