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

import numpy as np

from doppler.graph.formats.fields import Fields
from doppler.graph.graph import FloatArray, Graph, Machine
from doppler.messages import shown_value

_SECONDS_PER_UNIT = 1e-3
_INFINITE = float("inf")


def recognizes(document: Fields) -> bool:
    """Return whether the object has the format's two lists."""
    return "nodes" in document and "edges" in document


def read(document: Fields, name: str, where: str) -> Graph:
    """Make a graph of the parsed document.

    Parameters
    ----------
    document : Fields
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
    machine = Machine(
        accelerators=document.integer("maxFPGAs"),
        cpus=document.integer("maxCPUs"),
        accelerator_memory=document.cost("maxSizePerFPGA"),
    )
    op_of: dict[int, int] = {}
    names: list[str] = []
    kinds: list[str] = []
    gpu: list[float] = []
    cpu: list[float] = []
    memory: list[float] = []
    classes: list[int | None] = []
    for op, node in enumerate(document.records("nodes")):
        node_id = node.integer("id")
        if node_id in op_of:
            node.fail("id", f"is {shown_value(node_id)}, the id of nodes[{op_of[node_id]}] too")
        op_of[node_id] = op
        names.append(node.text("name") if "name" in node else f"node{node_id}")
        backward = "isBackwardNode" in node and node.flag("isBackwardNode")
        kinds.append("backward" if backward else "forward")
        supported = node.flag("supportedOnFpga")
        gpu.append(node.cost("fpgaLatency") * _SECONDS_PER_UNIT if supported else _INFINITE)
        cpu.append(node.cost("cpuLatency") * _SECONDS_PER_UNIT)
        memory.append(node.cost("size"))
        classes.append(
            None if node.values.get("colorClass") is None else node.integer("colorClass")
        )
    src, dst, transfer = _edges(document, op_of)
    return Graph.build(
        len(names),
        src,
        dst,
        name=name,
        source=where,
        param_bytes=memory,
        names=names,
        kinds=kinds,
        colocation=_groups(classes),
        transfer_s=transfer,
        class_compute_s={"gpu": gpu, "cpu": cpu},
        machine=machine,
    )


def _edges(document: Fields, op_of: dict[int, int]) -> tuple[list[int], list[int], FloatArray]:
    src: list[int] = []
    dst: list[int] = []
    transfer = np.zeros(len(op_of))
    for edge in document.records("edges"):
        for key, ends in (("sourceId", src), ("destId", dst)):
            node_id = edge.integer(key)
            if node_id not in op_of:
                edge.fail(key, f"is {shown_value(node_id)}, but no node has that id")
            ends.append(op_of[node_id])
        cost = edge.cost("cost") * _SECONDS_PER_UNIT
        transfer[src[-1]] = max(transfer[src[-1]], cost)
    return src, dst, transfer


def _groups(classes: list[int | None]) -> list[int]:
    """Return the group of each node: shared classes, numbered from 0 as they appear, or -1."""
    members = Counter(c for c in classes if c is not None)
    numbers: dict[int, int] = {}
    return [
        -1 if c is None or members[c] == 1 else numbers.setdefault(c, len(numbers)) for c in classes
    ]
