"""The JSON of https://github.com/msr-fiddle/dnn-partitioning.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020.
The format calls any accelerator an FPGA. How it becomes a graph:

- ``fpgaLatency`` and ``cpuLatency`` are the seconds on the classes ``"gpu"`` and ``"cpu"``; where
  ``supportedOnFpga`` is 0 the gpu's are infinite.
- Times are milliseconds. The files do not say so; it follows from them: the layers of BERT-24 take
  92.4 in all for a forward pass on a GPU, and the edges of the latency inputs cost their bytes at
  2 GiB per second. (The layer graphs among the throughput inputs give edge costs that are 1,000
  times smaller. They are read as written.)
- ``cost`` of an edge is the time to move the output of its source between an accelerator and the
  host. The format asks for the same on every edge of a source; where they differ, the op's
  ``transfer_s`` is the largest.
- ``size`` is all the memory that a node takes on an accelerator, so it becomes ``param_bytes``,
  and ``output_bytes`` is 0: the output must not be counted twice.
- Nodes that share a ``colorClass`` share a device (a backward node goes with its forward node).
  Classes of one member bind nothing and become -1.
- ``isBackwardNode`` becomes the kind, ``"backward"`` or ``"forward"``.
- ``maxFPGAs``, ``maxCPUs`` and ``maxSizePerFPGA`` become the :class:`Machine`.

Ids need not be contiguous; ops are numbered in the order of the file. Other keys are ignored, as
the format allows them for debugging.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from doppler.documents.schema import check
from doppler.errors import GraphError
from doppler.graph.graph import FloatArray, Graph, Machine
from doppler.messages import shown_value

_SECONDS_PER_UNIT = 1e-3
_INFINITE = float("inf")

_Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Flag = Literal[0, 1, False, True]


# Not models, which take ten times as long to make: a file may hold 100,000.
class _Node(TypedDict):
    id: int
    name: NotRequired[str]
    supportedOnFpga: _Flag
    fpgaLatency: NotRequired[Any]
    cpuLatency: _Cost
    size: _Cost
    isBackwardNode: NotRequired[_Flag]
    colorClass: NotRequired[int | None]


class _Edge(TypedDict):
    sourceId: int
    destId: int
    cost: _Cost


class _Accelerated(BaseModel):
    fpgaLatency: list[_Cost]


class _File(BaseModel):
    maxFPGAs: int
    maxCPUs: int
    maxSizePerFPGA: _Cost
    nodes: list[_Node]
    edges: list[_Edge]


def recognizes(document: Mapping[str, Any]) -> bool:
    """Return whether the object has the format's two lists."""
    return "nodes" in document and "edges" in document


def read(document: Mapping[str, Any], name: str, where: str) -> Graph:
    """Make a graph of the parsed document.

    Parameters
    ----------
    document : mapping
        The file's top object.
    name : str
        Name of the graph, which the format lacks.
    where : str
        The file, for messages.

    Returns
    -------
    Graph
        Heterogeneous, with its machine.

    Raises
    ------
    GraphError
        Names the file, the key or the op, and the rule.
    """
    file = check(_File, document, where, GraphError)
    op_of: dict[int, int] = {}
    for op, node in enumerate(file.nodes):
        if op_of.setdefault(node["id"], op) != op:
            raise GraphError(
                f"{where}: nodes[{op}].id is {shown_value(node['id'])}, the id of "
                f"nodes[{op_of[node['id']]}] too"
            )
    src, dst, transfer = _edges(file.edges, op_of, where)
    supported = [bool(node["supportedOnFpga"]) for node in file.nodes]
    # Where a node has none, the key says nothing and may hold anything.
    latency = [
        node.get("fpgaLatency") if has else 0.0
        for node, has in zip(file.nodes, supported, strict=True)
    ]
    gpu = check(_Accelerated, {"fpgaLatency": latency}, where, GraphError).fpgaLatency
    return Graph.build(
        len(file.nodes),
        src,
        dst,
        name=name,
        source=where,
        param_bytes=[node["size"] for node in file.nodes],
        names=[node.get("name", f"node{node['id']}") for node in file.nodes],
        kinds=["backward" if node.get("isBackwardNode") else "forward" for node in file.nodes],
        colocation=_groups([node.get("colorClass") for node in file.nodes]),
        transfer_s=transfer,
        class_compute_s={
            "gpu": [
                seconds * _SECONDS_PER_UNIT if has else _INFINITE
                for seconds, has in zip(gpu, supported, strict=True)
            ],
            "cpu": [node["cpuLatency"] * _SECONDS_PER_UNIT for node in file.nodes],
        },
        machine=Machine(file.maxFPGAs, file.maxCPUs, file.maxSizePerFPGA),
    )


def _edges(
    edges: list[_Edge], op_of: dict[int, int], where: str
) -> tuple[list[int], list[int], FloatArray]:
    src: list[int] = []
    dst: list[int] = []
    transfer = np.zeros(len(op_of))
    for number, edge in enumerate(edges):
        for key, ends in (("sourceId", src), ("destId", dst)):
            node_id = edge[key]  # type: ignore[literal-required]
            if node_id not in op_of:
                raise GraphError(
                    f"{where}: edges[{number}].{key} is {shown_value(node_id)}, but no node has "
                    "that id"
                )
            ends.append(op_of[node_id])
        cost = edge["cost"] * _SECONDS_PER_UNIT
        transfer[src[-1]] = max(transfer[src[-1]], cost)
    return src, dst, transfer


def _groups(classes: list[int | None]) -> list[int]:
    """Return the group of each node: shared classes, numbered from 0 as they appear, or -1."""
    members = Counter(c for c in classes if c is not None)
    numbers: dict[int, int] = {}
    return [
        -1 if c is None or members[c] == 1 else numbers.setdefault(c, len(numbers)) for c in classes
    ]
