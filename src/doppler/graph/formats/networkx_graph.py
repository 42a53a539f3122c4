"""Graphs from networkx and to networkx."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.checks import check_type
from doppler.errors import GraphError
from doppler.graph.graph import Graph, Machine
from doppler.graph.spec import OpSpec, TensorSpec, Tile
from doppler.messages import shown, shown_value

if TYPE_CHECKING:
    import networkx as nx

_COSTS = {
    "flops": "flops",
    "output_bytes": "output_bytes",
    "param_bytes": "param_bytes",
    "bytes_read": "bytes_read",
}
_EXPLICIT = {"compute": "compute_s", "transfer": "transfer_s"}
_INTEGERS = {"shard": ("shards", 0), "pinned": ("pinned", -1), "colocation": ("colocation", -1)}
_REQUIRED_OF_ALL = (*_EXPLICIT, "class_compute", "spec")


def to_networkx(graph: Graph) -> nx.DiGraph[Any]:
    """Return the graph as a networkx ``DiGraph`` whose nodes are op ids, in order.

    Node attributes are ``name``, ``kind``, ``meta_op``, ``shard``, ``flops``, ``output_bytes``,
    ``param_bytes``, ``bytes_read`` (bytes), ``pinned``, ``colocation``, and where the graph has
    them ``tile`` (tuple of coordinates), ``compute`` and ``transfer`` (seconds), ``class_compute``
    (seconds by device class), ``spec`` (:class:`OpSpec`) and ``output`` (:class:`Tile`). The
    attributes of the graph itself are ``name``, ``tensors`` and ``machine``.
    """
    check_type(graph, Graph, "graph", GraphError)
    import networkx as nx

    nodes: dict[str, list[Any]] = {
        "name": list(graph.names),
        "kind": list(graph.kinds),
        "meta_op": list(graph.meta_ops),
    }
    for attribute, (column, _) in _INTEGERS.items():
        nodes[attribute] = getattr(graph, column).tolist()
    for attribute, column in (_COSTS | _EXPLICIT).items():
        if getattr(graph, column) is not None:
            nodes[attribute] = getattr(graph, column).tolist()
    if graph.tiles.shape[1]:
        nodes["tile"] = graph.tile_rows()
    if graph.class_compute_s:
        nodes["class_compute"] = [
            {name: float(seconds[op]) for name, seconds in graph.class_compute_s.items()}
            for op in range(graph.n_ops)
        ]
    if graph.specs is not None:
        nodes["spec"] = list(graph.specs)
    result: nx.DiGraph[Any] = nx.DiGraph(
        name=graph.name, tensors=dict(graph.tensors), machine=graph.machine
    )
    for op, values in enumerate(zip(*nodes.values(), strict=True)):
        result.add_node(op, **dict(zip(nodes, values, strict=True)))
    for op, tile in graph.outputs.items():
        result.nodes[op]["output"] = tile
    result.add_edges_from(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    return result


def from_networkx(graph: nx.DiGraph[Any], name: str | None = None) -> Graph:
    """Make a graph of a networkx ``DiGraph`` (or ``MultiDiGraph``: parallel edges are merged).

    Ops are numbered in the order of the nodes, which may be of any type. The node attributes that
    :func:`to_networkx` writes are read, others ignored. ``compute``, ``transfer``,
    ``class_compute`` and ``spec`` must be on every node or on none; any other may be left out. An
    integer among the inputs of a ``spec`` is a node of ``graph``.

    Parameters
    ----------
    graph : networkx.DiGraph
        The graph.
    name : str, optional
        Its name; the graph's own attribute ``name`` if None.

    Raises
    ------
    GraphError
        If the graph is undirected, no node has a cost, an attribute is of a wrong type or on some
        nodes only, or :meth:`Graph.build` refuses the graph.
    """
    if not (hasattr(graph, "nodes") and hasattr(graph, "edges")):
        raise GraphError(f"graph is {shown_value(graph)}, must be a DiGraph of networkx")
    label = name if name is not None else str(graph.graph.get("name") or "networkx graph")
    if not graph.is_directed():
        raise GraphError(
            f"{label}: the networkx graph is undirected; a dataflow graph is a DiGraph"
        )
    op_of = {node: op for op, node in enumerate(graph.nodes)}
    rows: list[dict[str, Any]] = [dict(values) for _, values in graph.nodes(data=True)]
    for attribute in _REQUIRED_OF_ALL:
        missing = [node for node, row in zip(op_of, rows, strict=True) if attribute not in row]
        if missing and len(missing) < len(rows):
            raise GraphError(
                f"{label}: node {shown_value(missing[0])} lacks the attribute {attribute!r}, "
                "which other nodes have; give it to all nodes or to none"
            )
    first = rows[0] if rows else {}
    columns: dict[str, Any] = {}
    for attribute, column in _COSTS.items():
        columns[column] = _numbers(rows, attribute, 0.0, op_of, label)
    for attribute, column in _EXPLICIT.items():
        if attribute in first:
            columns[column] = _numbers(rows, attribute, 0.0, op_of, label)
    for attribute, (column, default) in _INTEGERS.items():
        columns[column] = _numbers(rows, attribute, default, op_of, label)
    if any("tile" in row for row in rows):
        columns["tiles"] = [row.get("tile", ()) for row in rows]
    if "class_compute" in first:
        columns["class_compute_s"] = _class_seconds(rows, op_of, label)
    if "spec" in first:
        columns["specs"] = _specs(rows, op_of, label)
    machine = graph.graph.get("machine")
    if machine is not None and not isinstance(machine, Machine):
        raise GraphError(f"{label}: the attribute 'machine' must be a doppler Machine")
    tensors = graph.graph.get("tensors") or {}
    if not isinstance(tensors, Mapping) or not all(
        isinstance(tensor, TensorSpec) for tensor in tensors.values()
    ):
        raise GraphError(f"{label}: the attribute 'tensors' must map names to doppler TensorSpecs")
    names = [str(row.get("name", node)) for node, row in zip(op_of, rows, strict=True)]
    outputs = {op: row["output"] for op, row in enumerate(rows) if "output" in row}
    if not all(isinstance(tile, Tile) for tile in outputs.values()):
        raise GraphError(f"{label}: the attribute 'output' must be a doppler Tile")
    built = Graph.build(
        len(rows),
        [op_of[u] for u, _ in graph.edges()],
        [op_of[v] for _, v in graph.edges()],
        name=label,
        names=names,
        kinds=[str(row.get("kind", "op")) for row in rows],
        meta_ops=[str(row.get("meta_op", own)) for row, own in zip(rows, names, strict=True)],
        tensors=tensors,
        outputs=outputs,
        machine=machine,
        **columns,
    )
    known = (*_COSTS, *_EXPLICIT, "class_compute")
    if not any(attribute in row for row in rows for attribute in known):
        found = sorted({str(attribute) for row in rows for attribute in row})
        raise GraphError(
            f"{label}: no node has a cost; what is read is {', '.join(known)}, and found are only "
            f"{shown(', '.join(found)) or 'nodes without attributes'}"
        )
    return built


def _numbers(
    rows: list[dict[str, Any]], attribute: str, default: float, op_of: dict[Any, int], label: str
) -> list[Any]:
    values = [row.get(attribute, default) for row in rows]
    for node, value in zip(op_of, values, strict=True):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise GraphError(
                f"{label}: node {shown_value(node)}: {attribute} must be a number, "
                f"not {shown_value(value)}"
            )
    return values


def _class_seconds(
    rows: list[dict[str, Any]], op_of: dict[Any, int], label: str
) -> dict[str, list[Any]]:
    classes = rows[0]["class_compute"]
    for node, row in zip(op_of, rows, strict=True):
        entry = row["class_compute"]
        if not isinstance(entry, dict) or entry.keys() != classes.keys():
            raise GraphError(
                f"{label}: node {shown_value(node)}: class_compute must be a dict of seconds with "
                "the same device classes on every node"
            )
    return {
        name: _numbers([row["class_compute"] for row in rows], name, 0.0, op_of, label)
        for name in classes
    }


def _specs(rows: list[dict[str, Any]], op_of: dict[Any, int], label: str) -> list[OpSpec]:
    specs = []
    for node, row in zip(op_of, rows, strict=True):
        spec = row["spec"]
        if not isinstance(spec, OpSpec):
            raise GraphError(f"{label}: node {shown_value(node)}: spec must be a doppler OpSpec")
        inputs: list[int | Tile] = []
        for value in spec.inputs:
            if not isinstance(value, Tile) and value not in op_of:
                raise GraphError(
                    f"{label}: node {shown_value(node)} ({shown(spec.function)}): its spec reads "
                    f"node {shown_value(value)}, which is missing"
                )
            inputs.append(value if isinstance(value, Tile) else op_of[value])
        specs.append(replace(spec, inputs=tuple(inputs)))
    return specs
