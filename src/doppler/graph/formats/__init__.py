"""Graph file formats, each in its own module; the content of a file tells which one it is."""

from doppler.graph.formats.detection import load_graph, parse_graph, save_graph
from doppler.graph.formats.networkx_graph import from_networkx, to_networkx

__all__ = ["from_networkx", "load_graph", "parse_graph", "save_graph", "to_networkx"]
