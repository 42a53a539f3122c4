"""Reading stored cells: all of them, and around those that are damaged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from sample_cells import Samples

from doppler.errors import DopplerError
from doppler.experiments.names import EXPERIMENTS
from doppler.experiments.results import Results, load_results


def test_every_experiment_is_read(tmp_path: Path) -> None:
    Samples(tmp_path, seeds=2).everything()
    results = load_results(tmp_path)
    assert set(results.experiments) == set(EXPERIMENTS)
    for name, cells in results.experiments.items():
        assert len(cells) == len(list((tmp_path / name).iterdir())), name
    assert not results.faults
    given = results.seconds[0].given
    assert given.settings == {
        "suite": "large",
        "graph": "llama_four_layers",
        "cluster": "v100_4x4",
        "seed": 0,
        "budget": 2.0,
    }, "neither the workload's settings nor lists"


def test_missing_experiments_are_empty_and_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert load_results(tmp_path) == Results()
    with pytest.raises(DopplerError, match=r"nowhere: no such folder; run the experiments first"):
        load_results(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda text: text[: len(text) // 2], "not valid JSON"),
        (lambda text: "", "is empty"),
        (lambda text: "[]", "must be a mapping|is \\[\\]"),
        (lambda text: text.replace('"search"', '"seconds"'), "is a cell of the experiment"),
        (lambda text: text.replace("with_policy_s", "x"), "result.with_policy_s is missing"),
        (lambda text: text.replace('"budget": 0.5', '"budget": "x"'), "given.budget is 'x'"),
    ],
)
def test_a_damaged_cell_is_one_line_that_names_it(tmp_path: Path, damage, says: str) -> None:
    samples = Samples(tmp_path)
    given = {"graph": "g", "cluster": "c", "seed": 0, "budget": 0.5}
    good = samples.store("search", given, {"with_policy_s": 1.0, "search_alone_s": 2.0})
    bad = good.with_name("bad.json")
    bad.write_text(damage(good.read_text()))
    results = load_results(tmp_path)
    assert len(results.search) == 1
    (fault,) = results.faults
    assert "\n" not in fault
    assert fault.startswith(str(bad))
    assert fault.endswith("remove the file and run the experiment search again")
    assert re.search(says, fault), fault


@pytest.mark.parametrize("value", ["NaN", "-1.0", "0", "Infinity", '"fast"', "null"])
def test_no_time_is_no_number_or_nothing(tmp_path: Path, value: str) -> None:
    given = {"graph": "g", "cluster": "c", "seed": 0, "budget": 0.5}
    result = {"with_policy_s": 7.25, "search_alone_s": 2.0}
    path = Samples(tmp_path).store("search", given, result)
    path.write_text(path.read_text().replace("7.25", value))
    results = load_results(tmp_path)
    assert not results.search
    assert "with_policy_s" in results.faults[0]


def test_what_a_kind_of_exact_cell_needs(tmp_path: Path) -> None:
    path = Samples(tmp_path).store(
        "exact", {"kind": "optimum", "number": 1}, {"doppler_s": 1.0, "proven": True}
    )
    assert "result.optimum_s is missing" in load_results(tmp_path).faults[0]
    document = json.loads(path.read_text())
    document["result"]["optimum_s"] = 1.0
    path.write_text(json.dumps(document))
    assert len(load_results(tmp_path).exact) == 1
