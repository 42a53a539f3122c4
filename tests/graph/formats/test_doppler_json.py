import copy
import json

import numpy as np
import pytest
from graph_samples import assert_same, full_graph
from hypothesis import given
from hypothesis import strategies as st

from doppler import Graph, load_graph, save_graph
from doppler.errors import GraphError
from doppler.graph import Machine, OpSpec, TensorSpec, Tile, workloads
from doppler.graph.formats import doppler_json, from_networkx, to_networkx


def written(graph):
    return json.loads(doppler_json.write(graph))


def read(document):
    return doppler_json.read(document, "g.json")


def test_every_field_survives_a_round_trip(tmp_path):
    graph = full_graph()
    path = save_graph(graph, tmp_path / "full.json")
    loaded = load_graph(path)
    assert_same(graph, loaded)
    assert loaded.source == str(path)
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN, no Infinity


def test_absent_fields_stay_absent():
    graph = Graph.build(1, [], [])
    assert_same(graph, read(written(graph)))


def test_a_file_written_by_hand_needs_five_keys():
    document = {"format": "doppler-graph", "version": 1, "names": ["a", "b"], "src": [0]}
    document["dst"] = [1]
    graph = read(document)
    assert (graph.n_ops, graph.n_edges, graph.compute_s) == (2, 1, None)


finite = st.floats(min_value=0, allow_infinity=False)


@given(st.data())
def test_round_trip_is_exact_on_random_graphs(data):
    n_ops = data.draw(st.integers(1, 12))
    pairs = st.tuples(st.integers(0, n_ops - 1), st.integers(0, n_ops - 1))
    edges = [sorted(p) for p in data.draw(st.lists(pairs, max_size=30)) if p[0] != p[1]]

    def column(values):
        return data.draw(st.lists(values, min_size=n_ops, max_size=n_ops))

    graph = Graph.build(
        n_ops,
        [e[0] for e in edges],
        [e[1] for e in edges],
        name=data.draw(st.text()),
        flops=column(finite),
        compute_s=column(finite),
        transfer_s=column(finite),
        class_compute_s={"gpu": column(st.floats(min_value=0))},
        names=column(st.text()),
        kinds=column(st.sampled_from(["a", "b", "é"])),
        shards=column(st.integers(0, 2**31 - 1)),
        tiles=column(st.lists(st.integers(0, 2**31 - 1), max_size=3)),
        pinned=column(st.integers(-1, 3)),
    )
    assert_same(graph, read(written(graph)))


def test_repeated_values_are_stored_once():
    graph = Graph.build(1000, [], [], kinds=["a rather long kind of op"] * 1000, flops=[1e9] * 1000)
    assert len(doppler_json.write(graph)) < 40_000
    assert_same(graph, read(written(graph)))


def test_specs_that_are_alike_share_one_form():
    assert len(written(full_graph())["specs"]["forms"]) == 3


def test_lists_in_attributes_come_back_as_tuples():
    graph = Graph.build(1, [], [], specs=[OpSpec("f", (), (1,), {"axes": [0, [1]]})])
    assert read(written(graph)).specs[0].attributes == {"axes": (0, (1,))}


def test_numpy_scalars_in_specs_are_saved_as_numbers():
    spec = OpSpec(
        "f",
        (Tile("x", ((np.int64(0), np.int64(1)),)),),  # type: ignore[arg-type]
        (np.int64(1),),  # type: ignore[arg-type]
        {"by": np.int8(3)},
    )
    graph = Graph.build(1, [], [], specs=[spec], tensors={"x": TensorSpec((np.int64(1),))})  # type: ignore[arg-type]
    assert_same(graph, read(written(graph)))


@pytest.mark.parametrize("value", [float("inf"), float("nan"), object(), b"x", {1, 2}])
def test_an_attribute_that_json_does_not_know_is_refused(value, tmp_path):
    graph = Graph.build(1, [], [], names=["a"], specs=[OpSpec("f", (), (1,), {"by": value})])
    with pytest.raises(GraphError, match=r"^graph: op 0 \(a\): an attribute cannot be saved"):
        save_graph(graph, tmp_path / "g.json")
    assert list(tmp_path.iterdir()) == []


def change(path, value):
    document = copy.deepcopy(written(full_graph()))
    at = document
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["format"], "onnx", "format is 'onnx', must be 'doppler-graph'"),
        (["format"], None, "format is None, must be 'doppler-graph'"),
        (["version"], 2, "version is newer than 1, the last that is known: update doppler"),
        (["version"], 0, "version is 0, must be from 1 to 1"),
        (["version"], "1", "version is '1', must be a whole number"),
        (["version"], True, "version is True, must be a whole number"),
        (["version"], ..., "version is missing"),
        (
            ["output_byte"],
            [1],
            "unknown key 'output_byte': did you mean 'output_bytes'? known are bytes_",
        ),
        (["names"], ..., "names is missing"),
        (["names"], "abcd", "names is 'abcd', must be a list"),
        (["names", 2], 7, "names[2] is 7, must be a text"),
        (["src"], {"0": 1}, "src is {'0': 1}, must be a list"),
        (["src", 0], "0", "src[0] is '0', must be a whole number"),
        (["src", 0], 0.5, "src[0] is 0.5, must be a whole number"),
        (["src", 0], 99, "edge 0 (99 -> 1) names a missing op; ids run from 0 to 3"),
        (["src", 0], 1, "op 1 (b\\n) has an edge to itself"),
        (["src", 0], 10**30, "edge sources must be numbers that fit in 64 bits"),
        (["src"], [0], "1 edge sources but 4 destinations"),
        (["flops"], [1], "1 flops for 4 ops"),
        (["flops", 1], None, "flops[1] is None, must be a number"),
        (["flops", 1], -1, "op 1 (b\\n): flops is -1.0, must be a finite number >= 0"),
        (["flops", 1], float("nan"), "op 1 (b\\n): flops is nan, must be a finite number >= 0"),
        (["compute_s", 1], float("inf"), "op 1 (b\\n): compute seconds is inf, must be a finite"),
        (["class_compute_s"], [], "class_compute_s is [], must be a mapping"),
        (["class_compute_s", "gpu", 0], "1", "class_compute_s.gpu[0] is '1', must be a number"),
        (["class_compute_s", "gpu", 0], -1, "op 0 (a): gpu compute seconds is -1.0, must be a n"),
        (
            ["kinds"],
            {"values": ["a"]},
            "kinds: must be a list, or a mapping with the lists 'values' and 'index'",
        ),
        (
            ["kinds"],
            {"values": ["a"], "index": [0, 0, 0, 1]},
            "kinds: index points outside the 1 values",
        ),
        (["kinds"], {"values": ["a"], "index": [0]}, "1 kinds for 4 ops"),
        (["kinds"], {"values": [1], "index": [0] * 4}, "kinds[0] is 1, must be a text"),
        (["shards", 0], 1.5, "shards[0] is 1.5, must be a whole number"),
        (["pinned", 0], -2, "op 0 (a): pinned devices holds -2, must be from -1 to 2147483647"),
        (["colocation", 0], 2**31, "op 0 (a): colocation groups holds 2147483648, must be from"),
        (["machine", "cpus"], None, "machine.cpus is None, must be a whole number"),
        (
            ["machine", "accelerator_memory"],
            -1,
            "accelerator memory is -1.0, must be a finite number >= 0",
        ),
        (
            ["machine", "gpus"],
            1,
            "machine: unknown key 'gpus': did you mean 'cpus'? known are accelerator_",
        ),
        (["specs", "forms", 0, "function"], 1, "specs.forms[0].function is 1, must be a text"),
        (
            ["specs", "forms", 0, "shape"],
            [None],
            "specs.forms[0].shape[0] is None, must be a whole number",
        ),
        (["specs", "form", 0], 9, "specs.form points outside the 3 forms"),
        (
            ["specs", "arity", 0],
            -1,
            "specs.arity must add up to the 7 inputs, and hold no number below 0",
        ),
        (
            ["specs", "arity", 0],
            9,
            "specs.arity must add up to the 7 inputs, and hold no number below 0",
        ),
        (["specs", "inputs", 0], -9, "specs.inputs points outside the 2 tiles"),
        (["specs", "inputs", 2], 3, "op 1 (b\\n): its spec reads op 3, but there is no edge from"),
        (
            ["specs", "tiles", 0],
            ["W", [0]],
            "specs.tiles[0] must be a tensor's name followed by one [start, stop] per",
        ),
        (["specs", "tiles", 0], ["V"], "op 0 (a): its spec reads tensor 'V', which is not in the "),
        (["specs", "tiles", 0, 1], [0, 5], "op 0 (a): its spec reads ((0, 5), (1, 4)) of tensor "),
        (["tensors", "x"], 3, "tensors.x: must be a mapping with dtype, init, role, shape"),
        (["tensors", "x", "shape"], [0], "tensor 'x' has shape (0,); every axis needs at least o"),
        (["outputs", 0, 0], 4, "output op 4 is missing; ids end at 3"),
        (["outputs", 0], [], "outputs[0] must start with the id of an op, each op once"),
        (
            ["outputs"],
            [[3, "y"], [3, "y"]],
            "outputs[1] must start with the id of an op, each op once",
        ),
    ],
)
def test_a_broken_rule_is_named_with_its_key_or_op(path, value, message):
    with pytest.raises(GraphError) as caught:
        read(change(path, value))
    assert str(caught.value).startswith(f"g.json: {message}")


def test_a_machine_without_devices_is_refused():
    document = change(["machine"], {"accelerators": 0, "cpus": 0, "accelerator_memory": 1})
    with pytest.raises(GraphError, match="it needs at least one device"):
        read(document)
    assert read(change(["machine", "cpus"], 0)).machine == Machine(2, 0, 16e9)


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_workloads_come_back_exactly(name):
    graph = workloads.make(name)
    assert_same(graph, read(written(graph)))
    assert_same(graph, from_networkx(to_networkx(graph)))
