"""A profile is a cluster of this machine, and says where it comes from."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest
import yaml

from doppler import Cluster, Problem, workloads
from doppler.errors import ClusterError, EngineError, UnknownNameError
from doppler.graph.op_class import op_classes
from doppler.profiling import Profile, profile
from doppler.profiling.machine import find_devices, free_memory_of, memory_of


@pytest.fixture(scope="module")
def graph():
    return workloads.ffnn(16, 8, 16, 8)


@pytest.fixture(scope="module")
def measured(graph) -> Profile:
    before = threading.active_count()
    found = profile("cpu", 2, [graph], repeats=1, budget=30.0)
    assert threading.active_count() == before
    return found


def test_the_cluster_has_what_was_measured(measured: Profile, graph) -> None:
    cluster = measured.cluster
    assert cluster.name == "cpux2"
    assert [(device.name, device.kind) for device in cluster.devices] == [
        ("cpu0", "cpu"),
        ("cpu1", "cpu"),
    ]
    for device in cluster.devices:
        assert 1e6 < device.flops < 1e15
        assert 1e6 < device.memory_bandwidth < 1e15
        assert 0 < device.launch_overhead < 1
        assert 1e6 < device.memory < math.inf
        assert set(device.measured) == set(op_classes(graph))
    # Copies of one direction take turns, and no others.
    assert {link.channel for link in cluster.links} == {0, 1}
    assert measured.left_out == {}


def test_its_file_gives_the_same_problem(measured: Profile, graph, tmp_path: Path) -> None:
    path = measured.save(tmp_path / "machine.yaml")
    again = Cluster.load(path)
    assert again == measured.cluster
    problem = Problem(graph, again)
    assert problem.fingerprint == Problem(graph, measured.cluster).fingerprint
    expected = [measured.classes[0][name].seconds for name in op_classes(graph)]
    assert np.array_equal(problem.arrays.compute[:, 0], expected)


def test_the_file_says_where_it_comes_from(measured: Profile, tmp_path: Path) -> None:
    import torch

    source = yaml.safe_load(measured.save(tmp_path / "m.yaml").read_text())["source"]
    assert source == measured.source
    assert source.startswith("Measured 20")
    assert f"torch {torch.__version__}" in source
    assert "10 op classes of ffnn" in source


def test_as_json(measured: Profile) -> None:
    data = json.loads(json.dumps(measured.to_json(), allow_nan=False))
    assert set(data["devices"]) == {"cpu0", "cpu1"}
    assert len(data["devices"]["cpu0"]["measured"]) == 10
    assert [(link["source"], link["target"]) for link in data["links"]] == [
        ("cpu0", "cpu1"),
        ("cpu1", "cpu0"),
    ]


def test_one_device_and_no_graph() -> None:
    found = profile("cpu", 1, repeats=1)
    assert found.cluster.links == ()
    assert [device.name for device in found.cluster.devices] == ["cpu"]
    assert found.cluster.devices[0].measured == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": 0}, "cpu: 0 devices, must be from 1 to 1024"),
        ({"repeats": 0}, "profile: repeats is 0, must be at least 1"),
        ({"budget": 0.0}, "profile: budget is 0.0, must be a number of seconds > 0"),
        ({"budget": math.nan}, "profile: budget is nan, must be a number of seconds > 0"),
    ],
)
def test_messages(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        profile("cpu", **arguments)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_unknown_backends_and_missing_gpus() -> None:
    import torch

    with pytest.raises(UnknownNameError, match="unknown backend 'cud': did you mean 'cuda'"):
        find_devices("cud", None)
    if not torch.cuda.is_available():
        with pytest.raises(EngineError, match="torch finds no GPU on this machine; use"):
            find_devices("cuda", None)


def test_devices_of_the_cpu_share_its_memory() -> None:
    one, two = memory_of(["cpu"]), memory_of(["cpu", "cpu"])
    assert two == [one[0] / 2] * 2
    assert 0 < free_memory_of(["cpu"])[0] <= one[0]
