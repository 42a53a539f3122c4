"""Equal graphs, equal fingerprints; any other cost or edge, another one."""

from __future__ import annotations

from typing import Any

import numpy as np

from doppler import Graph, load_graph, save_graph
from doppler.graph.fingerprint import fingerprint

ARRAYS: dict[str, Any] = {
    "src": [0, 0],
    "dst": [1, 2],
    "compute": [1.0, 2.0, 1 / 3],
    "transfer": [0.0, 1.0, 2.0],
}


def test_it_outlives_names_and_file_formats(tmp_path) -> None:
    graph = Graph.from_arrays(**ARRAYS)
    mark = fingerprint(graph)
    assert len(mark) == 16
    assert fingerprint(load_graph(save_graph(graph, tmp_path / "other.json"))) == mark
    again = Graph.from_arrays(*map(np.array, ARRAYS.values()))
    assert fingerprint(again) == mark


def test_what_decides_a_makespan_changes_it() -> None:
    marks = {fingerprint(Graph.from_arrays(**ARRAYS))}
    for key, value in (
        ("src", [0, 1]),
        ("compute", [1.0, 2.0, 3.0]),
        ("transfer", [0.0, 1.0, 2.5]),
    ):
        marks.add(fingerprint(Graph.from_arrays(**{**ARRAYS, key: value})))
    assert len(marks) == 4
