import re

import numpy as np
import pytest
from graph_samples import TEXT
from hypothesis import given
from hypothesis import strategies as st

from doppler import Graph, load_graph
from doppler.errors import GraphError
from doppler.graph.formats import doppler_text


def read(text):
    return doppler_text.read(text, "g", "g.txt")


def test_costs_are_divided_by_1e10_and_the_third_column_is_the_kind():
    graph = read(TEXT)
    assert (graph.name, graph.source) == ("g", "g.txt")
    np.testing.assert_array_equal(graph.compute_s, [1, 2, 0, 0.1])
    np.testing.assert_array_equal(graph.transfer_s, [4e-10, 5e-10, 5e-11, 7e-10])
    assert graph.kinds == ("op", "matmul", "op", "add")
    np.testing.assert_array_equal(graph.src, [0, 0, 1, 2])
    np.testing.assert_array_equal(graph.dst, [1, 2, 3, 3])


@pytest.mark.parametrize(
    ("file", "ops", "edges"),
    [
        ("chain_mm_112nodes.txt", 76, 80),
        ("ffnn_192nodes.txt", 180, 208),
        ("gdp_ffnn_192nodes.txt", 180, 208),
        ("transformer_block_215nodes.txt", 182, 234),
        ("full_transformer_layer_261nodes.txt", 229, 284),
        ("8gpu_transformer_block.txt", 302, 398),
        ("8gpu_full_transformer.txt", 367, 470),
    ],
)
def test_published_graphs_load_and_come_back_exactly(shared_graphs, file, ops, edges):
    graph = load_graph(shared_graphs / file)
    assert (graph.n_ops, graph.n_edges) == (ops, edges)
    again = read(doppler_text.write(graph))
    for key in ("src", "dst", "compute_s", "transfer_s"):
        np.testing.assert_array_equal(getattr(again, key), getattr(graph, key))
    assert again.kinds == graph.kinds


def test_the_published_chain_has_the_published_work(shared_graphs):
    # Four devices in parallel cannot do it in less: the lower bound of the paper's cost model.
    work = load_graph(shared_graphs / "chain_mm_112nodes.txt").compute_s.sum()
    assert work / 4 == pytest.approx(1200.1, abs=0.05)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
def test_any_seconds_come_back_within_one_unit_in_the_last_place(seconds):
    graph = Graph.from_arrays([], [], seconds, seconds)
    np.testing.assert_array_max_ulp(read(doppler_text.write(graph)).compute_s, graph.compute_s, 1)


@given(st.lists(st.integers(0, 2**53 - 1), min_size=1, max_size=20))
def test_whole_units_come_back_exactly(units):
    seconds = np.array(units) / doppler_text.UNITS_PER_SECOND
    graph = Graph.from_arrays([], [], seconds, seconds)
    np.testing.assert_array_equal(read(doppler_text.write(graph)).compute_s, graph.compute_s)


def test_lines_may_end_as_on_windows_and_the_file_in_blank_lines(tmp_path):
    path = tmp_path / "g.txt"
    path.write_bytes(TEXT.replace("\n", "\r\n").encode() + b"\r\n \r\n")
    assert load_graph(path).n_ops == 4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("6\n", "7\n", "line 1: 7 nodes less the 2 inputs of line 2 are 5 ops, but 4 op lines "),
        ("6\n", "6, 6\n", "line 1: must hold one number, the node count, not 2"),
        ("0, 4, \n", "0, 4, 5\n", "line 1: 6 nodes less the 3 inputs of line 2 are 3 ops, but 4"),
        ("0, 4, \n", "0, 6, \n", "line 2: input node 6 is missing; ids end at 5"),
        ("0, 4, \n", "0, x, \n", "line 2: 'x' is not a whole number >= 0"),
        ("0, 0, 1, 2, ", "0, 0, 1, 4, ", "line 3: op 4 is missing; ids end at 3"),
        ("0, 0, 1, 2, ", "0, 0, , 2, ", "line 3: '' is not a whole number >= 0"),
        ("0, 0, 1, 2, ", "0, 0, -1, 2, ", "line 3: '-1' is not a whole number >= 0"),
        ("1, 2, 3, 3, ", "1, 2, 3, 9, ", "line 4: op 9 is missing; ids end at 3"),
        ("1, 2, 3, 3, ", "1, 2, 3, 1.5, ", "line 4: '1.5' is not a whole number >= 0"),
        ("1, 2, 3, 3, ", "1, 2, 3", "line 4: 3 edge destinations for the 4 sources of line 3"),
        ("1, 2, 3, 3, ", "1, 2, 1, 3, ", "op 1 (op1) has an edge to itself"),
        ("1, 2, 3, 3, ", "1, 2, 0, 3, ", "the graph has a cycle: 0 (op0) -> 1 (op1) -> 0 (op0)"),
        ("0,0.5", "0", "line 7: op 2: expected 'compute,transfer' or 'compute,transfer,type', fo"),
        ("0,0.5", "0,1,a,b", "line 7: op 2: expected 'compute,transfer' or 'compute,transfer,typ"),
        ("0,0.5", "0,-0.5", "line 7: op 2: transfer cost is -0.5, must be a finite number >= 0"),
        ("0,0.5", "nan,1", "line 7: op 2: compute cost is nan, must be a finite number >= 0"),
        ("0,0.5", "0,1e999", "line 7: op 2: transfer cost is inf, must be a finite number >= 0"),
        ("0,0.5", "0,1_0", "line 7: op 2: transfer cost '1_0' is not a number"),
        ("0,0.5", "", "line 7: op 2: expected 'compute,transfer' or 'compute,transfer,type', foun"),
    ],
)
def test_a_broken_rule_is_named_with_its_line(old, new, message):
    with pytest.raises(GraphError) as caught:
        read(TEXT.replace(old, new, 1))
    assert str(caught.value).startswith(f"g.txt: {message}")


def test_a_file_that_ends_early_is_refused():
    with pytest.raises(GraphError, match=r"^g.txt: line 2: the file ends here, but it needs"):
        read("3\n0")
    with pytest.raises(GraphError, match=r"^g.txt: the graph is empty"):
        read("0\n\n\n\n")


def test_edges_that_repeat_are_merged():
    assert read("2\n\n0,0\n1,1\n1,1\n1,1\n").n_edges == 1


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        ({"compute_s": None, "transfer_s": None, "flops": [1, 1]}, "modeled costs or costs by "),
        ({"class_compute_s": {"gpu": [1, 1]}}, "costs by device class"),
        ({"pinned": [-1, 0]}, "pinned ops"),
        ({"colocation": [0, 0]}, "colocation groups"),
        ({"kinds": ["a", "b,c"]}, "the kind 'b,c'"),
        ({"kinds": ["a", "b\nc"]}, r"the kind 'b\nc'"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(extra, what):
    graph = Graph.build(2, [], [], **({"compute_s": [1, 1], "transfer_s": [1, 1]} | extra))
    with pytest.raises(GraphError, match=re.escape(f"the text format cannot hold {what}")):
        doppler_text.write(graph)
