"""``doppler place``: results, files, and every way to refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from doppler import Graph, Placement, load_graph, methods, save_graph

SHARED = Path(__file__).parents[2].parent / "shared" / "graphs"


def test_json_says_how_good_it_is_and_how_it_came_about(cli, layer) -> None:
    done = cli("place", layer, "--cluster", "uniform:2", "--method", "heft", "--json").json()
    assert done["method"] == "heft"
    assert (done["graph"], done["cluster"]) == ("layer", "uniform:2")
    assert (done["ops"], done["devices"]) == (4, 2)
    assert done["lower_bound_s"] <= done["makespan_s"]
    assert done["makespan_s"] == pytest.approx(15.0)
    assert done["makespan_fifo_s"] >= done["lower_bound_s"]
    assert done["origin"]
    assert done["seconds"] >= 0
    assert done["output"] is None
    assert sum(use["ops"] for use in done["by_device"].values()) == 4


def test_the_file_is_the_placement_and_knows_its_graph(cli, layer, tmp_path) -> None:
    out = tmp_path / "new" / "placement.json"
    done = cli("place", layer, "-c", "uniform:2", "-m", "heft", "-o", out, "--json").json()
    assert done["output"] == str(out)
    placement = Placement.load(out)
    assert placement.devices.size == 4
    assert placement.info["makespan_s"] == done["makespan_s"]
    again = cli("simulate", layer, out, "-c", "uniform:2", "--json").json()
    assert again["makespan_s"] == done["makespan_s"]


def test_people_see_the_gap_and_the_load(cli, layer) -> None:
    done = cli("place", layer, "-c", "uniform:2", "-m", "round_robin")
    assert done.code == 0
    assert done.err == ""
    for word in ("layer on uniform:2", "makespan", "lower bound", "+", "gpu0", "gpu1", "load"):
        assert word in done.out


def test_a_workload_needs_no_file(cli) -> None:
    done = cli(
        *("place", "workload:chainmm?m=8&k=8&n=8&p=8&q=8&tiles.m=2&tiles.k=1"),
        *("-c", "p100x4", "-m", "round_robin", "--json"),
    ).json()
    assert done["graph"] == "chainmm"


def test_the_machine_of_the_graph_file_is_the_default(cli) -> None:
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is not there")
    graph = min((SHARED / "layers").glob("*.json"), key=lambda path: path.stat().st_size)
    done = cli("place", graph, "-m", "critical_path", "--budget", "0", "--json").json()
    assert (
        done["devices"] == load_graph(graph).machine.accelerators + load_graph(graph).machine.cpus
    )


@pytest.mark.slow
def test_the_learned_method_honors_seed_and_budget(cli, layer, policy) -> None:
    arguments = ("place", layer, "-c", "uniform:2", "--policy", policy, "--budget", "0", "--json")
    first, second = cli(*arguments).json(), cli(*arguments).json()
    for key in ("origin", "evaluations", "makespan_s", "expected_makespan_s"):
        assert first[key] == second[key]
    fifo = cli(*arguments, "--runtime", "fifo", "--budget", "0.2").json()
    assert fifo["runtime"] == "fifo"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "hefft"], "unknown method 'hefft': did you mean 'heft'?"),
        (["-c", "p100x5"], "unknown cluster 'p100x5': did you mean 'p100x4'?"),
        (["-c", "uniform:0"], "uniform:0"),
        (["-c", "missing.yaml"], "missing.yaml: no such file"),
        (["--budget", "-1"], "budget is -1.0, must be a finite number >= 0"),
        (["--budget", "nan"], "budget is nan"),
        (["--budget", "inf"], "budget is inf"),
        (["--budget", "much"], "'--budget'"),
        (["--seed", "-1"], "seed is -1"),
        (["--runtime", "fif"], "unknown runtime 'fif': did you mean 'fifo'?"),
        (["--no-such-option"], "No such option: --no-such-option; see 'doppler place --help'"),
    ],
)
def test_a_wrong_option_is_refused(cli, layer, tmp_path, arguments, message) -> None:
    out = tmp_path / "out.json"
    done = cli("place", layer, "-c", "uniform:2", "-m", "heft", "-o", out, *arguments)
    assert message in done.refusal()
    assert not out.exists()


def spoiled(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[: len(text) // 2], ""),
        (lambda text: "", "the file is empty"),
        (lambda text: "graph", "not a graph file"),
        (lambda text: "{}", "not a graph"),
        (lambda text: spoiled(text, '"src": [0', '"src": [3'), "cycle"),
        (lambda text: spoiled(text, '"dst": [1', '"dst": [0'), "itself"),
        (lambda text: spoiled(text, '"dst": [1', '"dst": [9'), "9"),
        (lambda text: spoiled(text, "7.25", "NaN"), ""),
        (lambda text: spoiled(text, "7.25", "1e999"), ""),
        (lambda text: spoiled(text, "7.25", "-7.25"), "-7.25"),
    ],
)
@pytest.mark.parametrize("json_too", [True, False])
def test_a_bad_graph_file_is_refused(cli, tmp_path, spoil, message, json_too) -> None:
    graph = Graph.from_arrays([0, 1, 2], [1, 2, 3], [7.25, 4, 5, 6], [1, 1, 1, 1])
    path = save_graph(graph, tmp_path / "graph.json")
    path.write_text(spoil(json.dumps(json.loads(path.read_text()))))
    out = tmp_path / "out.json"
    more = ["--json"] if json_too else []
    done = cli("place", path, "-c", "uniform:2", "-m", "heft", "-o", out, *more)
    refusal = done.refusal()
    assert str(path) in refusal
    assert message in refusal
    assert not out.exists()


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_no_file_and_a_directory_are_refused(cli, tmp_path, name) -> None:
    refusal = cli("place", tmp_path / name, "-c", "uniform:2", "-m", "heft").refusal()
    assert "no such file" in refusal or "is a directory" in refusal


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("workload:llama_layr", "did you mean 'llama_layer'?"),
        ("workload:ffnn?hiden=4", "did you mean 'hidden'?"),
        ("workload:ffnn?hidden=wide", "hidden is 'wide', must be a number"),
        ("workload:ffnn?hidden", "is not a list of key=value"),
        ("workload:ffnn?hidden=4&hidden=5", "hidden is given twice"),
        ("workload:ffnn?tiles=2&tiles.batch=2", "not both"),
        ("workload:ffnn?tiles.width=2", "unknown dimension of ffnn 'width'"),
        ("workload:ffnn?hidden=0", "must be a whole number >= 1"),
    ],
)
def test_a_wrong_workload_is_refused(cli, source, message) -> None:
    assert message in cli("place", source, "-c", "uniform:2", "-m", "heft").refusal()


def test_a_graph_without_a_machine_needs_a_cluster(cli, layer) -> None:
    assert "give one with --cluster" in cli("place", layer, "-m", "heft").refusal()


def test_what_does_not_fit_says_how_much_is_missing_where(cli, small_memory, tmp_path) -> None:
    out = tmp_path / "out.json"
    done = cli("place", "workload:ffnn", "-c", small_memory, "-m", "round_robin", "-o", out)
    assert "device 'gpu0' lacks" in done.refusal()
    assert not out.exists()


@pytest.mark.parametrize("content", [b"", b"no weights", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_corrupt_policy_is_refused(cli, layer, tmp_path, content) -> None:
    policy = tmp_path / "policy.safetensors"
    policy.write_bytes(content)
    done = cli("place", layer, "-c", "uniform:2", "--policy", policy, "--budget", "0")
    assert str(policy) in done.refusal()


def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    cli, layer, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(methods, "place", lambda *_, **__: pytest.fail("it placed"))
    for out in (tmp_path, layer / "below.json"):
        done = cli("place", layer, "-c", "uniform:2", "-m", "heft", "-o", out)
        assert "cannot be written" in done.refusal()


@pytest.mark.parametrize(
    ("n_ops", "edges", "devices"), [(1, [], 1), (1, [], 4), (3, [], 2), (4, [(0, 1)], 8)]
)
def test_small_and_disconnected_graphs_are_ordinary(cli, tmp_path, n_ops, edges, devices) -> None:
    src, dst = zip(*edges, strict=True) if edges else ((), ())
    graph = Graph.from_arrays(src, dst, np.ones(n_ops), np.ones(n_ops))
    path = save_graph(graph, tmp_path / "graph.json")
    for method in ("heft", "critical_path", "single_device"):
        done = cli(
            *("place", path, "-c", f"uniform:{devices}", "-m", method),
            *("--budget", "0", "--json"),
        ).json()
        assert done["makespan_s"] >= done["lower_bound_s"] * (1 - 1e-12)
