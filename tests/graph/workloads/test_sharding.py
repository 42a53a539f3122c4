from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import doppler
from doppler.errors import GraphError, UnknownNameError
from doppler.graph import Graph, Tile
from doppler.graph.workloads import SHARDED, WORKLOADS, WorkloadProgram, chainmm, make, shard

SMALL = {
    "chainmm": {"m": 4, "k": 6, "n": 5, "p": 4, "q": 7},
    "ffnn": {"batch": 4, "inputs": 5, "hidden": 6, "outputs": 7},
    "llama_block": {"sequence": 6, "hidden": 16, "heads": 4, "kv_heads": 2},
    "llama_layer": {"sequence": 6, "hidden": 16, "heads": 4, "kv_heads": 2, "intermediate": 9},
    "moe_layer": {"sequence": 6, "hidden": 8, "experts": 4, "intermediate": 9},
}


def flops(graph: Graph, kind: str) -> float:
    return float(sum(f for f, k in zip(graph.flops, graph.kinds, strict=True) if k == kind))


def volume(tile: Tile) -> int:
    return math.prod(high - low for low, high in tile.slices)


def cells_of(tile: Tile) -> list[tuple[int, ...]]:
    starts = [low for low, _ in tile.slices]
    extents = [high - low for low, high in tile.slices]
    return [
        tuple(start + step for start, step in zip(starts, cell, strict=True))
        for cell in np.ndindex(*extents)
    ]


@pytest.mark.parametrize("name", sorted(SHARDED))
@given(tiles=st.integers(1, 4))
@settings(max_examples=4)
def test_the_flops_of_einsums_do_not_depend_on_the_tiling(name: str, tiles: int) -> None:
    whole, sharded = make(name, **SMALL[name], tiles=1), make(name, **SMALL[name], tiles=tiles)
    assert flops(sharded, "einsum") == flops(whole, "einsum")
    assert "add" not in whole.kinds
    assert "formation" not in whole.kinds


@pytest.mark.parametrize("name", sorted(SHARDED))
@pytest.mark.parametrize("tiles", [None, 3])
def test_costs_follow_from_the_specs(name: str, tiles: int | None) -> None:
    graph = make(name, **SMALL[name], tiles=tiles, dtype_bytes=2)
    assert graph.specs is not None
    for op, spec in enumerate(graph.specs):
        resident = sum(volume(source) for source in spec.inputs if isinstance(source, Tile))
        made = sum(
            math.prod(graph.specs[source].shape)
            for source in spec.inputs
            if isinstance(source, int)
        )
        assert graph.output_bytes[op] == 2 * math.prod(spec.shape)
        assert graph.param_bytes[op] == 2 * resident
        if graph.kinds[op] == "formation":
            assert graph.flops[op] == 0
            assert graph.bytes_read[op] <= 2 * (made + resident)
        else:
            assert graph.bytes_read[op] == 2 * (made + resident)


@pytest.mark.parametrize("name", sorted(SHARDED))
@pytest.mark.parametrize("tiles", [None, 1, 3])
def test_result_tiles_partition_the_result(name: str, tiles: int | None) -> None:
    graph = make(name, **SMALL[name], tiles=tiles)
    assert len({tile.tensor for tile in graph.outputs.values()}) == 1
    cells = Counter(cell for tile in graph.outputs.values() for cell in cells_of(tile))
    assert set(cells.values()) == {1}
    extents = np.array(list(cells)).max(axis=0) + 1
    assert len(cells) == math.prod(extents.tolist())


@pytest.mark.parametrize("name", sorted(SHARDED))
@pytest.mark.parametrize("tiles", [None, 3])
def test_shards_of_a_meta_op_are_numbered_and_do_not_depend_on_each_other(
    name: str, tiles: int | None
) -> None:
    graph = make(name, **SMALL[name], tiles=tiles)
    groups: dict[str, list[int]] = {}
    for op, meta_op in enumerate(graph.meta_ops):
        groups.setdefault(meta_op, []).append(op)
    for ops in groups.values():
        assert sorted(graph.shards[ops].tolist()) == list(range(len(ops)))
        assert len({graph.kinds[op] for op in ops}) == 1
    assert all(
        graph.meta_ops[u] != graph.meta_ops[v] for u, v in zip(graph.src, graph.dst, strict=True)
    )
    assert len(set(graph.names)) == graph.n_ops


@pytest.mark.parametrize("name", sorted(SHARDED))
def test_every_op_serves_the_result(name: str) -> None:
    graph = make(name)
    exits = set(range(graph.n_ops)) - set(graph.src.tolist())
    assert exits == set(graph.outputs)


@pytest.mark.parametrize("name", sorted(SHARDED))
def test_a_file_gives_the_same_graph_back(name: str, tmp_path: Path) -> None:
    graph = make(name, **SMALL[name])
    for spec in graph.specs or ():
        json.dumps(dict(spec.attributes))
    path = tmp_path / "graph.json"
    doppler.save_graph(graph, path)
    back = doppler.load_graph(path)
    assert back.specs == graph.specs
    assert back.outputs == graph.outputs
    assert back.tensors == graph.tensors
    assert (back.names, back.meta_ops, back.kinds) == (graph.names, graph.meta_ops, graph.kinds)
    np.testing.assert_array_equal(back.bytes_read, graph.bytes_read)


@pytest.mark.parametrize("tiles", [2, 3, 5, 8])
def test_partial_sums_form_a_balanced_tree_of_pairs(tiles: int) -> None:
    graph = chainmm(4, 8, 4, 8, 4, tiles={"m": 1, "n": 1, "q": 1, "k": tiles, "p": 1})
    adds = [op for op, kind in enumerate(graph.kinds) if kind == "add"]
    assert len(adds) == tiles - 1
    assert {len(graph.specs[op].inputs) for op in adds} == {2}
    assert len({graph.meta_ops[op] for op in adds}) == math.ceil(math.log2(tiles))


def test_a_formation_is_shared_by_its_consumers() -> None:
    program = WorkloadProgram("shared", {"i": 8, "j": 8})
    x = program.input("x", ("i",))
    y = program.elementwise("y", "relu", (x,)).rename(i="j")
    a = program.elementwise("a", "relu", (y,))
    b = program.elementwise("b", "relu", (y,))
    program.result(program.elementwise("c", "add", (a, b)))
    graph = shard(program, {"i": 2, "j": 4})
    formed = [op for op, kind in enumerate(graph.kinds) if kind == "formation"]
    assert len(formed) == 4
    pointers, _ = graph.successors
    assert [int(pointers[op + 1] - pointers[op]) for op in formed] == [2] * 4


def test_tiles_that_coincide_are_read_where_they_are() -> None:
    program = WorkloadProgram("partly", {"i": 4, "j": 4})
    y = program.elementwise("y", "relu", (program.input("x", ("i",)),))
    program.result(program.elementwise("z", "relu", (y.rename(i="j"),)))
    # [0, 1) [1, 2) [2, 4) against [0, 2) [2, 4): only the first must be gathered.
    graph = shard(program, {"i": 3, "j": 2})
    assert [name for name in graph.names if "form" in name] == ["y.form1[0]"]


def test_shard_checks_the_tiles() -> None:
    program = WorkloadProgram("p", {"i": 4})
    program.result(program.elementwise("y", "relu", (program.input("x", ("i",)),)))
    with pytest.raises(GraphError, match="p: dimension 'i' of size 4 cannot be split into 5 tiles"):
        shard(program, {"i": 5})
    with pytest.raises(UnknownNameError, match="unknown dimension of p 'j'"):
        shard(program, {"j": 1})


def test_workloads_are_made_by_name() -> None:
    assert make("chainmm", tiles=1).n_ops == 4
    assert doppler.workloads.WORKLOADS is WORKLOADS


def test_an_unknown_workload_or_size_names_the_nearest() -> None:
    with pytest.raises(
        UnknownNameError, match="unknown workload 'lama_layer': did you mean 'llama_layer'"
    ):
        make("lama_layer")
    with pytest.raises(
        GraphError, match="unknown size of ffnn 'hiden': did you mean 'hidden'"
    ) as caught:
        make("ffnn", hiden=3)
    assert not isinstance(caught.value, UnknownNameError)


@pytest.mark.parametrize("name", sorted(SHARDED))
def test_tiles_are_the_place_in_the_grid_of_the_meta_op(name: str) -> None:
    graph = make(name, **SMALL[name], tiles=3)
    places: dict[str, list[tuple[int, ...]]] = {}
    for meta_op, place in zip(graph.meta_ops, graph.tile_rows(), strict=True):
        places.setdefault(meta_op, []).append(place)
    for found in places.values():
        assert found == sorted(set(found))
    for op, place in enumerate(graph.tile_rows()):
        if graph.names[op].endswith(f"[{','.join(map(str, place))}]"):
            continue
        # What is left are partial sums: of the tile that their inputs belong to.
        assert ".total" in graph.meta_ops[op] or ".peak" in graph.meta_ops[op]
        for source in graph.specs[op].inputs:
            assert graph.tile_rows()[source][: len(place) - 1] == place[:-1]  # type: ignore[index]
