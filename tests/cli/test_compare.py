"""``doppler compare``: one table, and methods that do not fit."""

from __future__ import annotations

import pytest

from doppler import Graph, save_graph
from doppler.methods import HEURISTICS


def test_json_ranks_the_methods(cli, layer) -> None:
    done = cli(
        *("compare", layer, "-c", "uniform:2", "--budget", "0.05"),
        *("--methods", ",".join(HEURISTICS), "--json"),
    ).json()
    assert set(done["methods"]) == set(HEURISTICS)
    makespans = [result["expected_makespan_s"] for result in done["methods"].values()]
    assert makespans == sorted(makespans)
    assert (done["jitter"], done["judged_by"]) == (0.1, "expected_makespan_s")
    assert next(iter(done["methods"])) == done["winner"]
    assert done["failures"] == {}
    for result in done["methods"].values():
        assert result["makespan_s"] >= done["lower_bound_s"] * (1 - 1e-12)
        assert result["makespan_std_s"] > 0
        assert result["expected_fifo_s"] > 0


def test_without_jitter_the_makespan_decides(cli, layer) -> None:
    options = ("-c", "uniform:2", "--budget", 0, "--methods", "heft,round_robin", "--jitter", 0)
    done = cli("compare", layer, *options, "--json").json()
    assert (done["jitter"], done["judged_by"]) == (0.0, "makespan_s")
    makespans = [result["makespan_s"] for result in done["methods"].values()]
    assert makespans == sorted(makespans)
    fifo = cli("compare", layer, *options, "--runtime", "fifo", "--json").json()
    assert fifo["runtime"] == "fifo"
    for result in fifo["methods"].values():
        assert result["makespan_s"] == result["makespan_fifo_s"] == result["expected_fifo_s"]


def test_people_see_one_line_a_method(cli, layer) -> None:
    done = cli("compare", layer, "-c", "uniform:2", "--budget", 0, "--methods", "heft,round_robin")
    assert done.code == 0
    assert done.err == ""
    lines = [line for line in done.out.splitlines() if line.startswith(("heft", "round_robin"))]
    assert len(lines) == 2
    assert "expected, jitter 0.1" in " ".join(done.out.split())


def test_a_method_that_does_not_fit_is_part_of_the_answer(cli, tmp_path) -> None:
    # One device does not hold everything, two do.
    cluster = tmp_path / "halves.yaml"
    cluster.write_text(
        "devices:\n"
        "  - {name: gpu, count: 2, flops: 1e12, memory_bandwidth: 1e11, memory: 9e5,"
        " launch_overhead: 1e-6}\n"
        "links:\n"
        "  - {between: [gpu, gpu], bandwidth: 1e10, latency: 1e-6, channel: pair}\n"
    )
    source = "workload:ffnn?batch=8&inputs=128&hidden=512&outputs=128&tiles=2"
    methods = ("--methods", "single_device,round_robin", "--budget", "0")
    done = cli("compare", source, "-c", cluster, *methods, "--json").json()
    assert set(done["methods"]) == {"round_robin"}
    assert "lacks" in done["failures"]["single_device"]
    assert "does not fit" in cli("compare", source, "-c", cluster, *methods).out


def test_if_nothing_fits_it_is_an_error(cli, small_memory) -> None:
    done = cli("compare", "workload:ffnn", "-c", small_memory, "--methods", "heft,round_robin")
    assert "lacks" in done.refusal()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "heft,hefft"], "unknown method 'hefft': did you mean 'heft'?"),
        (["--methods", ""], "unknown method ''"),
        (["--budget", "-1", "--methods", "heft"], "budget is -1.0"),
        (["--jitter", "-1", "--methods", "heft"], "jitter is -1.0"),
        (["--runtime", "lifo", "--methods", "heft"], "runtime 'lifo'"),
        (["--policy", "missing.safetensors"], "missing.safetensors: no such policy file"),
    ],
)
def test_a_wrong_option_is_refused(cli, layer, arguments, message) -> None:
    assert message in cli("compare", layer, "-c", "uniform:2", *arguments).refusal()


@pytest.mark.slow
def test_the_learned_method_is_compared_too(cli, layer, policy) -> None:
    done = cli(
        *("compare", layer, "-c", "uniform:2", "--budget", "0.2", "--policy", policy),
        *("--methods", "doppler,heft", "--json"),
    ).json()
    assert done["methods"]["doppler"]["makespan_s"] == pytest.approx(15.0)


@pytest.mark.parametrize("seconds", [0.0, 1e300])
def test_seconds_of_zero_or_beyond_reason_are_compared(cli, tmp_path, seconds) -> None:
    path = tmp_path / "extreme.json"
    save_graph(Graph.from_arrays([0, 1], [1, 2], [seconds] * 3, [1, 1, 1]), path)
    options = ("-c", "uniform:2", "--budget", "0", "--methods", "heft,round_robin")
    figures = cli("compare", path, *options, "--json").json()["methods"]
    assert figures["heft"]["makespan_s"] == pytest.approx(3 * seconds)
    assert "heft" in cli("compare", path, *options).out
