"""Whatever a file holds, loading it gives a graph or one line of GraphError."""

import copy
import json
from typing import Any

import pytest
from graph_samples import TEXT, full_graph, layer_document
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doppler import Graph, load_graph
from doppler.errors import GraphError
from doppler.graph.formats import doppler_json

DOCUMENTS = {
    "doppler": json.loads(doppler_json.write(full_graph())),
    "dnn-partitioning": layer_document(),
}
TEXTS = {
    "doppler": doppler_json.write(full_graph()),
    "dnn-partitioning": json.dumps(layer_document()),
    "text": TEXT,
}

fuzz = settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])

odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10),
    st.sampled_from([2**31, 2**53, 2**63, 2**64, -(2**63), 10**12, 10**30, 10**400]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(
        [[], {}, [[]], [None], [1], ["a"], {"values": [1], "index": [0]}, "\n", "x" * 99]
    ),
)


def places(value, path=()):
    yield path
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        yield from places(child, (*path, key))


@st.composite
def mutated(draw, original):
    document = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(document))))
        if not path:
            continue
        at = document
        for key in path[:-1]:
            at = at[key]
        action = draw(st.sampled_from(["replace", "delete", "repeat", "swap"]))
        if action == "replace":
            at[path[-1]] = draw(odd)
        elif action == "delete":
            del at[path[-1]]
        elif action == "swap":
            other = draw(st.sampled_from(list(at) if isinstance(at, dict) else range(len(at))))
            at[path[-1]], at[other] = at[other], at[path[-1]]
        elif isinstance(at, list):
            at.append(copy.deepcopy(at[path[-1]]))
        else:
            at[draw(st.text(max_size=5))] = copy.deepcopy(at[path[-1]])
    return document


def loads_or_says_why(path, content):
    path.write_bytes(content)
    try:
        assert isinstance(load_graph(path), Graph)
    except GraphError as error:
        message = str(error)
        assert message.startswith(str(path))
        assert len(message.splitlines()) == 1
        assert len(message) < len(str(path)) + 500


@pytest.mark.parametrize("format", DOCUMENTS)
def test_mutated_json(tmp_path, format):
    @fuzz
    @given(mutated(DOCUMENTS[format]))
    def check(document):
        loads_or_says_why(tmp_path / "graph", json.dumps(document).encode())

    check()


@pytest.mark.parametrize("format", TEXTS)
def test_mutated_bytes(tmp_path, format):
    original = TEXTS[format].encode()
    spot = st.integers(0, len(original))
    piece = st.one_of(
        st.binary(max_size=3), st.sampled_from([b",", b"\n", b"-", b"9", b"e9", b"nan"])
    )

    @fuzz
    @given(st.lists(st.tuples(spot, spot, piece), min_size=1, max_size=3))
    def check(edits):
        content = original
        for start, length, new in edits:
            content = content[:start] + new + content[start + length % 8 :]
        loads_or_says_why(tmp_path / "graph", content)

    check()


@pytest.mark.parametrize("format", TEXTS)
def test_every_truncation(tmp_path, format):
    original = TEXTS[format].encode()
    for end in range(0, len(original), 7):
        loads_or_says_why(tmp_path / "graph", original[:end])


@pytest.mark.parametrize("format", DOCUMENTS)
def test_a_truncated_json_file_never_loads(tmp_path, format):
    path = tmp_path / "graph"
    path.write_text(TEXTS[format].strip()[:-1])
    with pytest.raises(GraphError, match="it may be cut short"):
        load_graph(path)
