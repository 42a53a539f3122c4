"""The placements of a version: each of another graph, known by its fingerprint."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from doppler.errors import RegistryError
from doppler.graph import Graph
from doppler.graph.fingerprint import fingerprint
from doppler.placement import Placement

_PLACEMENT = re.compile(r"placement(-.*)?\.json")


def is_placement(name: str) -> bool:
    """Whether a file of a version is a placement, by its name."""
    return _PLACEMENT.fullmatch(name) is not None


def read_placements(files: Mapping[str, Path]) -> dict[str, tuple[str, Placement]]:
    """Read every placement among the files of a version.

    Parameters
    ----------
    files : mapping of str to pathlib.Path
        By their names in the version: ``placement.json`` or ``placement-NAME.json``.

    Returns
    -------
    dict of str to (str, Placement)
        By the fingerprint of its graph: the name of the file, and what it holds.

    Raises
    ------
    RegistryError
        If one does not say which graph it is of, or two are of the same graph.
    PlacementError
        If one is damaged.
    """
    found: dict[str, tuple[str, Placement]] = {}
    for name, path in sorted(files.items()):
        if not is_placement(name):
            continue
        placement = Placement.load(path)
        graph = str(placement.info.get("graph_fingerprint", ""))
        if not graph:
            raise RegistryError(
                f"{path}: does not say which graph it is of; give one that 'doppler place' made"
            )
        if graph in found:
            raise RegistryError(
                f"{path}: is of the same graph as {found[graph][0]}; keep one of them"
            )
        found[graph] = name, placement
    return found


def placement_name(graph: Graph, taken: Collection[str] = ()) -> str:
    """Name the file for the placement of a graph in a version."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", graph.name)[:80]
    name = f"placement-{plain}.json"
    return f"placement-{plain}-{fingerprint(graph)[:8]}.json" if name in taken else name
