"""Graphs that use every field, and exact comparison of graphs."""

from dataclasses import fields
from typing import Any

import numpy as np

from doppler.graph import Graph, Machine, OpSpec, TensorSpec, Tile


def full_graph() -> Graph:
    """Four ops with a value in every field that a graph has."""
    tile = Tile("W", ((0, 2), (1, 4)))
    return Graph.build(
        4,
        [0, 0, 1, 2],
        [1, 2, 3, 3],
        name="full",
        flops=[1e9, 0.1, 3, 2.0**70],
        output_bytes=[8, 8, 8, 8],
        param_bytes=[0, 1, 2, 3],
        bytes_read=[1.5, 1, 2, 3],
        names=["a", "b\n", "c\u00e9", ""],
        kinds=["matmul", "add", "matmul", "matmul"],
        meta_ops=["m", "m", "n", "n"],
        shards=[0, 1, 0, 1],
        tiles=[[0, 2], [1, 0], [0], []],
        pinned=[-1, 0, -1, 3],
        colocation=[0, -1, 0, 7],
        compute_s=[0.1, 1 / 3, 5e-324, 1e300],
        transfer_s=[0, 1, 2, 0.7],
        class_compute_s={"gpu": [1, 2, np.inf, 4], "cpu": [0.1, 0.2, 0.3, 0.4]},
        specs=[
            OpSpec("einsum", (tile, Tile("x", ((0, 2),))), (3, 2), {"equation": "ij,i->j"}),
            OpSpec("scale", (0,), (3, 2), {"by": 0.1, "axes": (0, (1, 2)), "deep": {"on": None}}),
            OpSpec("scale", (0,), (3, 2), {"by": 0.1, "axes": (0, (1, 2)), "deep": {"on": None}}),
            OpSpec("add", (2, 1, tile), (3, 2)),
        ],
        tensors={
            "W": TensorSpec((2, 4), "parameter", {"kind": "constant", "value": 1.0}),
            "x": TensorSpec((2,)),
        },
        outputs={3: Tile("y", ((0, 3), (0, 2)))},
        machine=Machine(2, 1, 16e9),
    )


def assert_same(left: Graph, right: Graph) -> None:
    """Every field but the source is equal, to the bit and in type."""
    for field in fields(Graph):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if field.name == "source":
            continue
        assert type(a) is type(b), field.name
        if field.name == "class_compute_s":
            assert list(a) == list(b)
            for key in a:
                np.testing.assert_array_equal(a[key], b[key], strict=True)
        elif isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b, strict=True)
        else:
            assert a == b, field.name


def layer_document() -> dict[str, Any]:
    """A training graph in the JSON of dnn-partitioning: two forward and two backward nodes."""

    def node(name: str, number: int, color: int | None, **changes: Any) -> dict[str, Any]:
        values = {
            "name": name,
            "id": number,
            "supportedOnFpga": 1,
            "cpuLatency": 20.0,
            "fpgaLatency": 2.0,
            "isBackwardNode": 0,
            "size": 1024.0,
        }
        if color is not None:
            values["colorClass"] = color
        return values | changes

    return {
        "maxSizePerFPGA": 4096.0,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            node("embed", 7, 9, supportedOnFpga=False, fpgaLatency=0),
            node("loss", 3, 4),
            node("lossgrad", 12, 4, isBackwardNode=True),
            node("embedgrad", 5, None, isBackwardNode=1),
        ],
        "edges": [
            {"sourceId": 7, "destId": 3, "cost": 1.5, "size": 8.0},
            {"sourceId": 3, "destId": 12, "cost": 0.25, "size": 8.0},
            {"sourceId": 3, "destId": 5, "cost": 0.5, "size": 8.0},
            {"sourceId": 12, "destId": 5, "cost": 0.0, "size": 0.0},
        ],
    }


TEXT = """\
6
0, 4, 
0, 0, 1, 2, 
1, 2, 3, 3, 
10000000000,4
20000000000,5,matmul
0,0.5
1e9,7,add
"""  # noqa: W291
