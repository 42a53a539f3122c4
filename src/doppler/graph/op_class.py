"""Classes of ops that take equally long: the key under which a measured time is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from doppler.graph.graph import Graph
from doppler.graph.spec import OpSpec, Tile

Shape = tuple[int, ...]

_known: WeakKeyDictionary[Graph, tuple[str, ...]] = WeakKeyDictionary()


def op_classes(graph: Graph) -> tuple[str, ...]:
    """Name the class of every op: what it computes, on inputs of which shapes.

    Ops of one class do the same work on other data. A class reads
    ``einsum(64x32,32x16)->64x16 equation="ab,bc->ac"``: the function, the shapes of its inputs in
    their order, the shape of its output, and its attributes by name, as JSON. It holds neither
    names nor numbers of ops, so that the same work has the same class in every graph.

    Parameters
    ----------
    graph : Graph

    Returns
    -------
    tuple of str, length ops
        ``""`` for every op of a graph without executable specs. Kept with the graph: a second
        call costs nothing. O(ops + inputs).
    """
    found = _known.get(graph)
    if found is None:
        found = _known[graph] = _classes(graph)
    return found


def op_class(spec: OpSpec, shapes: Sequence[Shape]) -> str:
    """Name the class of one op.

    Parameters
    ----------
    spec : OpSpec
    shapes : sequence of tuple of int
        Of each of ``spec.inputs``.

    Raises
    ------
    TypeError, ValueError
        If an attribute is nothing that JSON expresses.
    """
    return (
        f"{spec.function}({','.join(map(_extents, shapes))})->{_extents(spec.shape)}"
        f"{_described(spec.attributes)}"
    )


def input_shapes(graph: Graph, op: int) -> tuple[Shape, ...]:
    """Return the shapes of what an op with a spec reads, in the order of its inputs."""
    assert graph.specs is not None
    specs = graph.specs
    return tuple(
        _tile_shape(source) if isinstance(source, Tile) else specs[source].shape
        for source in specs[op].inputs
    )


def _classes(graph: Graph) -> tuple[str, ...]:
    if graph.specs is None:
        return ("",) * graph.n_ops
    # The shards of a meta-op share the mapping of their attributes; each is written once.
    written: dict[int, str] = {}
    classes = []
    # One object for each distinct class, however many ops have it.
    distinct: dict[str, str] = {}
    for op, spec in enumerate(graph.specs):
        key = id(spec.attributes)
        if key not in written:
            written[key] = _described(spec.attributes)
        inputs = ",".join(map(_extents, input_shapes(graph, op)))
        name = f"{spec.function}({inputs})->{_extents(spec.shape)}{written[key]}"
        classes.append(distinct.setdefault(name, name))
    return tuple(classes)


@lru_cache(maxsize=4096)
def _extents(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _tile_shape(tile: Tile) -> Shape:
    return tuple(high - low for low, high in tile.slices)


def _described(attributes: Mapping[str, Any]) -> str:
    return "".join(
        f" {name}={json.dumps(attributes[name], separators=(',', ':'), sort_keys=True)}"
        for name in sorted(attributes)
    )
