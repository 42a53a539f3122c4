import numpy as np
import pytest
from graph_samples import layer_document

from doppler import load_graph
from doppler.errors import GraphError
from doppler.graph import Machine
from doppler.graph.formats import dnn_partitioning


def read(document):
    return dnn_partitioning.read(document, "g", "g.json")


def test_a_training_graph_becomes_a_heterogeneous_graph():
    graph = read(layer_document())
    assert graph.names == ("embed", "loss", "lossgrad", "embedgrad")
    assert graph.kinds == ("forward", "forward", "backward", "backward")
    assert graph.machine == Machine(accelerators=2, cpus=1, accelerator_memory=4096.0)
    np.testing.assert_array_equal(graph.class_compute_s["gpu"], [np.inf, 2e-3, 2e-3, 2e-3])
    np.testing.assert_array_equal(graph.class_compute_s["cpu"], [0.02] * 4)
    np.testing.assert_array_equal(graph.param_bytes, [1024] * 4)
    np.testing.assert_array_equal(graph.output_bytes, [0] * 4)
    np.testing.assert_array_equal(graph.src, [0, 1, 1, 2])
    np.testing.assert_array_equal(graph.dst, [1, 2, 3, 3])
    assert graph.compute_s is None


def test_classes_of_one_member_bind_nothing():
    assert read(layer_document()).colocation.tolist() == [-1, 0, 0, -1]


def test_the_largest_edge_cost_of_an_op_counts():
    np.testing.assert_array_equal(read(layer_document()).transfer_s, [1.5e-3, 5e-4, 0, 0])


@pytest.mark.parametrize(
    ("file", "ops", "edges", "accelerators", "gpu_seconds"),
    [
        ("bert24_inference.json", 32, 55, 5, 0.0924),
        ("gnmt_inference.json", 96, 122, 6, 0.1826),
        ("inceptionv3_inference.json", 326, 363, 12, 0.3110),
        ("resnet50_inference.json", 177, 193, 14, 0.2014),
    ],
)
def test_published_layer_graphs(shared_graphs, file, ops, edges, accelerators, gpu_seconds):
    graph = load_graph(shared_graphs / "layers" / file)
    assert (graph.n_ops, graph.n_edges) == (ops, edges)
    assert (graph.machine.accelerators, graph.machine.cpus) == (accelerators, 8)
    assert graph.class_compute_s["gpu"].sum() == pytest.approx(gpu_seconds, abs=1e-4)
    assert (graph.colocation == -1).all()
    assert graph.param_bytes.sum() < accelerators * graph.machine.accelerator_memory


def change(*path_and_value):
    *path, value = path_and_value
    document = layer_document()
    at = document
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (change("maxFPGAs", ...), "maxFPGAs is missing"),
        (change("maxFPGAs", 2.5), "maxFPGAs is 2.5, must be a whole number"),
        (change("maxFPGAs", -1), "the machine has -1 accelerators and 1 cpus; it needs at least"),
        (change("maxSizePerFPGA", "4G"), "maxSizePerFPGA is '4G', must be a number"),
        (change("nodes", {}), "nodes is {}, must be a list"),
        (change("nodes", []), "edges[0].sourceId is 7, but no node has that id"),
        (change("nodes", 1, None), "nodes[1] is None, must be a mapping"),
        (change("nodes", 1, "id", 7), "nodes[1].id is 7, the id of nodes[0] too"),
        (change("nodes", 1, "id", True), "nodes[1].id is True, must be a whole number"),
        (change("nodes", 1, "name", 5), "nodes[1].name is 5, must be a text"),
        (change("nodes", 1, "size", -1), "nodes[1].size is -1, must be greater than or equal to 0"),
        (
            change("nodes", 1, "size", 10**400),
            "nodes[1].size is 1000000000000000000000000000...000000000000000000000000",
        ),
        (
            change("nodes", 1, "cpuLatency", float("nan")),
            "nodes[1].cpuLatency is nan, must be a finite number",
        ),
        (change("nodes", 1, "fpgaLatency", ...), "fpgaLatency[1] is None, must be a number"),
        (
            change("nodes", 1, "supportedOnFpga", 2),
            "nodes[1].supportedOnFpga is 2, must be 0, 1, False or True",
        ),
        (
            change("nodes", 1, "colorClass", "a"),
            "nodes[1].colorClass is 'a', must be a whole number",
        ),
        (change("edges", 0, "destId", 99), "edges[0].destId is 99, but no node has that id"),
        (change("edges", 0, "destId", 7), "op 0 (embed) has an edge to itself"),
        (change("edges", 3, "destId", 7), "the graph has a cycle: "),
        (change("edges", 0, "cost", None), "edges[0].cost is None, must be a number"),
    ],
)
def test_a_broken_rule_is_named_with_its_key_or_op(document, message):
    if message.startswith("the graph has a cycle"):
        document["edges"].append({"sourceId": 5, "destId": 7, "cost": 0})
        document["edges"].pop(3)
    with pytest.raises(GraphError) as caught:
        read(document)
    assert str(caught.value).startswith(f"g.json: {message}")


def test_a_node_that_no_accelerator_runs_needs_no_latency_there():
    assert read(change("nodes", 0, "fpgaLatency", ...)).class_compute_s["gpu"][0] == np.inf


def test_names_colors_and_directions_may_be_absent():
    document = layer_document()
    for node in document["nodes"]:
        del node["name"], node["isBackwardNode"]
        node["colorClass"] = None
    graph = read(document)
    assert graph.names == ("node7", "node3", "node12", "node5")
    assert set(graph.kinds) == {"forward"}
    assert graph.colocation.tolist() == [-1] * 4
