import json

import pytest
from graph_samples import assert_same, full_graph

from doppler import load_graph, save_graph


def test_every_field_survives_a_round_trip(tmp_path):
    graph = full_graph()
    path = save_graph(graph, tmp_path / "full.json")
    loaded = load_graph(path)
    assert_same(graph, loaded)
    assert loaded.source == str(path)
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN, no Infinity
