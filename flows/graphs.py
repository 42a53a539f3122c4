"""Build the graphs that training reads: data/graphs/NAME.json."""

from __future__ import annotations

from typing import NamedTuple

from common import flow, graph_path, main, markdown_table, publish, step
from doppler.cases import Grids, cases
from doppler.errors import ParamsError, UnknownNameError
from doppler.graph.formats import save_graph
from doppler.graph.workloads.settings import Graphs, WorkloadSettings
from doppler.settings import Settings


class Params(Settings):
    """The sections that this stage reads."""

    graphs: Graphs
    training: Grids


class Row(NamedTuple):
    """What the artifact says of a graph."""

    name: str
    workload: str
    ops: int
    edges: int


@step("build {name}")
def build(name: str, spec: WorkloadSettings) -> Row:
    """Generate one graph and save it."""
    graph = spec.build()
    save_graph(graph, graph_path(name))
    return Row(name, spec.workload, graph.n_ops, graph.n_edges)


@flow(name="graphs")
def graphs(params: Params) -> None:
    """Build the graphs; the others are generated where they are needed."""
    names = dict.fromkeys(case.graph for case in cases(params.training))
    for name in names:
        if name not in params.graphs:
            error = UnknownNameError("graph", name, params.graphs)
            raise ParamsError(f"params.yaml: training: {error}")
    rows = [build(name, params.graphs[name]) for name in names]
    publish("graphs", "Graphs", markdown_table(Row._fields, rows))


if __name__ == "__main__":
    main(graphs, Params)
