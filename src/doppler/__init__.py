"""Doppler: learned placement of machine-learning dataflow graphs on clusters of devices."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from doppler.capture import region
    from doppler.cluster import Cluster, Device, Link
    from doppler.engine import Engine, execute
    from doppler.graph import Graph, workloads
    from doppler.graph.formats import load_graph, save_graph
    from doppler.methods import place
    from doppler.placed import PlacedModel, compile, load_placed
    from doppler.placement import Placement
    from doppler.problem import Problem
    from doppler.simulator import simulate, simulate_many
    from doppler.trace import Trace

__all__ = [
    "Cluster",
    "Device",
    "Engine",
    "Graph",
    "Link",
    "PlacedModel",
    "Placement",
    "Problem",
    "Trace",
    "compile",
    "execute",
    "load_graph",
    "load_placed",
    "place",
    "region",
    "save_graph",
    "simulate",
    "simulate_many",
    "workloads",
]
__version__ = "0.1.0"

# Loaded at first use: compiled kernels take most of a second, and `doppler --help` needs none.
_HOMES = {
    "Cluster": "doppler.cluster",
    "Device": "doppler.cluster",
    "Engine": "doppler.engine",
    "Graph": "doppler.graph",
    "Link": "doppler.cluster",
    "PlacedModel": "doppler.placed",
    "Placement": "doppler.placement",
    "Problem": "doppler.problem",
    "Trace": "doppler.trace",
    "compile": "doppler.placed",
    "execute": "doppler.engine",
    "load_graph": "doppler.graph.formats",
    "load_placed": "doppler.placed",
    "place": "doppler.methods",
    "region": "doppler.capture",
    "save_graph": "doppler.graph.formats",
    "simulate": "doppler.simulator",
    "simulate_many": "doppler.simulator",
}
_MODULES = {
    "capture": "doppler.capture",
    "cluster": "doppler.cluster",
    "engine": "doppler.engine",
    "errors": "doppler.errors",
    "evaluation": "doppler.evaluation",
    "graph": "doppler.graph",
    "heuristics": "doppler.heuristics",
    "methods": "doppler.methods",
    "placed": "doppler.placed",
    "placement": "doppler.placement",
    "policy": "doppler.policy",
    "problem": "doppler.problem",
    "profiling": "doppler.profiling",
    "registry": "doppler.registry",
    "simulator": "doppler.simulator",
    "training": "doppler.training",
    "viewer": "doppler.viewer",
    "workloads": "doppler.graph.workloads",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'doppler' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
