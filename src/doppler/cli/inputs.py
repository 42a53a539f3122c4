"""What commands read: graphs from files or workloads, problems, placements; and where they write.

Every check here comes before the work, so that a mistake costs no time and writes nothing.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from doppler.errors import DopplerError, GraphError, PlacementError
from doppler.files import STDIN, STDOUT, check_writable

if TYPE_CHECKING:
    from doppler.graph import Graph
    from doppler.placement import Placement
    from doppler.problem import Problem

WORKLOAD = "workload:"
# What ``-`` means, which is a name like any other to the library.
_DASH = "-"
CHAMPION = "champion"


def stdin(source: str | None) -> str | None:
    """Read ``-`` among the inputs of a command as stdin."""
    return STDIN if source == _DASH else source


def stdin_among(sources: list[str] | None) -> list[str]:
    """Read ``-`` among several inputs as stdin."""
    return [STDIN if source == _DASH else source for source in sources or ()]


def stdout(path: Path | None) -> Path | None:
    """Read ``-`` among the outputs of a command as stdout."""
    return Path(STDOUT) if path == Path(_DASH) else path


def read_graph(source: str) -> Graph:
    """Load a graph file, or generate ``workload:NAME?size=value&tiles=count``.

    ``tiles.DIMENSION=count`` sets the tiles of one dimension.

    Raises
    ------
    GraphError, UnknownNameError
        If the file or the workload's description is at fault.
    """
    from doppler.graph.formats import load_graph

    if not source.startswith(WORKLOAD):
        return load_graph(source)
    from doppler.graph import workloads

    name, _, query = source.removeprefix(WORKLOAD).partition("?")
    return workloads.make(name, **_sizes(source, query))


def _sizes(source: str, query: str) -> dict[str, Any]:
    hint = "write it as workload:llama_layer?layers=2&tiles=8"
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise GraphError(f"{source}: {query!r} is not a list of key=value; {hint}") from None
    sizes: dict[str, Any] = {}
    tiles: dict[str, Any] = {}
    for key, text in pairs:
        name, dot, dimension = key.partition(".")
        into, entry = (tiles, dimension) if dot and name == "tiles" else (sizes, key)
        if entry in into:
            raise GraphError(f"{source}: {key} is given twice; {hint}")
        try:
            into[entry] = json.loads(text)
        except ValueError:
            raise GraphError(f"{source}: {key} is {text!r}, must be a number; {hint}") from None
    if tiles and "tiles" in sizes:
        raise GraphError(f"{source}: give tiles, or tiles.DIMENSION, not both; {hint}")
    return {**sizes, "tiles": tiles} if tiles else sizes


def read_problem(graph: str, cluster: str | None) -> Problem:
    """Load a graph on a cluster; without one, on the machine that the graph file names.

    Raises
    ------
    DopplerError
        If either is at fault, or no cluster is known.
    """
    from doppler.cluster import Cluster
    from doppler.problem import Problem

    machine = None if cluster is None else Cluster.load(cluster)
    loaded = read_graph(graph)
    if machine is None and loaded.machine is None:
        raise GraphError(f"{graph}: the graph file names no machine; give one with --cluster")
    return Problem(loaded, machine)


def read_placement(path: str, graph: Graph) -> Placement:
    """Load a placement that was made for a graph.

    Raises
    ------
    PlacementError
        If the file is at fault, or says that it is for another graph.
    """
    from doppler.placement import Placement

    placement = Placement.load(path)
    check_placement(placement, graph, path)
    return placement


def check_placement(placement: Placement, graph: Graph, path: str) -> None:
    """Raise if a placement does not suit a graph.

    Raises
    ------
    PlacementError
        If it says that it is for another one.
    """
    from doppler.graph.fingerprint import fingerprint

    if placement.devices.size != graph.n_ops:
        raise PlacementError(
            f"{path}: places {placement.devices.size} ops, but graph {graph.name!r} has "
            f"{graph.n_ops}; give the graph that it was made for"
        )
    known = placement.info.get("graph_fingerprint")
    if known is not None and known != fingerprint(graph):
        raise PlacementError(
            f"{path}: was made for another graph ({placement.info.get('graph')!r}) than "
            f"{graph.name!r}; give that one, or place this one"
        )


def find_policy(policy: str) -> str | Path:
    """Turn ``champion`` into the policy file of the champion of ``models/registry``.

    Any other name is left to whoever loads the policy.

    Raises
    ------
    RegistryError
        If there is no champion, or its file is damaged.
    """
    if policy != CHAMPION:
        return policy
    from doppler.registry import POLICY, Registry

    return Registry().require_champion().path(POLICY)


def check_output(path: Path | None, *inputs: str | None, json: bool = False) -> bool:
    """Raise if a file cannot be written, before the work that would fill it.

    Parameters
    ----------
    path : pathlib.Path, optional
        The file to write.
    *inputs : str or None
        What is read, which would be lost.
    json : bool
        Whether a JSON object goes to stdout.

    Returns
    -------
    bool
        Whether the file is stdout, on which then nothing else belongs.

    Raises
    ------
    DopplerError
        If the path cannot be written, or is one of the inputs.
    """
    if path is None:
        return False
    if json and str(path) == STDOUT:
        raise DopplerError("--json: stdout is for the result; name a file for it, or leave it out")
    check_writable(path)
    if any(_same(path, source) for source in inputs if source is not None):
        raise DopplerError(
            f"{path}: cannot be written (it is one of the files to read); choose another path"
        )
    return str(path) == STDOUT


def _same(path: Path, source: str | Path) -> bool:
    # What is no path at all is for whoever reads it to tell.
    return os.path.isfile(path) and os.path.isfile(source) and os.path.samefile(path, source)
