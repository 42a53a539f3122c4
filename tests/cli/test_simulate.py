"""``doppler simulate``: the run, its trace, and placements that do not belong."""

from __future__ import annotations

import json

import pytest

from doppler import Graph, Placement, save_graph
from doppler.viewer import load_chrome


def test_json_holds_the_run(cli, layer, placement) -> None:
    done = cli("simulate", layer, placement, "-c", "uniform:2", "--json").json()
    assert done["makespan_s"] == pytest.approx(15.0)
    assert done["runtime"] == "priority"
    assert done["trace"] is None
    assert sum(use["busy_s"] for use in done["by_device"].values()) == pytest.approx(18.0)


def test_jitter_follows_its_seed(cli, layer, placement) -> None:
    def makespan(*more: object) -> float:
        arguments = ("simulate", layer, placement, "-c", "uniform:2", "--json", *more)
        return cli(*arguments).json()["makespan_s"]

    assert makespan("--jitter", 0.1, "--seed", 1) == makespan("--jitter", 0.1, "--seed", 1)
    assert makespan("--jitter", 0.1, "--seed", 1) != makespan("--jitter", 0.1, "--seed", 2)


def test_the_trace_opens_in_chrome_and_in_show(cli, layer, placement, tmp_path) -> None:
    path = tmp_path / "trace.json"
    done = cli("simulate", layer, placement, "-c", "uniform:2", "--trace", path, "--json").json()
    assert done["trace"] == str(path)
    assert json.loads(path.read_text())["traceEvents"]
    trace, _ = load_chrome(path)
    assert trace.makespan == pytest.approx(done["makespan_s"])
    assert "makespan" in cli("show", path).out


def test_people_see_the_makespan_and_the_devices(cli, layer, placement) -> None:
    done = cli("simulate", layer, placement, "-c", "uniform:2", "--runtime", "fifo")
    assert done.code == 0
    for word in ("15.00 s", "fifo", "gpu1"):
        assert word in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "-5"], "seed is -5, must be a whole number >= 0"),
        (["--jitter", "nan"], "jitter is nan, must be a number from 0 to 10"),
        (["--jitter", "-0.1"], "jitter is -0.1"),
        (["--runtime", "prio"], "unknown runtime 'prio'"),
        (["--cluster", "uniform:1"], "is on device 1, but the last device is 0"),
    ],
)
def test_a_wrong_option_is_refused(cli, layer, placement, tmp_path, arguments, message) -> None:
    trace = tmp_path / "trace.json"
    done = cli("simulate", layer, placement, "-c", "uniform:2", "--trace", trace, *arguments)
    assert message in done.refusal()
    assert not trace.exists()


def test_a_placement_of_another_graph_is_refused(cli, placement, tmp_path) -> None:
    arrays = [0, 0, 1, 2], [1, 2, 3, 3], [3, 4, 5, 7], [1, 1, 1, 1]
    same_size = save_graph(Graph.from_arrays(*arrays), tmp_path / "other.json")
    smaller = save_graph(Graph.from_arrays([0], [1], [1, 1], [1, 1]), tmp_path / "smaller.json")
    for graph, message in ((same_size, "was made for another graph"), (smaller, "places 4 ops")):
        done = cli("simulate", graph, placement, "-c", "uniform:2")
        assert message in done.refusal()


def test_the_same_graph_in_another_format_is_the_same_graph(
    cli, layer, placement, tmp_path
) -> None:
    converted = tmp_path / "renamed.json"
    cli("convert", layer, converted, "--json").json()
    done = cli("simulate", converted, placement, "-c", "uniform:2", "--json").json()
    assert done["makespan_s"] == pytest.approx(15.0)


@pytest.mark.parametrize("content", ["", "{", "{}", '{"format": "doppler-placement"}', "[1, 2]"])
def test_a_damaged_placement_is_refused(cli, layer, tmp_path, content) -> None:
    path = tmp_path / "placement.json"
    path.write_text(content)
    assert str(path) in cli("simulate", layer, path, "-c", "uniform:2").refusal()


def test_a_placement_that_does_not_fit_is_refused(cli, small_memory, tmp_path) -> None:
    source = "workload:ffnn"
    ops = cli("show", source, "--json").json()["ops"]
    path = Placement([0] * ops).save(tmp_path / "placement.json")
    assert "device 'gpu0' lacks" in cli("simulate", source, path, "-c", small_memory).refusal()
