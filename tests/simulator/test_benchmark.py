"""The benchmark's SimPy program is the same model, and its figures have their keys."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from doppler import Cluster, Problem

pytest.importorskip("simpy", reason="SimPy comes with the extra dev")


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Return benchmarks/simulate.py, imported as `python benchmarks/simulate.py` would."""
    folder = str(Path(__file__).parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        yield importlib.import_module("simulate")
    finally:
        sys.path.remove(folder)
        for name in ("simulate", "figures"):
            sys.modules.pop(name, None)


def test_simpy_finds_the_same_makespans(benchmark: ModuleType) -> None:
    problem = Problem(benchmark.layer_graph(), Cluster.uniform(4))
    rng = np.random.default_rng(5)
    benchmark.check_same_model(problem, rng.integers(0, 4, (10, problem.n_ops)))


def test_figures(benchmark: ModuleType) -> None:
    beside = benchmark.beside_simpy(rounds=1, batch=4, slow=2)
    assert beside["simulate_vs_simpy"] > 0
    assert {"simulate_simpy_s", "simulate_layer_s", "simulate_layer_ops"} < {*beside}
    growing = benchmark.against_size(layers=(1, 2), repeats=1)
    assert np.isfinite(growing["simulate_exponent"])
    assert list(growing["simulate_sizes"]) == ["1024", "2048"]


def test_channels_are_not_modeled(benchmark: ModuleType) -> None:
    problem = Problem(benchmark.layer_graph(), Cluster.load("p100x4"))
    with pytest.raises(ValueError, match="this model has no channels"):
        benchmark.SimPyModel(problem)
