import networkx as nx
import numpy as np
import pytest
from graph_samples import assert_same, full_graph

from doppler import Graph
from doppler.errors import GraphError
from doppler.graph import OpSpec
from doppler.graph.formats import from_networkx, to_networkx


def test_every_field_survives_a_round_trip():
    graph = full_graph()
    assert_same(graph, from_networkx(to_networkx(graph)))


def test_absent_costs_stay_absent():
    graph = from_networkx(to_networkx(Graph.build(2, [0], [1], name="pair")))
    assert (graph.compute_s, graph.specs, graph.name) == (None, None, "pair")


def test_nodes_of_any_type_are_numbered_in_their_order():
    source = nx.DiGraph([("b", "a"), ("a", (1, 2))])
    for node, seconds in zip(source, (1, 2.5, 3), strict=True):
        source.nodes[node].update(compute=seconds, transfer=0.5, output_bytes=np.int64(8))
    graph = from_networkx(source, name="mine")
    assert graph.names == ("b", "a", "(1, 2)")
    assert graph.name == "mine"
    np.testing.assert_array_equal(graph.compute_s, [1, 2.5, 3])
    np.testing.assert_array_equal(graph.output_bytes, [8, 8, 8])
    np.testing.assert_array_equal(graph.dst, [1, 2])


def test_parallel_edges_are_merged():
    source = nx.MultiDiGraph([(0, 1), (0, 1)])  # type: ignore[var-annotated]
    nx.set_node_attributes(source, 1e9, "flops")  # type: ignore[call-overload]
    assert from_networkx(source).n_edges == 1


def test_specs_follow_their_nodes_when_the_order_changes():
    graph = to_networkx(
        Graph.build(2, [0], [1], specs=[OpSpec("f", (), (1,)), OpSpec("g", (0,), (1,))])
    )
    turned = nx.DiGraph()  # type: ignore[var-annotated]
    turned.add_nodes_from(reversed(list(graph.nodes(data=True))))
    turned.add_edges_from(graph.edges)
    assert from_networkx(turned).specs[0].inputs == (1,)


def with_nodes(*attributes, edges=()):
    graph = nx.DiGraph(name="g")  # type: ignore[var-annotated]
    graph.add_nodes_from((f"n{i}", values) for i, values in enumerate(attributes))
    graph.add_edges_from(edges)
    return graph


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.Graph(name="g"), "the networkx graph is undirected; a dataflow graph is a DiGraph"),
        (nx.DiGraph(name="g"), "the graph is empty; a graph needs at least one op"),
        (with_nodes({"compute": 1}, {}), "node 'n1' lacks the attribute 'compute', which other "),
        (with_nodes({"compute": 1}), "give compute and transfer seconds together, or neither"),
        (with_nodes({"flops": "1"}), "node 'n0': flops must be a number, not '1'"),
        (with_nodes({"flops": True}), "node 'n0': flops must be a number, not True"),
        (with_nodes({"flops": -1}), "op 0 (n0): flops is -1.0, must be a finite number >= 0"),
        (with_nodes({"pinned": 0.5}), "pinned devices must be whole numbers"),
        (with_nodes({"class_compute": 1}), "node 'n0': class_compute must be a dict of seconds "),
        (with_nodes({"class_compute": {"a": 1}}, {"class_compute": {}}), "node 'n1': class_com"),
        (with_nodes({"spec": "f"}), "node 'n0': spec must be a doppler OpSpec"),
        (with_nodes({"spec": OpSpec("f", (7,), ())}), "node 'n0' (f): its spec reads node 7, wh"),
        (with_nodes({"output": 1}), "the attribute 'output' must be a doppler Tile"),
        (with_nodes({}, edges=[("n0", "n0")]), "op 0 (n0) has an edge to itself"),
        (with_nodes({}, {}, edges=[("n0", "n1"), ("n1", "n0")]), "the graph has a cycle: "),
        (nx.DiGraph(name="g", machine="dgx"), "the attribute 'machine' must be a doppler Machine"),
        (nx.DiGraph(name="g", tensors={"W": 1}), "the attribute 'tensors' must map names to do"),
        (nx.DiGraph(name="g", tensors=[1]), "the attribute 'tensors' must map names to doppler"),
    ],
)
def test_a_broken_rule_is_named(graph, message):
    with pytest.raises(GraphError) as caught:
        from_networkx(graph)
    assert str(caught.value).startswith(f"g: {message}")


def test_a_graph_without_a_cost_is_no_graph_of_zeros():
    bare = nx.DiGraph([("a", "b")])
    words = "pair: no node has a cost; what is read is flops, output_bytes, .*compute, transfer"
    with pytest.raises(GraphError, match=rf"{words}.* nodes without attributes"):
        from_networkx(bare, name="pair")
    nx.set_node_attributes(bare, {"a": 1.0, "b": 2.0}, "weight")
    with pytest.raises(GraphError, match=rf"{words}.* found are only weight"):
        from_networkx(bare, name="pair")
