"""Doppler: learned placement of machine-learning dataflow graphs on clusters of devices."""

from doppler.cluster import Cluster, Device, Link
from doppler.graph import Graph, workloads
from doppler.graph.formats import load_graph, save_graph
from doppler.methods import place
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.simulator import Trace, simulate, simulate_many

__all__ = [
    "Cluster",
    "Device",
    "Graph",
    "Link",
    "Placement",
    "Problem",
    "Trace",
    "load_graph",
    "place",
    "save_graph",
    "simulate",
    "simulate_many",
    "workloads",
]
__version__ = "0.1.0"
