"""Parameters that several ops read lie once on each device, wherever memory is counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler import Cluster, Graph, Placement, Problem, place, simulate, workloads
from doppler.errors import MemoryLimitError
from doppler.graph import OpSpec, TensorSpec, Tile
from doppler.graph.shared_tiles import shared_tiles
from doppler.methods import HEURISTICS

WIDTH = 1000
LAYER = 4.0 * WIDTH * WIDTH


def chains(layers: int, count: int) -> Graph:
    """Make chains of layers that share their weights, as sharding the batch does."""
    result = ({"ref": 2, "shape": (1, WIDTH), "dtype": "float32"},)
    call = ({"op": "aten.linear.default", "args": ({"ref": 0}, {"ref": 1})},)
    specs: list[OpSpec] = []
    edges: list[tuple[int, int]] = []
    metas: list[str] = []
    for chain in range(count):
        for layer in range(layers):
            weight = Tile(f"weight{layer}", ((0, WIDTH), (0, WIDTH)))
            given = Tile("x", ((chain, chain + 1), (0, WIDTH)))
            if layer:
                edges.append((len(specs) - 1, len(specs)))
            read = len(specs) - 1 if layer else given
            attributes = {"calls": call, "results": result}
            specs.append(OpSpec("aten", (read, weight), (1, WIDTH), attributes))
            metas.append(f"layer{layer}")
    first = 4.0 * WIDTH * np.array([layer == 0 for _ in range(count) for layer in range(layers)])
    return Graph.build(
        len(specs),
        [source for source, _ in edges],
        [target for _, target in edges],
        specs=specs,
        flops=[2.0 * WIDTH * WIDTH] * len(specs),
        output_bytes=[4.0 * WIDTH] * len(specs),
        param_bytes=LAYER + first,
        meta_ops=metas,
        shards=[chain for chain in range(count) for _ in range(layers)],
        tensors={
            "x": TensorSpec((count, WIDTH), dtype="float32"),
            **{
                f"weight{layer}": TensorSpec((WIDTH, WIDTH), "parameter", dtype="float32")
                for layer in range(layers)
            },
        },
    )


def test_what_is_shared_and_what_is_not() -> None:
    shared = shared_tiles(chains(layers=2, count=3))
    assert shared.sizes.tolist() == [LAYER, LAYER]
    assert np.diff(shared.pointers).tolist() == [1] * 6
    assert shared.tiles.tolist() == [0, 1] * 3
    assert shared.own.tolist() == [4.0 * WIDTH, 0] * 3
    assert shared.total == 2 * LAYER + 3 * 4 * WIDTH
    # One chain shares nothing, and generated workloads count every tile for every op.
    for graph in (chains(layers=2, count=1), workloads.ffnn()):
        alone = shared_tiles(graph)
        assert not alone.sizes.size
        np.testing.assert_array_equal(alone.own, graph.param_bytes)


@given(st.lists(st.integers(0, 2), min_size=12, max_size=12))
def test_a_device_holds_a_shared_tile_once(devices: list[int]) -> None:
    graph = chains(layers=3, count=4)
    problem = Problem(graph, Cluster.uniform(3))
    peak = simulate(problem, Placement(devices)).peak_memory
    for device in range(3):
        mine = [op for op in range(12) if devices[op] == device]
        layers = {op % 3 for op in mine}
        resident = LAYER * len(layers) + 4 * WIDTH * sum(op % 3 == 0 for op in mine)
        # Outputs and copies come on top, each a small row.
        assert resident <= peak[device] <= resident + 4 * WIDTH * 2 * 12


@pytest.mark.parametrize("method", [*HEURISTICS, "doppler"])
def test_every_method_sees_that_shared_tiles_fit(method: str) -> None:
    # Both devices together hold the weights of eight chains once, and neither holds all.
    problem = Problem(chains(layers=4, count=8), Cluster.uniform(2, memory=3.1 * LAYER))
    assert problem.may_overflow
    if method == "single_device":
        with pytest.raises(MemoryLimitError):
            place(problem, method=method, budget=0)
        return
    placement = place(problem, method=method, budget=0.2)
    assert (simulate(problem, placement).peak_memory <= 3.1 * LAYER).all()


def test_what_fits_on_one_device_is_not_taken_for_too_large() -> None:
    problem = Problem(chains(layers=4, count=8), Cluster.uniform(2, memory=4.1 * LAYER))
    assert not problem.may_overflow
    assert place(problem, method="single_device", budget=0).devices.tolist() == [0] * 32
