from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_problems import random_graph

from doppler.graph import Graph, workloads
from doppler.graph.structure import Structure, structure


def bare(graph: Graph, number: np.ndarray | None = None) -> Graph:
    """The graph without names, meta-ops and tiles, op ``v`` renumbered ``number[v]``."""
    if number is None:
        number = np.arange(graph.n_ops)
    order = np.argsort(number)
    return Graph.build(
        graph.n_ops,
        number[graph.src],
        number[graph.dst],
        flops=graph.flops[order],
        output_bytes=graph.output_bytes[order],
        param_bytes=graph.param_bytes[order],
        bytes_read=graph.bytes_read[order],
        kinds=[graph.kinds[op] for op in order],
    )


def within(fine: np.ndarray, coarse: np.ndarray) -> bool:
    """Whether each class of ``fine`` lies in one class of ``coarse``."""
    pairs = np.unique(np.stack([fine, coarse]), axis=1)
    return pairs.shape[1] == np.unique(fine).size


def check(graph: Graph, found: Structure) -> None:
    assert within(found.meta, found.kind)
    for numbers, count in (
        (found.meta, found.n_metas),
        (found.kind, found.n_kinds),
        (found.layer, found.n_layers),
    ):
        assert np.array_equal(np.unique(numbers), np.arange(count))
    assert found.tiles.shape[0] == graph.n_ops
    assert found.tiles.shape[1] >= 1
    for array in (found.meta, found.kind, found.layer, found.tiles):
        assert array.dtype == np.int32
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


@st.composite
def bare_graphs(draw: st.DrawFn) -> Graph:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_ops = draw(st.integers(1, 40))
    kinds = [f"k{k}" for k in rng.integers(0, 3, n_ops)]
    return random_graph(rng, n_ops, kinds=kinds, meta_ops=None)


@given(bare_graphs())
def test_without_names_a_meta_op_is_of_one_depth_and_its_ops_lie_apart(graph: Graph) -> None:
    found = structure(graph)
    check(graph, found)
    assert within(found.meta, graph.depth)
    places = np.column_stack([found.meta, found.tiles])
    assert len(np.unique(places, axis=0)) == graph.n_ops
    assert structure(graph) is found


@given(bare_graphs(), st.randoms(use_true_random=False))
def test_classes_do_not_depend_on_the_numbers_of_the_ops(graph: Graph, random) -> None:
    number = np.arange(graph.n_ops)
    random.shuffle(number)
    found, moved = structure(graph), structure(bare(graph, number))
    for name in ("meta", "kind"):
        one, other = getattr(found, name), getattr(moved, name)[number]
        assert within(one, other)
        assert within(other, one)
    assert np.array_equal(found.layer, moved.layer[number])


def test_names_give_kinds_and_layers() -> None:
    graph = workloads.llama_layer(layers=3, tiles=2)
    found = structure(graph)
    check(graph, found)
    assert found.n_metas == len(set(graph.meta_ops))
    assert found.n_layers == 3
    assert found.n_kinds * 3 == found.n_metas
    ops = {name: graph.meta_ops.index(name) for name in ("layer0.q", "layer1.q", "layer1.k")}
    kind = {name: int(found.kind[op]) for name, op in ops.items()}
    assert kind["layer0.q"] == kind["layer1.q"] != kind["layer1.k"]
    assert [int(found.layer[op]) for op in ops.values()] == [0, 1, 1]
    assert np.array_equal(found.tiles, graph.tiles)


@pytest.mark.parametrize(
    ("names", "layers"),
    [
        (["model.layers.4.q", "model.layers.7.q", "model.head.q"], [1, 2, 0]),
        (["h.0.mlp", "h.1.mlp", "h.12.mlp"], [0, 1, 2]),
        (["encoder.0.fc", "encoder.1.fc", "encoder.1.fc"], [0, 1, 1]),
        (["block_0/conv", "block_1/conv", "block_1/conv2"], [0, 1, 1]),
        (["XW1", "HW2", "HW2"], [0, 0, 0]),
        (["layer9" + "9" * 40, "layer2.x", "layer2.x"], [1, 0, 0]),
    ],
)
def test_numbers_of_layers_in_names(names: list[str], layers: list[int]) -> None:
    graph = Graph.build(6, [], [], meta_ops=names * 2)
    assert structure(graph).layer.tolist() == layers * 2


@pytest.mark.parametrize(
    ("graph", "layers"),
    [
        (workloads.llama_layer(layers=4, tiles=4), 4),
        (workloads.ffnn(tiles=4), 1),
        (workloads.moe_layer(experts=8, tiles=4), 1),
    ],
    ids=["llama", "ffnn", "moe"],
)
def test_the_edges_alone_give_the_meta_ops_of_a_workload(graph: Graph, layers: int) -> None:
    named, found = structure(graph), structure(bare(graph))
    check(graph, found)
    # Meta-ops that do the same, such as gate and up, look the same.
    assert within(named.meta, found.meta)
    assert found.n_metas > 0.8 * named.n_metas
    assert found.n_layers == layers
    if layers > 1:
        middle = [set(found.kind[named.layer == layer].tolist()) for layer in (1, 2)]
        assert len(middle[0] & middle[1]) > 0.8 * len(middle[0] | middle[1])
    # The parts of one sum are those that share the coordinate of the first consumer.
    sums = [op for op, name in enumerate(graph.meta_ops) if name.endswith(".total1")]
    pointers, producers = graph.predecessors
    for op in sums:
        parts = producers[pointers[op] : pointers[op + 1]]
        assert np.unique(found.tiles[parts, 0]).size == 1


def test_without_tiles_the_shards_give_the_order() -> None:
    graph = workloads.chainmm(tiles=3)
    plain = Graph.build(
        graph.n_ops, graph.src, graph.dst, meta_ops=graph.meta_ops, shards=graph.shards
    )
    found = structure(plain)
    assert np.array_equal(found.meta, structure(graph).meta)
    assert np.array_equal(found.tiles[:, 3], graph.shards)
