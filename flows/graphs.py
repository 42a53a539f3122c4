"""Build the graphs that training and refinement read: data/graphs/NAME.json."""

from __future__ import annotations

from typing import NamedTuple

import doppler
from common import flow, graph_path, main, markdown_table, publish, step
from doppler.params import GraphParams, Params


class Row(NamedTuple):
    """What the artifact says of a graph."""

    name: str
    workload: str
    ops: int
    edges: int


@step("build {name}")
def build(name: str, spec: GraphParams) -> Row:
    """Generate one graph and save it."""
    graph = spec.build()
    doppler.save_graph(graph, graph_path(name))
    return Row(name, spec.workload, graph.n_ops, graph.n_edges)


@flow(name="graphs")
def graphs(params: Params) -> None:
    """Build the graphs; what is only evaluated is generated there."""
    rows = [build(name, params.graphs[name]) for name in params.stored_graphs]
    publish("graphs", "Graphs", markdown_table(Row._fields, rows))


if __name__ == "__main__":
    main(graphs)
