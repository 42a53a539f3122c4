import json

import networkx as nx
import pytest
from graph_samples import TEXT, full_graph, layer_document

from doppler import load_graph, save_graph
from doppler.errors import DopplerError, GraphError, UnknownNameError
from doppler.graph.formats import doppler_json


@pytest.mark.parametrize("extension", [".json", ".txt", "", ".onnx"])
@pytest.mark.parametrize(
    ("content", "first"),
    [
        (doppler_json.write(full_graph()), "a"),
        (json.dumps(layer_document(), indent=2), "embed"),
        (TEXT, "op0"),
    ],
)
def test_content_tells_the_format_and_the_extension_does_not(tmp_path, extension, content, first):
    path = tmp_path / f"graph{extension}"
    path.write_text(content, encoding="utf-8-sig")  # a byte order mark does no harm
    graph = load_graph(path)
    assert graph.names[0] == first
    assert graph.source == str(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty; a graph file holds at least one op"),
        (b" \n\t\n", "the file is empty; a graph file holds at least one op"),
        (b"\x80\x02}q\x00.", "is not UTF-8 text, so it cannot be a graph file"),
        (b"PK\x03\x04\x00\x00", "line 1: not a graph file: neither JSON nor the node count "),
        (b"name: graph\n", "line 1: not a graph file: neither JSON nor the node count "),
        (b"-3\n", "line 1: not a graph file: neither JSON nor the node count "),
        (b"12", "line 1: the file ends here, but it needs a node count, input ids, edge sour"),
        (b'{"a":\n 1', "line 2 column 3: not valid JSON (Expecting ',' delimiter), so not"),
        (b"[1, 2]", "the JSON must be an object, not [1, 2]"),
        (b'{"nodes": []}', "this JSON is not a graph: it has neither the key 'format' of Doppler"),
        (b"[" * 200_000, "the JSON is nested too deep to be a graph"),
        (b'{"nodes":' * 200_000, "the JSON is nested too deep to be a graph"),
        (b'{"format": ' + b"9" * 5000 + b"}", "the JSON holds an integer with too many digits"),
        (
            json.dumps(nx.node_link_data(nx.DiGraph([(0, 1)]), edges="edges")).encode(),
            "this is networkx's node-link JSON; make a graph of it with networkx.node_link_graph",
        ),
        (
            json.dumps(nx.node_link_data(nx.DiGraph([(0, 1)]), edges="links")).encode(),
            "this is networkx's node-link JSON; make a graph of it with networkx.node_link_graph",
        ),
        (b'{"nodes": [], "nodes": []}', "key 'nodes' is given twice in one object"),
        (b'{"names": ["\\ud800"]}', "a text holds \\ud800, one half of a surrogate pair"),
        (b'{"format": "onnx"}', "format is 'onnx', must be 'doppler-graph'"),
    ],
)
def test_a_file_that_is_no_graph_is_refused(tmp_path, content, message):
    path = tmp_path / "graph"
    path.write_bytes(content)
    with pytest.raises(GraphError) as caught:
        load_graph(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_path_that_is_no_file_is_refused(tmp_path):
    with pytest.raises(GraphError, match="no such file; give the path of a graph file"):
        load_graph(tmp_path / "missing.json")
    with pytest.raises(GraphError, match="is a directory; give the path of a graph file"):
        load_graph(tmp_path)
    with pytest.raises(GraphError, match="cannot be read"):
        load_graph(tmp_path / ("x" * 5000))
    with pytest.raises(GraphError, match="is not a path"):
        load_graph("a\0b")


def test_saving_under_an_unknown_format_names_the_nearest(tmp_path):
    with pytest.raises(UnknownNameError, match="unknown graph format 'txt': did you mean 'text'"):
        save_graph(full_graph(), tmp_path / "g", format="txt")


def test_saving_where_nothing_can_be_written_is_refused(tmp_path):
    with pytest.raises(DopplerError, match="it is a directory"):
        save_graph(full_graph(), tmp_path)
    assert list(tmp_path.iterdir()) == []
