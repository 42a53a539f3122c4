"""`make bench`: what it prints and writes, and the speed of learning at a small scale."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("simpy", reason="SimPy comes with the extra dev")
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def run() -> Iterator[ModuleType]:
    """Return benchmarks/run.py, imported as `python benchmarks/run.py` would."""
    before = set(sys.modules)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("run")
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in {"run", "simulate", "train", "place", "figures"} - before:
            sys.modules.pop(name, None)


def test_learning_and_search_are_timed(run: ModuleType) -> None:
    case = run.train.case()
    found = run.train.episodes_per_second(case, updates=2)
    assert found["train_episodes_per_s"] == pytest.approx(32 / found["train_update_s"])
    assert found["train_ops"] == case.problem.n_ops
    assert run.train.rollouts_per_second(case, batches=2)["sampled_episodes_per_s"] > 0
    assert run.train.evaluations_per_second(case, 0.1)["search_evaluations_per_s"] > 0


def test_figures_stand_beside_their_bars(
    run: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = {
        "simulate": {"simulate_vs_simpy": 400.0, "simulate_exponent": 1.2},
        "train": {"train_episodes_per_s": 299.0, "train_ops": 229},
        "place": {"place_100k_s": 2.5, "place_exponent": 1.0, "place_sizes": {"1024": 0.1}},
    }
    for name, found in figures.items():
        monkeypatch.setattr(getattr(run, name), "measure", lambda found=found: found)
    monkeypatch.setattr(run, "REPORT", tmp_path / "reports" / "bench.json")
    run.main()
    written = json.loads((tmp_path / "reports" / "bench.json").read_text())
    for found in figures.values():
        assert found.items() <= written.items()
    assert {"processor", "cores", "load_average", "python", "versions"} <= written.keys()
    assert {name: bar["pass"] for name, bar in written["bars"].items()} == {
        "simulate_vs_simpy": True,
        "simulate_exponent": False,
        "train_episodes_per_s": False,
        "place_100k_s": True,
        "place_exponent": True,
    }
    assert written["bars"]["train_episodes_per_s"]["at_least"] == 300.0
    lines = capsys.readouterr().out.splitlines()
    verdicts = {line.split()[0]: "falls short" in line for line in lines[1:6]}
    assert verdicts["simulate_exponent"]
    assert verdicts["train_episodes_per_s"]
    assert sum(verdicts.values()) == 2
    assert lines[6].split() == ["train_ops", "229"]
