"""Where the refinement of a placed model began, so that a later one can go on with it."""

from __future__ import annotations

from pathlib import Path

from doppler.checks import check_path
from doppler.cluster import Cluster, save_cluster
from doppler.graph import Graph
from doppler.placement import Placement
from doppler.problem import Problem

CLUSTER, PLACEMENT = "start-cluster.yaml", "start-placement.json"


def refinement_start(
    directory: str | Path | None, graph: Graph, cluster: Cluster, placement: Placement
) -> tuple[Problem, Placement]:
    """Return the problem and the champion that a refinement begins with, or began with.

    What it learns is about these two; the cluster as it was measured later on is another.

    Parameters
    ----------
    directory : path-like, optional
        Of the refinement. The two are written to it if it holds none.
    graph, cluster, placement
        Of the placed model now.

    Raises
    ------
    DopplerError
        If a file cannot be written or read, or is of another graph.
    """
    if directory is None:
        return Problem(graph, cluster), placement
    path = check_path(directory, "directory")
    if not (path / PLACEMENT).exists():
        save_cluster(cluster, path / CLUSTER)
        # Last: where it is, both are.
        placement.save(path / PLACEMENT)
    start = Placement.load(path / PLACEMENT)
    began = Problem(graph, Cluster.load(path / CLUSTER))
    start.validate_on(graph, began.n_devices)
    return began, start
