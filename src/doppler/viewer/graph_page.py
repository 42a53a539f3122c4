"""A graph as one HTML file: layers by depth, to move, zoom, search and color."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from doppler.errors import PlacementError
from doppler.graph import Graph
from doppler.placement import Placement
from doppler.viewer.layout import layered_layout
from doppler.viewer.page import embed_json, numbers, render
from doppler.viewer.palette import Categories, categorize
from doppler.viewer.units import count_of


def render_graph(
    graph: Graph,
    placement: Placement | None = None,
    *,
    device_names: Sequence[str] | None = None,
    title: str | None = None,
) -> str:
    """Draw a graph as a self-contained page.

    Parameters
    ----------
    graph : Graph
        From one op to some tens of thousands; the page grows by about 100 bytes an op and 12 an
        edge.
    placement : Placement, optional
        Adds the device to every op, and colors by it first.
    device_names : sequence of str, optional
        Names of the devices of the placement; by default ``device 0`` and so on.
    title : str, optional
        Heading of the page; by default the graph's name.

    Returns
    -------
    str
        HTML that needs no other file and no network.

    Raises
    ------
    PlacementError
        If the placement has another number of ops, or a device without a name.
    """
    from markupsafe import Markup

    x, y = layered_layout(graph)
    groups = {"kind": categorize(graph.kinds), "meta": categorize(graph.meta_ops)}
    choices = [("kind", "kind"), ("meta", "meta-op")]
    if placement is not None:
        groups["device"] = _devices(graph, placement, device_names)
        choices.insert(0, ("device", "device"))
    sizes = (
        count_of(graph.n_ops, "op"),
        count_of(graph.n_edges, "edge"),
        count_of(int(graph.depth.max()) + 1, "level"),
    )
    data = {
        "first": choices[0][0],
        "names": graph.names,
        "shards": graph.shards.tolist(),
        "depth": graph.depth.tolist(),
        "x": numbers(x, 6),
        "y": numbers(np.round(y, 3), 7),
        "size": [float(x.max()), float(y.max())],
        "src": graph.src.tolist(),
        "dst": graph.dst.tolist(),
        "groups": {key: categories.to_json() for key, categories in groups.items()},
        "costs": _costs(graph),
    }
    return render(
        "doppler.viewer",
        "graph.html",
        title=title if title is not None else graph.name,
        note=", ".join(sizes),
        choices=choices,
        data=Markup(embed_json(data)),
    )


def _devices(graph: Graph, placement: Placement, device_names: Sequence[str] | None) -> Categories:
    if placement.devices.size != graph.n_ops:
        raise PlacementError(
            f"placement: {placement.devices.size} ops, but graph {graph.name!r} has "
            f"{graph.n_ops}; give the graph that it was made for"
        )
    count = int(placement.devices.max()) + 1
    names = list(device_names) if device_names else [f"device {d}" for d in range(count)]
    if len(names) < count:
        raise PlacementError(
            f"placement: uses device {count - 1}, but there are {len(names)} devices; "
            "give the cluster that it was made for"
        )
    return categorize([names[device] for device in placement.devices], order=names)


def _costs(graph: Graph) -> list[dict[str, Any]]:
    """Every cost that some op has, named as in a tooltip."""
    columns = [
        ("flops", "FLOP", graph.flops),
        ("output", "B", graph.output_bytes),
        ("parameters", "B", graph.param_bytes),
        ("bytes read", "B", graph.bytes_read),
        ("compute", "s", graph.compute_s),
        ("transfer", "s", graph.transfer_s),
    ]
    columns += [(f"compute ({name})", "s", s) for name, s in graph.class_compute_s.items()]
    return [
        {"name": name, "unit": unit, "values": numbers(values, 5)}
        for name, unit, values in columns
        if values is not None and np.any(values)
    ]
