"""Build the graphs that ``params.yaml`` names: data/graphs/NAME.json."""

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
    """Build every graph."""
    rows = [build(name, spec) for name, spec in params.graphs.items()]
    publish("graphs", "Graphs", markdown_table(Row._fields, rows))


if __name__ == "__main__":
    main(graphs)
