"""`make bench`: what it prints and writes, and every figure at a small scale."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from doppler import Placement, execute
from doppler.graph.execution import make_tensors, run_sequential

pytest.importorskip("simpy", reason="SimPy comes with the extra dev")
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
MODULES = {"run", "simulate", "train", "place", "engine", "peers", "figures"}
FIGURES: dict[str, dict[str, Any]] = {
    "simulate": {"simulate_vs_simpy": 400.0, "simulate_exponent": 1.2},
    "train": {"train_episodes_per_s": 299.0, "train_ops": 229},
    "place": {
        "place_100k_s": 2.5,
        "place_exponent": 1.0,
        "place_sizes": {"1024": 0.1},
        "place_1m_s": 11.0,
        "place_1m_exponent": 1.05,
        "place_1m_peak_gb": 4.5,
    },
}
ENGINE = {
    "overhead_us": 20.0,
    "ray_overhead_us": 500.0,
    "dask_overhead_us": 500.0,
    "ray_ratio": 25.0,
    "dask_ratio": 25.0,
    "two_device_speedup": 1.9,
}
# As `python benchmarks/engine.py` measures, but smaller.
SMALL = """
import json, sys
sys.path.insert(0, sys.argv[1])
import engine, on_dask, on_ray
folders = []
for runner in (on_ray.RayRunner, on_dask.DaskRunner):
    def leave(self, *error, leave=runner.__exit__):
        folders.append(self.folder)
        leave(self, *error)
    runner.__exit__ = leave
figures = engine.overhead(n_ops=60, width=10, repeats=2, warm_up=1)
figures |= engine.two_devices(length=3, size=64, repeats=2, warm_up=1)
print(json.dumps({**figures, "folders": folders}))
"""


@pytest.fixture
def run() -> Iterator[ModuleType]:
    """Return benchmarks/run.py, imported as `python benchmarks/run.py` would."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("run")
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in MODULES - before:
            sys.modules.pop(name, None)


def test_learning_and_search_are_timed(run: ModuleType) -> None:
    case = run.train.case()
    found = run.train.episodes_per_second(case, updates=2)
    assert found["train_episodes_per_s"] == pytest.approx(32 / found["train_update_s"])
    assert found["train_ops"] == case.problem.n_ops
    assert run.train.rollouts_per_second(case, batches=2)["sampled_episodes_per_s"] > 0
    assert run.train.evaluations_per_second(case, 0.1)["search_evaluations_per_s"] > 0


def _replace_measurements(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch, report: Path, missing: list[str]
) -> None:
    for name, found in {**FIGURES, "engine": ENGINE}.items():
        monkeypatch.setattr(getattr(run, name), "measure", lambda found=found: found)
    monkeypatch.setattr(run.engine, "missing_peers", lambda: missing)
    monkeypatch.setattr(run, "REPORT", report)


def test_figures_stand_beside_their_bars(
    run: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = tmp_path / "reports" / "bench.json"
    _replace_measurements(run, monkeypatch, report, ["ray"])
    run.main()
    written = json.loads(report.read_text())
    for found in FIGURES.values():
        assert found.items() <= written.items()
    assert {"processor", "cores", "load_average", "python", "versions"} <= written.keys()
    assert {name: bar["pass"] for name, bar in written["bars"].items()} == {
        "simulate_vs_simpy": True,
        "simulate_exponent": False,
        "train_episodes_per_s": False,
        "place_100k_s": True,
        "place_exponent": True,
        "place_1m_s": True,
        "place_1m_exponent": True,
        "place_1m_peak_gb": False,
    }
    assert written["bars"]["train_episodes_per_s"]["at_least"] == 300.0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    verdicts = {line.split()[0]: "falls short" in line for line in lines[1:9]}
    assert verdicts["simulate_exponent"]
    assert verdicts["train_episodes_per_s"]
    assert verdicts["place_1m_peak_gb"]
    assert sum(verdicts.values()) == 3
    assert lines[9].split() == ["train_ops", "229"]
    assert "not measured: the engine; ray not installed: say pip install" in printed.err
    assert not any(key.startswith("engine_") for key in written)


def test_engine_is_measured_where_its_peers_are_installed(
    run: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _replace_measurements(run, monkeypatch, tmp_path / "bench.json", [])
    monkeypatch.setattr(run.engine, "PEERS", ())
    run.main()
    written = json.loads((tmp_path / "bench.json").read_text())
    assert FIGURES["simulate"].items() <= written.items()
    assert {f"engine_{key}": value for key, value in ENGINE.items()}.items() <= written.items()
    assert written["bars"]["engine_ray_ratio"] == {"at_least": 10.0, "pass": True}
    assert written["bars"]["engine_dask_ratio"] == {"at_least": 30.0, "pass": False}
    assert "engine_two_device_speedup" in capsys.readouterr().out


def test_trivial_ops_are_all_needed(run: ModuleType) -> None:
    graph = run.engine.trivial_graph(n_ops=60, width=10)
    assert graph.n_ops == 60
    assert list(graph.outputs) == list(range(50, 60))
    assert set(graph.src.tolist()) == set(range(50))
    assert (graph.dst // 10 == graph.src // 10 + 1).all()
    assert {spec.function for spec in graph.specs} == {"relu", "add"}


def test_chains_share_nothing(run: ModuleType) -> None:
    graph = run.engine.halves_graph(length=3, size=8)
    assert graph.src.tolist() == [0, 1, 3, 4]
    assert graph.dst.tolist() == [1, 2, 4, 5]
    results = run_sequential(graph, make_tensors(graph))
    assert sorted(results) == [2, 5]
    assert not results[2].equal(results[5])


def test_engine_runs_are_timed_and_checked(run: ModuleType) -> None:
    engine = run.engine
    graph = engine.trivial_graph(n_ops=60, width=10)
    tensors = make_tensors(graph)
    devices = np.random.default_rng(0).integers(0, 2, graph.n_ops)
    work = engine.Work(graph, Placement(devices), tensors)
    expected = run_sequential(graph, tensors)
    with engine.DopplerRunner(work) as runner:
        taken = engine.timed(runner, expected, warm_up=1, repeats=3)
        assert len(taken) == 3
        assert all(
            0 < makespan <= seconds
            for makespan, seconds in zip(runner.makespans[1:], taken, strict=True)
        )
        expected[50] = expected[50] + 1
        with pytest.raises(AssertionError, match="DopplerRunner: outputs differ"):
            engine.timed(runner, expected, warm_up=0, repeats=1)
    moved = execute(graph, work.placement, engine.CpuBackend(2), tensors=tensors).trace.transfer_op
    assert len(moved) == work.transfers


def test_second_device_is_timed(run: ModuleType) -> None:
    found = run.engine.two_devices(length=2, size=16, repeats=2, warm_up=1)
    assert found["products"] == 4
    assert found["two_device_speedup"] == found["one_device_s"] / found["two_device_s"]
    assert found["two_thread_speedup"] == found["one_thread_s"] / found["two_thread_s"]


def test_missing_peer_is_named(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run.engine, "PEERS", ("ray", "no_such_peer", "json"))
    monkeypatch.setattr(run.engine, "find_spec", lambda name: None if name != "json" else name)
    assert run.engine.main(["--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "error: ray and no_such_peer not installed: say pip install '.[bench]'\n"
    )


@pytest.mark.parametrize("as_json", [True, False])
def test_engine_figures_are_printed(
    run: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    as_json: bool,
) -> None:
    monkeypatch.setattr(run.engine, "PEERS", ())
    monkeypatch.setattr(run.engine, "measure", lambda: ENGINE)
    assert run.engine.main(["--json"] if as_json else []) == 0
    out = capsys.readouterr().out
    if as_json:
        printed = json.loads(out)
        assert ENGINE.items() <= printed.items()
        assert not printed["bars"]["dask_ratio"]["pass"]
    else:
        assert out.splitlines()[1].split()[:5] == ["ray_ratio", "25", ">=", "10", "pass"]
        assert "falls short" in out.splitlines()[2]


@pytest.mark.slow
def test_peers_run_the_same_graph_and_leave_nothing() -> None:
    for peer in ("ray", "distributed"):
        pytest.importorskip(peer, reason="Ray and Dask come with the extra bench")
    mark = uuid.uuid4().hex
    ended = subprocess.run(
        [sys.executable, "-c", SMALL, str(BENCHMARKS)],
        env={**os.environ, "DOPPLER_TEST_MARK": mark},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["ops"] == 60
    assert found["ray_ratio"] == found["ray_overhead_us"] / found["overhead_us"]
    assert found["dask_ratio"] == found["dask_overhead_us"] / found["overhead_us"]
    assert [Path(folder).name[:3] for folder in found["folders"]] == ["ray", "das"]
    assert not [folder for folder in found["folders"] if Path(folder).exists()]
    deadline = time.monotonic() + 20
    while left := _processes_with(mark):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.2)


def _processes_with(mark: str) -> list[str]:
    """Command lines of the processes whose environment holds a mark; none without /proc."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found
