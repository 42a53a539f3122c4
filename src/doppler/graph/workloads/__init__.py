"""Workloads: generators of graphs.

Most are programs that are cut into tiles; their graphs are executable. The operator graphs have
whole ops, modeled costs and no executable ops: what irregular graphs look like to a placement.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from doppler.checks import check_name
from doppler.errors import GraphError, UnknownNameError
from doppler.graph.graph import Graph
from doppler.graph.workloads.chainmm import chainmm
from doppler.graph.workloads.ffnn import ffnn
from doppler.graph.workloads.inception import inception
from doppler.graph.workloads.llama import llama_block, llama_layer
from doppler.graph.workloads.lstm import lstm_grid
from doppler.graph.workloads.moe import moe_layer
from doppler.graph.workloads.program import MetaOp, Value, WorkloadProgram
from doppler.graph.workloads.random_layers import random_layers
from doppler.graph.workloads.sharding import shard

__all__ = [
    "OPERATOR_GRAPHS",
    "SHARDED",
    "WORKLOADS",
    "MetaOp",
    "Value",
    "WorkloadProgram",
    "chainmm",
    "ffnn",
    "inception",
    "llama_block",
    "llama_layer",
    "lstm_grid",
    "make",
    "moe_layer",
    "random_layers",
    "shard",
]

#: Programs that are cut into tiles, by name; their graphs can run.
SHARDED: Mapping[str, Callable[..., Graph]] = {
    "chainmm": chainmm,
    "ffnn": ffnn,
    "llama_block": llama_block,
    "llama_layer": llama_layer,
    "moe_layer": moe_layer,
}

#: Graphs of whole ops, by name; they say what an op costs and not what it computes.
OPERATOR_GRAPHS: Mapping[str, Callable[..., Graph]] = {
    "inception": inception,
    "lstm_grid": lstm_grid,
    "random_layers": random_layers,
}

#: Every workload by its name.
WORKLOADS: Mapping[str, Callable[..., Graph]] = {**SHARDED, **OPERATOR_GRAPHS}


def make(name: str, **sizes: Any) -> Graph:
    """Generate a workload by its name.

    Parameters
    ----------
    name : str
        A key of :data:`WORKLOADS`.
    **sizes
        Arguments of the workload: its sizes, and ``tiles`` and ``dtype_bytes`` where it has them.

    Raises
    ------
    UnknownNameError
        If there is no such workload.
    GraphError
        If the workload has no such argument, or a value does not suit it.
    """
    check_name(name, "workload", WORKLOADS)
    known = inspect.signature(WORKLOADS[name]).parameters
    for key in sizes:
        if key not in known:
            error = UnknownNameError(f"size of {name}", key, known)
            raise GraphError(str(error))
    return WORKLOADS[name](**sizes)
