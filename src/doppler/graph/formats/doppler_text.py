"""The official DOPPLER text format.

Line 1 is the node count, line 2 the ids of input nodes (which are not part of the graph), lines 3
and 4 the sources and destinations of the edges; then one line per op, ``compute,transfer[,type]``.
There are as many ops as nodes less inputs, with ids from 0 in the order of their lines. Lists are
separated by commas and may end with one. Costs are unit-less: divided by 1e10 they are the seconds
that the code of DOPPLER (Yao et al., ICLR 2026) reports.
"""

from __future__ import annotations

import re
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from doppler.errors import GraphError
from doppler.graph.graph import Graph
from doppler.messages import shown, shown_value

UNITS_PER_SECOND = 1e10

_HEADER_LINES = 4
_UNTYPED = "op"
_WHOLE = re.compile(r"[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf|infinity)")


def recognizes(text: str) -> bool:
    """Return whether the first line is the node count."""
    return _WHOLE.match(text.split("\n", 1)[0].strip()) is not None


def read(text: str, name: str, where: str) -> Graph:
    """Make a graph of the text.

    Parameters
    ----------
    text : str
        Content of the file.
    name : str
        Name of the graph, which the format lacks.
    where : str
        The file, for messages.

    Returns
    -------
    Graph
        With ``compute_s`` and ``transfer_s`` in seconds, and the third column as ``kinds``.

    Raises
    ------
    GraphError
        Names the file, the line, the op and the rule.
    """
    lines = text.split("\n")
    while len(lines) > _HEADER_LINES and not lines[-1].strip():
        lines.pop()
    if len(lines) < _HEADER_LINES:
        raise GraphError(
            f"{where}: line {len(lines)}: the file ends here, but it needs a node count, input "
            "ids, edge sources, edge destinations and the ops"
        )
    count = _ids(lines[0], 1, where)
    if len(count) != 1:
        raise GraphError(f"{where}: line 1: must hold one number, the node count, not {len(count)}")
    total = count[0]
    inputs = _ids(lines[1], 2, where)
    src = _ids(lines[2], 3, where)
    dst = _ids(lines[3], 4, where)
    n_ops = len(lines) - _HEADER_LINES
    if n_ops != total - len(inputs):
        raise GraphError(
            f"{where}: line 1: {total} nodes less the {len(inputs)} inputs of line 2 are "
            f"{total - len(inputs)} ops, but {n_ops} op lines follow"
        )
    if len(src) != len(dst):
        raise GraphError(
            f"{where}: line 4: {len(dst)} edge destinations for the {len(src)} sources of line 3"
        )
    for number, ids, limit in ((2, inputs, total), (3, src, n_ops), (4, dst, n_ops)):
        missing = next((i for i in ids if i >= limit), None)
        if missing is not None:
            what = "input node" if number == 2 else "op"
            raise GraphError(
                f"{where}: line {number}: {what} {missing} is missing; ids end at {limit - 1}"
            )
    costs = np.empty((n_ops, 2))
    kinds = []
    for op, line in enumerate(lines[_HEADER_LINES:]):
        costs[op], kind = _op(line, op, where)
        kinds.append(kind)
    return Graph.build(
        n_ops,
        src,
        dst,
        name=name,
        source=where,
        kinds=kinds,
        compute_s=costs[:, 0] / UNITS_PER_SECOND,
        transfer_s=costs[:, 1] / UNITS_PER_SECOND,
    )


def write(graph: Graph) -> str:
    """Return the graph as text, without input nodes.

    Names, bytes and specs have no place in the format and are left out. Seconds come back exactly
    where they stem from whole units, else within one unit in the last place.

    Raises
    ------
    GraphError
        If the graph has no explicit costs, or constrains placement in a way that the format
        cannot say.
    """
    where = graph.source or graph.name
    if graph.compute_s is None or graph.transfer_s is None:
        _refuse(where, "modeled costs or costs by device class")
    if graph.class_compute_s:
        _refuse(where, "costs by device class")
    if (graph.pinned >= 0).any():
        _refuse(where, "pinned ops")
    if (graph.colocation >= 0).any():
        _refuse(where, "colocation groups")
    typed = any(kind != _UNTYPED for kind in graph.kinds)
    for op, kind in enumerate(graph.kinds):
        if typed and (kind != kind.strip() or not kind or re.search(r"[,\r\n]", kind)):
            _refuse(f"{where}: op {op} ({shown(graph.names[op])})", f"the kind {shown_value(kind)}")
    compute = _units(graph.compute_s)
    transfer = _units(graph.transfer_s)
    lines = [
        str(graph.n_ops),
        "",
        ", ".join(map(str, graph.src.tolist())),
        ", ".join(map(str, graph.dst.tolist())),
    ]
    for op, kind in enumerate(graph.kinds):
        lines.append(f"{compute[op]},{transfer[op]}" + (f",{kind}" if typed else ""))
    return "\n".join(lines) + "\n"


def _ids(line: str, number: int, where: str) -> list[int]:
    entries = [entry.strip() for entry in line.split(",")]
    if entries[-1] == "":
        entries.pop()
    for entry in entries:
        if not _WHOLE.fullmatch(entry):
            raise GraphError(
                f"{where}: line {number}: {shown_value(entry)} is not a whole number >= 0"
            )
    return [int(entry) for entry in entries]


def _op(line: str, op: int, where: str) -> tuple[tuple[float, float], str]:
    place = f"{where}: line {op + _HEADER_LINES + 1}: op {op}"
    entries = [entry.strip() for entry in line.split(",")]
    if len(entries) not in (2, 3):
        raise GraphError(
            f"{place}: expected 'compute,transfer' or 'compute,transfer,type', "
            f"found {shown_value(line.strip())}"
        )
    compute, transfer = (
        _cost(entry, what, place)
        for entry, what in zip(entries, ("compute", "transfer"), strict=False)
    )
    return (compute, transfer), (entries[2] if len(entries) == 3 and entries[2] else _UNTYPED)


def _cost(entry: str, what: str, place: str) -> float:
    if not _NUMBER.fullmatch(entry.lower()):
        raise GraphError(f"{place}: {what} cost {shown_value(entry)} is not a number")
    value = float(entry)
    if not 0 <= value < float("inf"):
        raise GraphError(f"{place}: {what} cost is {value}, must be a finite number >= 0")
    return value


def _units(seconds: npt.NDArray[np.float64]) -> list[str]:
    scaled = seconds * UNITS_PER_SECOND
    whole = np.rint(scaled)
    exact = (whole / UNITS_PER_SECOND == seconds) & (whole < 2.0**53)
    return [
        str(int(w)) if is_exact else repr(float(s))
        for w, s, is_exact in zip(whole, scaled, exact, strict=True)
    ]


def _refuse(where: str, what: str) -> NoReturn:
    raise GraphError(f"{where}: the text format cannot hold {what}; save it in format 'doppler'")
