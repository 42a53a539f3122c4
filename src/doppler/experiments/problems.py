"""The problems of cells: a generated graph or a file, on a cluster, as plain JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doppler.cases import Case
from doppler.cluster import Cluster
from doppler.errors import UnknownNameError
from doppler.graph.formats import load_graph
from doppler.graph.workloads.settings import Graphs, WorkloadSettings
from doppler.problem import Problem


def given_case(case: Case, graphs: Graphs, files: str = "") -> dict[str, Any]:
    """Say what a problem is made of, for ``Cell.given``.

    Parameters
    ----------
    case : Case
        Names a graph of ``graphs``, or a file of the folder ``files`` without its suffix ``.txt``.
    graphs : mapping of str to WorkloadSettings
    files : str
        A folder of graphs in the paper's own format.

    Returns
    -------
    dict
        ``graph`` and ``cluster``, the names; ``workload``, its settings, or ``file``, its path.
    """
    given: dict[str, Any] = {"graph": case.graph, "cluster": case.cluster}
    if case.graph in graphs:
        given["workload"] = graphs[case.graph].model_dump(mode="json")
        return given
    path = Path(files, f"{case.graph}.txt")
    if not files or not path.exists():
        raise UnknownNameError("graph", case.graph, graphs)
    return given | {"file": str(path)}


def problem_of(given: Mapping[str, Any], cluster: str | None = None) -> Problem:
    """Make the problem of a cell.

    Parameters
    ----------
    given : mapping
        As of :func:`given_case`.
    cluster : str, optional
        Another cluster than the cell's own.
    """
    if "file" in given:
        graph = load_graph(given["file"])
    else:
        graph = WorkloadSettings.model_validate(given["workload"]).build()
    return Problem(graph, Cluster.load(cluster or given["cluster"]))
