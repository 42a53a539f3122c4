"""The problems of cells: a generated graph or a file, on a cluster, as plain JSON and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from doppler.cases import Case, Grid, cases
from doppler.cluster import Cluster
from doppler.errors import UnknownNameError
from doppler.graph.formats import load_graph
from doppler.graph.workloads.settings import Graphs, WorkloadSettings
from doppler.problem import Problem

#: The suite of the paper's own graphs.
PUBLISHED = "published"
#: Where they are looked for: they are not ours to hand on.
PUBLISHED_FOLDER = "../shared/graphs"


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


def suite_cases(
    suites: Mapping[str, list[Grid]], graphs: Graphs, files: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """List the cases of some suites; those of published graphs only where their folder is there.

    Yields
    ------
    str
        The suite.
    dict
        As of :func:`given_case`.
    """
    for suite, grids in suites.items():
        if suite == PUBLISHED and not Path(files).is_dir():
            continue
        for case in cases(grids):
            yield suite, given_case(case, graphs, files if suite == PUBLISHED else "")
