"""Placements by whole modules, in the form that accelerate takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from doppler.graph import Graph, Tile
from doppler.placement import Placement

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


def device_map(
    graph: Graph, placement: Placement, devices: Sequence[str], model: Module
) -> dict[str, str] | None:
    """Give each module that owns parameters or buffers its device, if it has but one.

    Parameters
    ----------
    graph : Graph
        A captured model: its tensors have the names that the model gives them.
    placement : Placement
    devices : sequence of str
        Name of each device.
    model : torch.nn.Module
        That was captured.

    Returns
    -------
    dict of str to str, or None
        Paths of modules, the shortest that lie on one device as a whole; every parameter and buffer
        is in one of them. None where a module's own parameters are read on several devices.
    """
    readers: dict[str, set[int]] = {}
    for op, spec in enumerate(graph.specs or ()):
        for source in spec.inputs:
            if isinstance(source, Tile):
                readers.setdefault(source.tensor, set()).add(int(placement.devices[op]))
    # One that is tied has its readers under the first of its names.
    first = {id(tensor): name for name, tensor in _tensors(model)[::-1]}
    home: dict[str, int] = {}
    rest: dict[str, set[int]] = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in _tensors(model):
        module, found = name.rpartition(".")[0], readers.get(first[id(tensor)], set())
        if name not in parameters or not found:
            rest.setdefault(module, set()).update(found)
        elif len(found) > 1 or home.setdefault(module, min(found)) not in found:
            return None
    if not home:
        return None
    for module, read in rest.items():
        home.setdefault(module, min(read or home.values()))
    placed: dict[str, str] = {}

    def visit(path: str) -> None:
        inside = {
            m: d for m, d in home.items() if m == path or not path or m.startswith(f"{path}.")
        }
        if len(set(inside.values())) == 1:
            placed[path] = devices[next(iter(inside.values()))]
            return
        depth = len(path.split(".")) if path else 0
        for child in dict.fromkeys(
            ".".join(module.split(".")[: depth + 1]) for module in inside if module != path
        ):
            visit(child)
        if path in inside:
            placed[path] = devices[inside[path]]

    visit("")
    return placed


def _tensors(model: Module) -> list[tuple[str, Tensor]]:
    return [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
