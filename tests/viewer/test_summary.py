"""Summaries in the terminal."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console, RenderableType

from doppler import Graph
from doppler.errors import DopplerError
from doppler.graph import Machine
from doppler.viewer import summarize_graph, summarize_trace


def text_of(what: RenderableType) -> str:
    console = Console(width=100, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def line(text: str, start: str) -> str:
    return next(row for row in text.splitlines() if row.startswith(start))


def test_graph_summary(layered):
    graph = layered(6, 5)
    text = text_of(summarize_graph(graph))
    assert line(text, "ops").split() == ["ops", "30"]
    assert line(text, "meta-ops").split()[-1] == "6"
    assert line(text, "depth").split()[1:] == ["6", "levels"]
    assert "5 ops at depth 0" in line(text, "widest level")
    assert "ms" in line(text, "compute")
    assert line(text, "matmul").split()[1] == "10"


def test_graph_summary_of_modeled_costs_and_machine():
    graph = Graph.build(
        3,
        [0],
        [1],
        flops=[1e12, 1e12, 2e11],
        output_bytes=[1e9, 5e8, 0],
        pinned=[0, -1, -1],
        colocation=[4, 4, -1],
        kinds=[f"kind {i}" for i in range(3)],
        machine=Machine(2, 1, 16e9),
    )
    text = text_of(summarize_graph(graph))
    assert "2.20 TFLOP" in text
    assert "1.50 GB" in text
    assert "2 accelerators of 16.0 GB, 1 CPU" in text
    assert "1 group" in text


def test_graph_summary_of_classes():
    seconds = {"gpu": [1.0, np.inf], "cpu": [2.0, 3.0]}
    text = text_of(summarize_graph(Graph.build(2, [], [], class_compute_s=seconds)))
    assert "1.000 s in 1 op" in line(text, "compute (gpu)")


def test_many_kinds_are_folded():
    graph = Graph.build(12, [], [], kinds=[f"k{i}" for i in range(12)])
    assert line(text_of(summarize_graph(graph)), "4 more kinds").split()[-1] == "4"


def test_trace_summary(layered, ran):
    graph = layered(6, 6)
    problem, trace = ran(graph, 3)
    text = text_of(summarize_trace(trace, problem))
    assert graph.names[trace.op[trace.end.argmax()]] in line(text, "last op")
    assert line(text, "gpu0").split()[1] == "12"
    assert "gpu0 → gpu1" in text
    assert "op " in line(text_of(summarize_trace(trace)), "last op")


def test_trace_summary_without_devices(no_devices):
    assert "0 s" in line(text_of(summarize_trace(no_devices)), "makespan")


def test_names_cannot_steer_the_terminal(nasty, ran):
    problem, trace = ran(nasty, 2)
    for text in (text_of(summarize_graph(nasty)), text_of(summarize_trace(trace, problem))):
        assert "\x1b" not in text
    assert "[31mred" in text_of(summarize_graph(nasty))


def test_trace_summary_refuses_another_graph(layered, ran):
    _, trace = ran(layered(3, 3), 2)
    with pytest.raises(DopplerError, match=r"runs op 8, but the graph has 4 ops"):
        summarize_trace(trace, layered(2, 2))
