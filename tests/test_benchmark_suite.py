"""`make benchmark-suite`: the cases that it chooses, its report, and going on with one."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from doppler import Cluster, Graph, Placement, Problem, save_graph
from doppler.cases import Case
from doppler.errors import DopplerError
from doppler.params import load_params

ROOT = Path(__file__).parents[1]
SMALL = ("--budget", "0", "--methods", "heft,round_robin", "--cases", "ffnn@p100x4")


@pytest.fixture(scope="module")
def suite() -> Iterator[ModuleType]:
    """Return benchmarks/suite.py, imported as `python benchmarks/suite.py` would."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("suite")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
        sys.modules.pop("suite", None)


def test_all_suites_and_the_layer_graphs_where_they_are(suite: ModuleType, tmp_path: Path) -> None:
    params = load_params(ROOT / "params.yaml")
    (tmp_path / "net.json").write_text("{}")
    found = suite.chosen_cases(params, "*", tmp_path)
    assert {name for name, _ in found} == {"suite", "large", "operators"}
    assert found[-1] == ("operators", Case("net", suite.OWN_MACHINE))
    assert suite.chosen_cases(params, "*", tmp_path / "none") == found[:-1]
    assert {case.graph for _, case in suite.chosen_cases(params, "lstm*@*", tmp_path)} == {
        "lstm_grid"
    }
    assert len([case for name, case in found if name == "large"]) == 11
    assert any(
        Cluster.load(case.cluster).n_devices == 64 for name, case in found if name == "large"
    )


def test_a_file_of_costs_brings_its_machine(suite: ModuleType, tmp_path: Path) -> None:
    graph = Graph.from_arrays([0], [1], [1.0, 1.0], [0.5, 0.5])
    save_graph(graph, tmp_path / "net.json")
    params = load_params(ROOT / "params.yaml")
    with pytest.raises(DopplerError, match="names no machine"):
        suite.problem_of(Case("net", suite.OWN_MACHINE), params, tmp_path)


def test_a_report_is_written_and_gone_on_with(
    suite: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = tmp_path / "suite.json", tmp_path / "placements"
    where = ("--output", str(path), "--placements", str(folder))
    suite.main([*SMALL, *where])
    assert "ffnn@p100x4 seed 0: expected" in capsys.readouterr().out
    first = json.loads(path.read_text())
    (entry,) = first["cases"]
    assert (entry["suite"], entry["seed"], entry["trained"]) == ("suite", 0, "case")
    assert set(entry["methods"]) == {"heft", "round_robin"}
    assert first["summary"]["suite"]["cases"] == first["summary"]["trained"]["cases"] == 1
    placement = Placement.load(folder / "ffnn@p100x4.json")
    params = load_params(ROOT / "params.yaml")
    placement.validate(Problem(params.graphs["ffnn"].build(), Cluster.load("p100x4")))
    suite.main([*SMALL, *where, "--resume", "--seeds", "0", "1"])
    assert "seed 0" not in capsys.readouterr().out
    both = json.loads(path.read_text())["cases"]
    assert [entry["seed"] for entry in both] == [0, 1]
    assert both[0] == entry


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--cases", "nothing@*"), "--cases nothing@*: no case is named so"),
        (("--methods", "hefft"), "did you mean 'heft'"),
        (("--budget", "-1"), "budget is -1.0"),
        (("--seeds", "0", "-1"), "seed is -1"),
        (("--suites", "nothing"), "--suites nothing: no case is named so"),
        (("--policy", "none.safetensors"), "no such policy file"),
    ],
)
def test_a_wrong_option_is_one_line(
    suite: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    with pytest.raises(SystemExit) as caught:
        suite.main([*SMALL, "--output", str(tmp_path / "suite.json"), *arguments])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_report_of_other_settings_is_not_gone_on_with(
    suite: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "suite.json"
    suite.main([*SMALL, "--output", str(path)])
    with pytest.raises(SystemExit):
        suite.main([*SMALL, "--output", str(path), "--resume", "--jitter", "0.2"])
    assert "was made with other settings" in capsys.readouterr().err
    whole = json.loads(path.read_text())
    del whole["cases"][0]["ops"]
    for text in ("{", "[" * 100_000, json.dumps(whole)):
        path.write_text(text)
        with pytest.raises(SystemExit):
            suite.main([*SMALL, "--output", str(path), "--resume"])
        assert f"{path}: is no report of this benchmark" in capsys.readouterr().err
