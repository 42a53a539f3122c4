"""``doppler run``: measured runs, their checks, and what does not go together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from doppler import Placement
from doppler.engine import CpuSession
from doppler.viewer import load_chrome

FFNN = "workload:ffnn?batch=8&inputs=8&hidden=8&outputs=4&tiles=2"


@pytest.fixture
def ffnn(cli, tmp_path: Path) -> Path:
    """A placement of ``FFNN`` on two devices."""
    path = tmp_path / "ffnn.json"
    cli("place", FFNN, "-c", "uniform:2", "-m", "round_robin", "-o", path, "--json").json()
    return path


def test_json_holds_a_checked_run(cli, ffnn) -> None:
    done = cli("run", FFNN, ffnn, "--check", "--timeout", 60, "--json").json()
    assert done["backend"] == "cpu"
    assert done["makespan_s"] == done["makespans_s"][0] > 0
    assert done["check"]["largest_difference"] <= done["check"]["tolerance"]
    assert set(done["by_device"]) == {"cpu0", "cpu1"}
    assert sum(use["ops"] for use in done["by_device"].values()) == done["ops"]
    assert done["cluster"] is done["trace"] is None


def test_the_median_of_several_runs_counts(cli, ffnn) -> None:
    done = cli("run", FFNN, ffnn, "--repeat", 3, "--runtime", "fifo", "--json").json()
    assert len(done["makespans_s"]) == 3
    assert done["makespan_s"] == done["makespans_s"][1]


def test_text_says_where_and_how_long(cli, ffnn, tmp_path) -> None:
    done = cli("run", FFNN, ffnn, "--check", "--repeat", 2, "--trace", tmp_path / "trace.json")
    assert done.code == 0, done.err
    assert done.out.startswith("ffnn on cpu devices\n")
    assert "equal to the sequential run within" in done.out
    assert "2 runs" in done.out


def test_a_measured_trace_is_shown_beside_a_simulated_one(cli, ffnn, tmp_path) -> None:
    simulated, measured = tmp_path / "simulated.json", tmp_path / "measured.json"
    cli("simulate", FFNN, ffnn, "-c", "uniform:2", "--trace", simulated, "--json").json()
    cli("run", FFNN, ffnn, "--trace", measured, "--json").json()
    assert load_chrome(measured)[0].label == "cpu"
    assert json.loads(measured.read_text())["otherData"]["label"] == "cpu"
    both = cli("show", simulated, "--beside", measured, "--json").json()
    assert (both["label"], both["beside"][0]["label"]) == ("simulated", "cpu")
    page = tmp_path / "both.html"
    assert cli("show", simulated, "--beside", measured, "-o", page).code == 0
    html = page.read_text()
    assert html.index("simulated") < html.index("cpu0")
    text = cli("show", simulated, "--beside", measured).out
    assert text.index("simulated") < text.index("cpu0")
    timeline = ["--graph", FFNN, "-c", "uniform:2", "--timeline", "--beside", measured]
    assert cli("show", ffnn, *timeline, "--json").json()["beside"][0]["label"] == "cpu"


def test_only_traces_stand_beside_each_other(cli, layer, placement) -> None:
    refusal = cli("show", layer, "--beside", placement).refusal()
    assert "is a graph; --beside goes with a trace" in refusal


def test_an_emulated_run_takes_modeled_seconds(cli, layer, placement) -> None:
    arguments = ["--backend", "emulated", "-c", "uniform:2", "--time-scale", "1e-3"]
    done = cli("run", layer, placement, *arguments, "--json").json()
    assert (done["backend"], done["cluster"]) == ("emulated", "uniform:2")
    assert sum(use["busy_s"] for use in done["by_device"].values()) == pytest.approx(18.0)
    jittered = [
        cli("run", layer, placement, *arguments, "--jitter", 0.3, "--seed", seed, "--json").json()
        for seed in (1, 2)
    ]
    assert jittered[0]["makespan_s"] != jittered[1]["makespan_s"]


def test_an_output_that_differs_is_an_error(cli, ffnn, tmp_path, monkeypatch) -> None:
    launch = CpuSession.launch
    monkeypatch.setattr(
        CpuSession, "launch", lambda self, op, device: launch(self, op, device).mul(1.001)
    )
    trace = tmp_path / "trace.json"
    refusal = cli("run", FFNN, ffnn, "--check", "--trace", trace).refusal()
    assert "ffnn: result 'probabilities' differs from the sequential run by" in refusal
    assert not trace.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeat", 0], "--repeat is 0, must be a whole number >= 1"),
        (["--seed", -1], "--seed is -1, must be a whole number >= 0"),
        (["--timeout", 0], "timeout is 0.0, must be a number > 0"),
        (["--cluster", "uniform:2"], "go with --backend emulated"),
        (["--jitter", 0.1], "go with --backend emulated"),
        (["--backend", "emulated", "--check"], "the emulated backend computes nothing"),
        (["--backend", "gpu"], "did you mean 'cpu'? known are cpu, cuda, emulated"),
        (["--backend", "emulated"], "the graph file names no machine"),
        (["--runtime", "lifo"], "runtime 'lifo'"),
        (["--trace", "/"], "it is a directory"),
        (["--timeout", 1e300], "must be a number > 0 and <= "),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(cli, ffnn, arguments, message) -> None:
    assert message in cli("run", FFNN, ffnn, *arguments).refusal()


def test_a_graph_of_costs_alone_is_refused(cli, layer, placement) -> None:
    refusal = cli("run", layer, placement).refusal()
    assert "layer.txt: the graph has no executable ops" in refusal


def test_a_placement_of_another_graph_is_refused(cli, tmp_path) -> None:
    path = Placement([0]).save(tmp_path / "one.json")
    assert "places 1 ops, but graph 'ffnn' has" in cli("run", FFNN, path).refusal()


def test_a_file_to_read_is_not_written_over(cli, ffnn, tmp_path) -> None:
    graph, link = tmp_path / "graph.json", tmp_path / "link.json"
    cli("convert", FFNN, graph, "--json").json()
    link.symlink_to(ffnn)
    before = ffnn.read_bytes()
    for command in (
        ("run", graph, ffnn, "--trace", ffnn),
        ("run", graph, ffnn, "--trace", link),
        ("run", graph, ffnn, "--trace", graph),
        ("simulate", graph, ffnn, "-c", "uniform:2", "--trace", ffnn),
        ("place", graph, "-c", "uniform:2", "-o", graph),
        ("show", ffnn, "-o", ffnn),
    ):
        assert "it is one of the files to read" in cli(*command).refusal()
    assert ffnn.read_bytes() == before


def test_a_placement_on_more_devices_than_there_can_be_is_refused(cli, tmp_path) -> None:
    one = "workload:chainmm?m=2&n=2&k=2&p=2&q=2"
    size = cli("show", one, "--json").json()["ops"]
    path = Placement([0] * (size - 1) + [2**31 - 1]).save(tmp_path / "far.json")
    assert "2147483648 devices" in cli("run", one, path).refusal()


def test_every_seed_runs(cli, ffnn) -> None:
    cli("run", FFNN, ffnn, "--seed", 10**30, "--check", "--json").json()


@pytest.mark.slow
def test_giving_up_a_long_op_ends_the_process_in_one_line(cli, tmp_path) -> None:
    graph = "workload:chainmm?m=3000&n=3000&k=3000&p=3000&q=3000"
    path = tmp_path / "placement.json"
    cli("place", graph, "-c", "uniform:2", "-m", "round_robin", "-o", path, "--json").json()
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from doppler.cli import main; main()"),
            *("run", graph, str(path), "--timeout", "0.05"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2, done.stderr
    assert "took longer than 0.05 s" in done.stderr
    assert done.stderr.count("\n") == 1
