"""The placements of a version: each is known by the graph that it is of."""

from __future__ import annotations

from pathlib import Path

import pytest

from doppler import Placement, workloads
from doppler.errors import RegistryError
from doppler.graph.fingerprint import fingerprint
from doppler.registry import is_placement, placement_name, read_placements

GRAPHS = [workloads.chainmm(8, 8, 8, 8, 8, tiles=tiles) for tiles in (1, 2)]


def placed(number: int, path: Path) -> Path:
    graph = GRAPHS[number]
    return Placement([0] * graph.n_ops, None, {"graph_fingerprint": fingerprint(graph)}).save(path)


def test_each_graph_finds_its_own(tmp_path: Path) -> None:
    files = {
        "policy.safetensors": tmp_path / "not read",
        "placements.txt": tmp_path / "not read",
        "placement.json": placed(0, tmp_path / "a"),
        "placement-two.json": placed(1, tmp_path / "b"),
    }
    found = read_placements(files)
    assert {name for name, _ in found.values()} == {"placement.json", "placement-two.json"}
    for graph in GRAPHS:
        assert found[fingerprint(graph)][1].devices.size == graph.n_ops


def test_one_that_says_of_no_graph_is_refused(tmp_path: Path) -> None:
    path = Placement([0, 1]).save(tmp_path / "placement.json")
    with pytest.raises(RegistryError, match=r"placement.json: does not say which graph it is of"):
        read_placements({"placement.json": path})


def test_names() -> None:
    name = placement_name(GRAPHS[0])
    assert name == "placement-chainmm.json"
    assert is_placement(name)
    other = placement_name(GRAPHS[1], [name])
    assert other == f"placement-chainmm-{fingerprint(GRAPHS[1])[:8]}.json"
    assert is_placement(other)
    assert not is_placement("placementjson")
