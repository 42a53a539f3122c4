"""benchmarks/models.py: layer maps of accelerate as placements, and its report."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from doppler import Cluster, Graph, Placement, Problem, simulate

ROOT = Path(__file__).parents[1]


def _imported(name: str) -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def maps() -> Iterator[ModuleType]:
    yield from _imported("layer_maps")


def test_a_map_places_ops_by_the_longest_path_that_holds_them(maps: ModuleType) -> None:
    names = ["scale", "a.linear", "a.b.linear", "add", "c.linear", "output"]
    graph = Graph.from_arrays(
        [0, 1, 2, 3, 4], [1, 2, 3, 4, 5], np.ones(6), np.ones(6), names=names, meta_ops=names
    )
    placement = maps.by_modules(graph, {"a": 1, "a.b": 2, "c": 3})
    # What lies in no module runs where its input is made, or where it is read.
    assert placement.devices.tolist() == [1, 1, 2, 2, 3, 3]
    assert placement.priority.tolist() == [0, 1, 2, 3, 4, 5]
    assert maps.by_modules(graph, {"": 4}).devices.tolist() == [4] * 6


def test_accelerate_maps_whole_blocks(maps: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
    roomy = Cluster.uniform(2, memory=1e9)
    assert maps.device_map(model, roomy, maps.FILLED) == {"": 0}
    balanced = maps.device_map(model, roomy)
    assert set(balanced.values()) == {0, 1}
    assert sorted(balanced.values()) == list(balanced.values())
    # What does not fit would be kept on the disk.
    assert maps.device_map(model, Cluster.uniform(2, memory=4 * 64 * 65 * 2)) is None


def test_data_parallel_gives_each_device_its_share(maps: ModuleType) -> None:
    chains = Graph.from_arrays(
        [0, 2, 4, 6],
        [1, 3, 5, 7],
        np.ones(8),
        np.full(8, 10.0),
        meta_ops=["a", "b"] * 4,
        shards=[0, 0, 1, 1, 2, 2, 3, 3],
    )
    problem = Problem(chains, Cluster.uniform(2))
    placement = maps.data_parallel(problem, 4)
    assert simulate(problem, placement).makespan == pytest.approx(4.0)


@pytest.fixture(scope="module")
def models() -> Iterator[ModuleType]:
    yield from _imported("models")


def test_a_model_is_placed_in_every_way_and_the_report_is_gone_on_with(
    models: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("accelerate")
    path = tmp_path / "models.json"
    where = ["--clusters", "a100x4", "--size", "tiny", "--budget", "0", "--output", str(path)]
    models.main(["simulate", "--examples", "mlp:model", *where])
    assert "mlp:model@a100x4: one device" in capsys.readouterr().out
    (row,) = json.loads(path.read_text())["simulated"]
    answers = row["answers"]
    own = answers.pop("doppler")["seconds"]
    assert set(answers) == {"one device", "auto", "balanced", "pipeline", "data parallel"}
    assert all(own <= each["seconds"] * (1 + 1e-9) for each in answers.values())
    models.main(["simulate", "--examples", "experts:model", "--kind", "training", *where])
    both = json.loads(path.read_text())["simulated"]
    assert [(each["example"], each["kind"]) for each in both] == [
        ("mlp:model", "batch"),
        ("experts:model", "training"),
    ]


def test_what_does_not_fit_is_said(models: ModuleType) -> None:
    graph = Graph.build(1, [], [], flops=[1.0], param_bytes=[6e9])
    problem = Problem(graph, Cluster.uniform(2, memory=4e9))
    found = models.answer(problem, Placement([0]))
    assert (found.seconds, found.note) == (None, "lacks 2.0 GB on a device")
    other = models.Answer(1.0)
    assert models.best([found, other, models.Answer(2.0)]) == other
    assert models.best([found]) == found


def test_a_damaged_report_is_one_line(
    models: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "models.json"
    path.write_text("[]")
    with pytest.raises(SystemExit):
        models.main(["run", "--output", str(path)])
    assert capsys.readouterr().err.count("\n") == 1
