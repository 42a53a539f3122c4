"""The class of an op says what it computes on which shapes, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from doppler import Graph, load_graph, save_graph, workloads
from doppler.graph.op_class import input_shapes, op_class, op_classes
from doppler.graph.spec import OpSpec, TensorSpec, Tile

SMALL = {
    "chainmm": {"m": 8, "k": 8, "n": 8, "p": 8, "q": 8},
    "ffnn": {"batch": 16, "inputs": 8, "hidden": 16, "outputs": 8},
    "llama_block": {"sequence": 16, "hidden": 32, "heads": 4},
    "llama_layer": {"sequence": 16, "hidden": 32, "heads": 4, "intermediate": 24},
    "moe_layer": {"sequence": 16, "hidden": 16, "intermediate": 24},
}


def test_by_hand() -> None:
    tile = Tile("x", ((0, 4), (2, 5)))
    graph = Graph.build(
        3,
        [0, 0, 1],
        [1, 2, 2],
        specs=[
            OpSpec("einsum", (tile, tile), (4, 4), {"scale": 0.5, "equation": "ab,cb->ac"}),
            OpSpec("sum", (0,), (), {"dim": (0, 1)}),
            OpSpec("multiply", (0, 1), (4, 4), {"axes": ((0, 1), ())}),
        ],
        tensors={"x": TensorSpec((8, 8))},
    )
    assert op_classes(graph) == (
        'einsum(4x3,4x3)->4x4 equation="ab,cb->ac" scale=0.5',
        "sum(4x4)->scalar dim=[0,1]",
        "multiply(4x4,scalar)->4x4 axes=[[0,1],[]]",
    )
    assert input_shapes(graph, 2) == ((4, 4), ())


def test_names_and_places_do_not_count() -> None:
    graph = workloads.ffnn(**SMALL["ffnn"])
    # Every shard of a meta-op that is tiled evenly does the same work.
    by_meta_op: dict[str, set[str]] = {}
    for meta_op, name in zip(graph.meta_ops, op_classes(graph), strict=True):
        by_meta_op.setdefault(meta_op, set()).add(name)
    assert {len(names) for names in by_meta_op.values()} == {1}
    assert len(set(op_classes(graph))) < len(by_meta_op) < graph.n_ops


@pytest.mark.parametrize("workload", SMALL)
def test_each_op_by_itself_has_the_class_that_the_graph_gives_it(workload: str) -> None:
    graph = workloads.make(workload, **SMALL[workload])
    assert graph.specs is not None
    for op, name in enumerate(op_classes(graph)):
        assert name == op_class(graph.specs[op], input_shapes(graph, op))
        assert "\n" not in name


@pytest.mark.parametrize("workload", SMALL)
def test_a_graph_keeps_its_classes_in_a_file(workload: str, tmp_path: Path) -> None:
    graph = workloads.make(workload, **SMALL[workload])
    assert op_classes(load_graph(save_graph(graph, tmp_path / "saved.json"))) == op_classes(graph)


def test_other_shapes_and_attributes_are_other_classes() -> None:
    spec = OpSpec("einsum", (0, 0), (4, 4), {"equation": "ab,bc->ac"})
    names = {
        op_class(spec, ((4, 4), (4, 4))),
        op_class(spec, ((4, 2), (2, 4))),
        op_class(OpSpec("einsum", (0, 0), (4, 4), {"equation": "ab,cb->ac"}), ((4, 4), (4, 4))),
        op_class(OpSpec("add", (0, 0), (4, 4)), ((4, 4), (4, 4))),
    }
    assert len(names) == 4


def test_without_specs_there_is_no_class() -> None:
    assert op_classes(Graph.from_arrays([0], [1], [1.0, 1.0], [1.0, 1.0])) == ("", "")


def test_a_graph_is_read_once() -> None:
    graph = workloads.ffnn(**SMALL["ffnn"])
    assert op_classes(graph) is op_classes(graph)
