"""``doppler profile``: a cluster of this machine, written whole or not at all."""

from __future__ import annotations

import pytest

from doppler import Cluster

FFNN = "workload:ffnn?batch=16&inputs=8&hidden=16&outputs=8"


def test_json_holds_what_was_measured_and_place_reads_the_file(cli, tmp_path) -> None:
    path = tmp_path / "machine.yaml"
    done = cli("profile", "-o", path, "--graph", FFNN, "--repeats", 1, "--json").json()
    assert done["output"] == str(path)
    assert done["left_out"] == {}
    cluster = Cluster.load(path)
    assert list(done["devices"]) == [device.name for device in cluster.devices] == ["cpu0", "cpu1"]
    for device in cluster.devices:
        told = done["devices"][device.name]
        assert told["flops"] == device.flops
        assert {name: t["seconds"] for name, t in told["measured"].items()} == device.measured
    placed = cli("place", FFNN, "--cluster", path, "--method", "heft", "--json").json()
    assert placed["cluster"] == cluster.name
    least = min(cluster.devices[0].measured.values())
    assert placed["makespan_s"] >= least


def test_people_see_devices_links_and_what_is_missing(cli, tmp_path) -> None:
    path = tmp_path / "machine.yaml"
    # Far more than the budget holds.
    large = "workload:chainmm?m=40000&tiles=1"
    done = cli("profile", "-o", path, "--repeats", 1, "--budget", 20, "-g", FFNN, "-g", large)
    assert done.code == 0, done.err
    for word in ("FLOP/s", "cpu0 to cpu1", "not measured", "einsum(40000x20000,20000x20000)"):
        assert word in done.out
    assert Cluster.load(path).devices[0].measured


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "gpu"], "unknown backend 'gpu'"),
        (["--devices", 0], "cpu: 0 devices, must be from 1 to 1024"),
        (["--repeats", 0], "repeats is 0"),
        (["--budget", "nan"], "budget is nan"),
        (["--graph", "workload:ffn"], "unknown workload 'ffn': did you mean 'ffnn'"),
        (["--graph", "none.json"], "none.json: no such file"),
    ],
)
def test_a_wrong_option_is_refused(cli, tmp_path, arguments, message) -> None:
    path = tmp_path / "machine.yaml"
    assert message in cli("profile", "-o", path, *arguments).refusal()
    assert not path.exists()


def test_graphs_without_executable_ops_are_refused(cli, layer, tmp_path) -> None:
    path = tmp_path / "machine.yaml"
    refusal = cli("profile", "-o", path, "--graph", layer).refusal()
    assert "has no executable ops to measure" in refusal
    assert not path.exists()


def test_a_path_that_cannot_be_written_is_told_first(cli, tmp_path) -> None:
    refusal = cli("profile", "-o", tmp_path, "--backend", "nonsense").refusal()
    assert "cannot be written (it is a directory)" in refusal
    assert "-o" in cli("profile").refusal() or "--output" in cli("profile").refusal()
