"""Placements by whole modules, in the form that accelerate takes."""

from __future__ import annotations

from collections.abc import Sequence

from doppler.graph import Graph, Tile
from doppler.placement import Placement


def device_map(graph: Graph, placement: Placement, devices: Sequence[str]) -> dict[str, str] | None:
    """Give each module that owns parameters its device, if it has but one.

    Parameters
    ----------
    graph : Graph
        A captured model: its tensors have the names that the model gives them.
    placement : Placement
    devices : sequence of str
        Name of each device.

    Returns
    -------
    dict of str to str, or None
        Paths of modules, the shortest that lie on one device as a whole. None where a module's own
        parameters are read on several devices.
    """
    homes: dict[str, set[int]] = {}
    for op, spec in enumerate(graph.specs or ()):
        for source in spec.inputs:
            if isinstance(source, Tile) and graph.tensors[source.tensor].role == "parameter":
                module = source.tensor.rpartition(".")[0]
                homes.setdefault(module, set()).add(int(placement.devices[op]))
    if not homes or any(len(found) > 1 for found in homes.values()):
        return None
    home = {module: found.pop() for module, found in homes.items()}
    found: dict[str, str] = {}

    def visit(path: str) -> None:
        inside = {
            m: d for m, d in home.items() if m == path or not path or m.startswith(f"{path}.")
        }
        if len(set(inside.values())) == 1:
            found[path] = devices[next(iter(inside.values()))]
            return
        depth = len(path.split(".")) if path else 0
        for child in dict.fromkeys(
            ".".join(module.split(".")[: depth + 1]) for module in inside if module != path
        ):
            visit(child)
        if path in inside:
            found[path] = devices[inside[path]]

    visit("")
    return found
