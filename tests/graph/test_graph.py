import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_problems import dags

from doppler import Graph
from doppler.errors import GraphError
from doppler.graph import Machine, OpSpec, TensorSpec, Tile


def build(n_ops, edges, **extra):
    return Graph.build(n_ops, [e[0] for e in edges], [e[1] for e in edges], **extra)


@given(dags())
def test_edges_are_sorted_and_repeats_merged(dag):
    n_ops, edges = dag
    graph = build(n_ops, edges)
    assert list(zip(graph.src, graph.dst, strict=True)) == sorted(set(edges))
    assert (graph.n_ops, graph.n_edges) == (n_ops, len(set(edges)))


@given(dags())
def test_csr_lists_every_neighbor_in_ascending_order(dag):
    n_ops, edges = dag
    graph = build(n_ops, edges)
    for (pointers, neighbors), near, far in (
        (graph.successors, 0, 1),
        (graph.predecessors, 1, 0),
    ):
        assert pointers[0] == 0
        for op in range(n_ops):
            expected = sorted({e[far] for e in edges if e[near] == op})
            assert neighbors[pointers[op] : pointers[op + 1]].tolist() == expected


@given(dags())
def test_topological_order_puts_producers_first(dag):
    n_ops, edges = dag
    order = build(n_ops, edges).topological_order.tolist()
    assert sorted(order) == list(range(n_ops))
    position = {op: i for i, op in enumerate(order)}
    assert all(position[u] < position[v] for u, v in edges)


@given(dags())
def test_depth_is_the_longest_path_from_an_entry(dag):
    n_ops, edges = dag
    graph = build(n_ops, edges)

    def depth(op):
        return max((depth(u) + 1 for u, v in set(edges) if v == op), default=0)

    if n_ops <= 12:
        assert graph.depth.tolist() == [depth(op) for op in range(n_ops)]
    # Any size: zero at entries, else one more than the deepest producer.
    for op in range(n_ops):
        producers = [graph.depth[u] for u, v in edges if v == op]
        assert graph.depth[op] == max(producers, default=-1) + 1


@given(dags(), st.data())
def test_an_edge_against_the_order_makes_a_cycle_that_the_message_shows(dag, data):
    n_ops, edges = dag
    if not edges:
        return
    u, v = data.draw(st.sampled_from(edges))
    with pytest.raises(GraphError, match="the graph has a cycle: ") as caught:
        build(n_ops, [*edges, (v, u)])
    path = str(caught.value).split("cycle: ")[1].split(" -> ")
    assert path[-1].startswith(path[0])
    if "..." not in path:
        ops = [int(step.split(" ")[0]) for step in path]
        assert set(itertools.pairwise(ops)) <= {*edges, (v, u)}


def test_a_long_cycle_is_abridged():
    with pytest.raises(GraphError, match=r"5 \(op5\) -> \.\.\. -> 0 \(op0\) \(100 ops\)$"):
        build(100, [(i, (i + 1) % 100) for i in range(100)])


def test_arrays_are_copies_that_cannot_be_written():
    given_flops = np.array([1.0, 2.0])
    given_src = np.array([0], np.int32)
    graph = Graph.build(2, given_src, [1], flops=given_flops, class_compute_s={"gpu": given_flops})
    given_flops[0] = given_src[0] = 9
    assert graph.flops[0] == 1
    assert graph.src[0] == 0
    arrays = [graph.flops, graph.src, graph.dst, graph.shards, graph.pinned, graph.colocation]
    arrays += [
        graph.tiles,
        *graph.successors,
        *graph.predecessors,
        graph.topological_order,
        graph.depth,
    ]
    arrays += [graph.class_compute_s["gpu"]]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.name = "other"  # type: ignore[misc]


def test_defaults():
    graph = Graph.build(2, [], [])
    assert graph.names == graph.meta_ops == ("op0", "op1")
    assert graph.kinds == ("op", "op")
    assert graph.shards.tolist() == [0, 0]
    assert graph.tiles.shape == (2, 0)
    assert graph.pinned.tolist() == graph.colocation.tolist() == [-1, -1]
    assert graph.flops.tolist() == graph.bytes_read.tolist() == [0, 0]
    assert graph.compute_s is None
    assert graph.transfer_s is None
    assert repr(graph) == "Graph('graph', ops=2, edges=0)"


def test_meta_ops_default_to_the_names():
    assert Graph.build(1, [], [], names=["mm"]).meta_ops == ("mm",)


def test_tiles_have_the_width_of_the_widest_op():
    graph = Graph.build(3, [], [], tiles=[[1, 2], [], [0, -1, -1]])
    assert graph.tiles.tolist() == [[1, 2], [-1, -1], [0, -1]]
    assert graph.tiles.dtype == np.int32
    assert graph.tile_rows() == [(1, 2), (), (0,)]
    again = Graph.build(3, [], [], tiles=graph.tiles)
    assert np.array_equal(again.tiles, graph.tiles)


def test_one_op_and_disconnected_parts_are_graphs():
    assert Graph.build(1, [], []).topological_order.tolist() == [0]
    assert build(4, [(0, 1), (2, 3)]).depth.tolist() == [0, 1, 0, 1]


def test_from_arrays_takes_explicit_seconds_and_any_further_part():
    graph = Graph.from_arrays([0], [1], [1, 2.5], (0.5, 0), kinds=["a", "b"], name="pair")
    assert graph.compute_s.tolist() == [1, 2.5]
    assert graph.transfer_s.tolist() == [0.5, 0]
    assert (graph.kinds, graph.name) == (("a", "b"), "pair")


def test_whole_floats_are_ids_and_an_infinite_class_cost_is_a_ban():
    graph = Graph.build(2, [0.0], [1.0], class_compute_s={"gpu": [np.inf, 1]})
    assert graph.dst.dtype == np.int32
    assert graph.class_compute_s["gpu"][0] == np.inf


READS = OpSpec("f", (Tile("W", ((0, 2),)),), (2,))
TENSORS = {"W": TensorSpec((2,))}
NUMBERS = "must be numbers, and entry"


@pytest.mark.parametrize(
    ("n_ops", "parts", "message"),
    [
        (0, {}, "the graph is empty; a graph needs at least one op"),
        (2, {"src": [0]}, "1 edge sources but 0 destinations"),
        (2, {"src": [0], "dst": [2]}, "edge 0 (0 -> 2) names a missing op; ids run from 0 to 1"),
        (2, {"src": [-1], "dst": [1]}, "edge 0 (-1 -> 1) names a missing op"),
        (2, {"src": [0.5], "dst": [1]}, "edge 0 (0.5 -> 1) names a missing op"),
        (2, {"src": [np.nan], "dst": [1]}, "edge 0 (nan -> 1) names a missing op"),
        (2, {"src": [12345678], "dst": [1]}, "edge 0 (12345678 -> 1) names a missing op"),
        (2, {"src": [1], "dst": [1]}, "op 1 (op1) has an edge to itself"),
        (2, {"src": ["0"], "dst": [1]}, f"edge sources {NUMBERS} 0 is '0'"),
        (2, {"src": [0], "dst": [None]}, f"edge destinations {NUMBERS} 0 is None"),
        (2, {"src": [0], "dst": [10**30]}, "edge destinations must be numbers that fit in 64 bits"),
        (2, {"src": [[0]], "dst": [[1]]}, "edge sources must be a flat list of numbers"),
        (2, {"src": 0, "dst": 1}, "edge sources must be a flat list of numbers"),
        (2, {"flops": [1]}, "1 flops for 2 ops"),
        (2, {"flops": [1, -1]}, "op 1 (op1): flops is -1.0, must be a finite number >= 0"),
        (2, {"flops": [1, np.nan]}, "op 1 (op1): flops is nan, must be a finite number >= 0"),
        (2, {"output_bytes": [np.inf, 1]}, "op 0 (op0): output bytes is inf, must be a finite"),
        (2, {"param_bytes": [1, -np.inf]}, "op 1 (op1): parameter bytes is -inf, must be a finite"),
        (2, {"bytes_read": ["1", "2"]}, f"bytes read {NUMBERS} 0 is '1'"),
        (2, {"flops": [1, True]}, f"flops {NUMBERS} 1 is True"),
        (2, {"flops": [True, False]}, f"flops {NUMBERS} 0 is True"),
        (2, {"flops": [1, None]}, f"flops {NUMBERS} 1 is None"),
        (2, {"flops": [1j, 1]}, f"flops {NUMBERS} 0 is 1j"),
        (2, {"flops": np.array(["a", "b"])}, "flops must be numbers"),
        (2, {"flops": [[1], [2]]}, "flops must be a flat list of numbers"),
        (2, {"flops": [[1], [2, 3]]}, "flops must be a flat list of numbers"),
        (2, {"flops": {"a": 1}}, "flops must be a flat list of numbers"),
        (2, {"compute_s": [1, 1]}, "give compute and transfer seconds together, or neither"),
        (2, {"transfer_s": [1, 1]}, "give compute and transfer seconds together, or neither"),
        (2, {"class_compute_s": {"g\n": [1, -1]}}, "op 1 (op1): g\\n compute seconds is -1.0, mu"),
        (2, {"class_compute_s": {"gpu": [1, np.nan]}}, "op 1 (op1): gpu compute seconds is nan, "),
        (2, {"names": ["a"]}, "1 names for 2 ops"),
        (2, {"names": "ab"}, "names must be a list of strings, one for each op"),
        (2, {"kinds": ["a", None]}, "kinds must be a list of strings, one for each op"),
        (2, {"meta_ops": [1, 2]}, "meta-ops must be a list of strings, one for each op"),
        (2, {"shards": [0, -1]}, "op 1 (op1): shards holds -1, must be from 0 to 2147483647"),
        (2, {"shards": [0.0, 1.0]}, "shards must be whole numbers"),
        (2, {"pinned": [-2, 0]}, "op 0 (op0): pinned devices holds -2, must be from -1 to"),
        (2, {"pinned": [0]}, "1 pinned devices for 2 ops"),
        (2, {"colocation": [0, 2**31]}, "op 1 (op1): colocation groups holds 2147483648, must be"),
        (2, {"colocation": [[0], []]}, "colocation groups must be a flat list of numbers"),
        (2, {"tiles": [[0]]}, "1 tiles for 2 ops"),
        (2, {"tiles": 3}, "tiles must be a list of coordinates for each op"),
        (2, {"tiles": [[0], 1]}, "tiles must be a list of coordinates for each op"),
        (2, {"tiles": [[0], [0.5]]}, "tile coordinates must be whole numbers"),
        (2, {"tiles": [[0], ["a"]]}, f"tile coordinates {NUMBERS} 1 is 'a'"),
        (2, {"tiles": [[0], [-2]]}, "op 1 (op1): its tile is [-2], must be numbers from 0 to 21"),
        (2, {"tiles": [[0], [-1, 0]]}, "op 1 (op1): its tile is [-1, 0], must be numbers from 0"),
        (2, {"tiles": [[2**31], [0]]}, "op 0 (op0): its tile is [2147483648], must be numbers fro"),
        (2, {"tiles": [[0], [0] * 33]}, "a tile has 33 coordinates, at most 32"),
        (2, {"names": ["a", "b\nc"], "flops": [0, -1]}, "op 1 (b\\nc): flops is -1.0"),
        (1, {"names": ["x" * 99], "flops": [-1]}, f"op 0 ({'x' * 57}...): flops is -1.0"),
        (1, {"machine": Machine(0, 0, 1)}, "the machine has 0 accelerators and 0 cpus; it needs"),
        (1, {"machine": Machine(2, -1, 1)}, "the machine has 2 accelerators and -1 cpus; it need"),
        (1, {"machine": Machine(1, 1, np.nan)}, "accelerator memory is nan, must be a finite"),
        (1, {"specs": []}, "0 specs for 1 ops"),
        (1, {"specs": [READS]}, "op 0 (op0): its spec reads tensor 'W', which is not in the graph"),
        (
            1,
            {"specs": [READS], "tensors": {"W": TensorSpec((1,))}},
            "op 0 (op0): its spec reads ((0, 2),) of tensor 'W', whose shape is (1,)",
        ),
        (
            1,
            {"specs": [READS], "tensors": {"W": TensorSpec((2, 2))}},
            "op 0 (op0): its spec reads ((0, 2),) of tensor 'W', whose shape is (2, 2)",
        ),
        (
            2,
            {"specs": [READS, OpSpec("g", (0,), (2,))], "tensors": TENSORS},
            "op 1 (op1): its spec reads op 0, but there is no edge from it",
        ),
        (
            1,
            {"specs": [OpSpec("g", (5,), (2,))]},
            "op 0 (op0): its spec reads op 5, but there is no edge from it",
        ),
        (
            1,
            {"specs": [OpSpec("g", (2**63,), (2,))]},
            "op 0 (op0): its spec reads op 9223372036854775808, but there is no edge from it",
        ),
        (1, {"tensors": {"W": TensorSpec((2, 0))}}, "tensor 'W' has shape (2, 0); every axis nee"),
        (1, {"outputs": {1: Tile("y", ())}}, "output op 1 is missing; ids end at 0"),
    ],
)
def test_a_broken_rule_is_named_with_its_source_and_op(n_ops, parts, message):
    parts = {"src": [], "dst": []} | parts
    with pytest.raises(GraphError) as caught:
        Graph.build(n_ops, source="g.json", **parts)
    assert str(caught.value).startswith(f"g.json: {message}")
    assert len(str(caught.value).splitlines()) == 1


def test_messages_fall_back_to_the_name_where_there_is_no_source():
    with pytest.raises(GraphError, match=r"^mine: 1 transfer seconds for 2 ops"):
        Graph.from_arrays([], [], [1, 1], [1], name="mine")
    with pytest.raises(GraphError, match=r"^mine: compute seconds must be a flat list of numbers"):
        Graph.from_arrays([], [], 1.0, 1.0, name="mine")


def test_a_spec_may_wait_for_an_op_that_it_does_not_read():
    graph = build(2, [(0, 1)], specs=[READS, OpSpec("g", (), (1,))], tensors=TENSORS)
    assert graph.n_edges == 1


def test_an_array_of_objects_that_are_numbers_is_numbers() -> None:
    graph = Graph.build(2, np.array([0], object), [1], flops=np.array([1, 2.5], object))
    assert graph.flops.tolist() == [1.0, 2.5]
    for wrong, words in (
        (None, "entry 1 is None"),
        (True, "entry 1 is True"),
        ("1", "entry 1 is '1'"),
    ):
        with pytest.raises(GraphError, match=f"flops must be numbers, and {words}"):
            Graph.build(2, [0], [1], flops=np.array([1, wrong], object))


@pytest.mark.parametrize("part", ["names", "kinds", "meta_ops"])
def test_half_a_character_is_no_name(part: str) -> None:
    with pytest.raises(GraphError, match=rf"op 1: {part.replace('_', '-')} holds .*half of a surr"):
        Graph.build(2, [0], [1], **{part: ["a", "b\ud800"]})  # type: ignore[arg-type]
    for parts in (
        {"name": "\ud800"},
        {"class_compute_s": {"\ud800": [1.0]}},
        {"tensors": {"\ud800": TensorSpec((1,))}},
    ):
        with pytest.raises(GraphError, match=r"the name .* holds half of a surrogate pair"):
            Graph.build(1, [], [], **parts)
