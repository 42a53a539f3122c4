"""Small graphs whose ops are calls of torch's operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from doppler import Graph
from doppler.graph import OpSpec, TensorSpec, Tile
from doppler.graph.dtypes import WIDTHS


def call(op: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"op": f"aten.{op}", "args": args, "kwargs": kwargs}


def ref(value: int, item: int = -1) -> dict[str, int]:
    return {"ref": value} if item < 0 else {"ref": value, "item": item}


def result(value: int, shape: Sequence[int], dtype: str = "float32", item: int = -1) -> Any:
    return {**ref(value, item), "shape": tuple(shape), "dtype": dtype}


def calls(*parts: Any) -> dict[str, Any]:
    """Attributes of an op: its calls, then its results."""
    return {
        "calls": tuple(part for part in parts if "op" in part),
        "results": tuple(part for part in parts if "op" not in part),
    }


def whole(name: str, shape: Sequence[int]) -> Tile:
    return Tile(name, tuple((0, extent) for extent in shape))


def aten_graph(
    ops: Sequence[tuple[Sequence[int | Tile], Mapping[str, Any]]],
    tensors: Mapping[str, TensorSpec],
    **extra: Any,
) -> Graph:
    """Make a graph of inputs and attributes; its last op is the result ``y``."""
    specs, edges, sizes = [], set(), []
    for op, (inputs, attributes) in enumerate(ops):
        results = attributes["results"]
        specs.append(OpSpec("aten", tuple(inputs), tuple(results[0]["shape"]), attributes))
        edges |= {(source, op) for source in inputs if isinstance(source, int)}
        sizes.append(sum(math.prod(r["shape"]) * WIDTHS[r["dtype"]] for r in results))
    shape = specs[-1].shape
    return Graph.build(
        len(ops),
        [source for source, _ in edges],
        [target for _, target in edges],
        name="captured",
        specs=specs,
        tensors=tensors,
        outputs={len(ops) - 1: whole("y", shape)},
        output_bytes=sizes,
        **extra,
    )
