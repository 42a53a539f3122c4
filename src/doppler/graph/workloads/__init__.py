"""Workloads: generators of sharded, executable graphs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from doppler.errors import GraphError, UnknownNameError
from doppler.graph.graph import Graph
from doppler.graph.workloads.chainmm import chainmm
from doppler.graph.workloads.ffnn import ffnn
from doppler.graph.workloads.llama import llama_block, llama_layer
from doppler.graph.workloads.moe import moe_layer
from doppler.graph.workloads.program import MetaOp, Program, Value
from doppler.graph.workloads.sharding import shard

__all__ = [
    "WORKLOADS",
    "MetaOp",
    "Program",
    "Value",
    "chainmm",
    "ffnn",
    "llama_block",
    "llama_layer",
    "make",
    "moe_layer",
    "shard",
]

#: Every workload by its name.
WORKLOADS: Mapping[str, Callable[..., Graph]] = {
    "chainmm": chainmm,
    "ffnn": ffnn,
    "llama_block": llama_block,
    "llama_layer": llama_layer,
    "moe_layer": moe_layer,
}


def make(name: str, **sizes: Any) -> Graph:
    """Generate a workload by its name.

    Parameters
    ----------
    name : str
        A key of :data:`WORKLOADS`.
    **sizes
        Arguments of the workload: its sizes, ``tiles`` and ``dtype_bytes``.

    Raises
    ------
    UnknownNameError
        If there is no such workload.
    GraphError
        If the workload has no such argument, or a value does not suit it.
    """
    if name not in WORKLOADS:
        raise UnknownNameError("workload", name, WORKLOADS)
    known = inspect.signature(WORKLOADS[name]).parameters
    for key in sizes:
        if key not in known:
            error = UnknownNameError(f"size of {name}", key, known)
            raise GraphError(str(error))
    return WORKLOADS[name](**sizes)
