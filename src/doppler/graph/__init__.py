"""What is computed: the dataflow graph, its file formats and the workload generators."""

from doppler.graph.graph import Graph, Machine
from doppler.graph.spec import OpSpec, TensorSpec, Tile

__all__ = ["Graph", "Machine", "OpSpec", "TensorSpec", "Tile"]
