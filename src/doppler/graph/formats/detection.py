"""Load a graph file of any supported format, and save one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from doppler.checks import check_name, check_type
from doppler.documents.json_text import parse_json
from doppler.errors import GraphError
from doppler.files import name_of, read_text, write_atomic
from doppler.graph.formats import dnn_partitioning, doppler_json, doppler_text
from doppler.graph.graph import Graph
from doppler.messages import shown_value

_WRITERS: dict[str, Callable[[Graph], str]] = {
    "doppler": doppler_json.write,
    "text": doppler_text.write,
}


def load_graph(path: str | os.PathLike[str]) -> Graph:
    """Load a graph file; its content, never its extension, tells the format.

    Parameters
    ----------
    path : path-like
        A file of Doppler's JSON (:mod:`~doppler.graph.formats.doppler_json`), of the official
        DOPPLER text (:mod:`~doppler.graph.formats.doppler_text`), or of the JSON of
        msr-fiddle/dnn-partitioning (:mod:`~doppler.graph.formats.dnn_partitioning`).

    Returns
    -------
    Graph
        With ``source`` set to ``path``.

    Raises
    ------
    GraphError
        If the file cannot be read, is of no known format, or breaks a rule of its format or of
        :class:`Graph`. One line: the file, the line number or key or op, and the rule.
    """
    return parse_graph(read_text(path, "graph", GraphError), str(path))


def parse_graph(text: str, where: str) -> Graph:
    """Make a graph of the text of a file; see :func:`load_graph`."""
    if not text.strip():
        raise GraphError(f"{where}: the file is empty; a graph file holds at least one op")
    name = name_of(where)
    if text.lstrip()[0] in "{[":
        document = parse_json(text, where, "graph", GraphError)
        if not isinstance(document, dict):
            raise GraphError(f"{where}: the JSON must be an object, not {shown_value(document)}")
        if doppler_json.recognizes(document):
            return doppler_json.read(document, where)
        if "directed" in document or "links" in document:
            raise GraphError(
                f"{where}: this is networkx's node-link JSON; make a graph of it with "
                "networkx.node_link_graph and doppler.graph.formats.from_networkx, and save that"
            )
        if dnn_partitioning.recognizes(document):
            return dnn_partitioning.read(document, name, where)
        raise GraphError(
            f"{where}: this JSON is not a graph: it has neither the key 'format' of Doppler's "
            "files nor the keys 'nodes' and 'edges' of dnn-partitioning's"
        )
    if doppler_text.recognizes(text):
        return doppler_text.read(text, name, where)
    raise GraphError(
        f"{where}: line 1: not a graph file: neither JSON nor the node count that starts the "
        "DOPPLER text format"
    )


def save_graph(graph: Graph, path: str | os.PathLike[str], format: str = "doppler") -> Path:
    """Save a graph; the file appears complete or not at all.

    Parameters
    ----------
    graph : Graph
        The graph.
    path : path-like
        The file. Its extension does not choose the format.
    format : str
        ``"doppler"``, which holds everything, or ``"text"``, the official DOPPLER text, which
        holds explicit costs and kinds only.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    GraphError
        If the format cannot hold the graph.
    DopplerError
        If the format is unknown or the file cannot be written.
    """
    writer = _WRITERS[check_name(format, "graph format", _WRITERS)]
    return write_atomic(path, writer(check_type(graph, Graph, "graph", GraphError)))
