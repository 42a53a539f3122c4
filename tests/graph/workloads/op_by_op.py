"""Run a whole graph for the tests of the workloads."""

from __future__ import annotations

from torch import Tensor

from doppler.graph import Graph
from doppler.graph.execution import assemble, make_tensors, run_sequential


def run(graph: Graph, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Run a graph op by op in float64: its whole tensors, and its one result."""
    tensors = make_tensors(graph, seed, dtype="float64")
    (result,) = assemble(graph, run_sequential(graph, tensors)).values()
    return tensors, result
