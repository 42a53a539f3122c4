"""Optima of small graphs and bounds of larger ones, in miniature."""

from __future__ import annotations

import json

import pytest

from doppler.cases import Grid
from doppler.errors import ParamsError
from doppler.experiments import exact
from doppler.graph.workloads.settings import WorkloadSettings

GRAPHS = {"small": WorkloadSettings(workload="ffnn", sizes={}, tiles=2)}


def small() -> exact.SETTINGS:
    suites = {"w": [Grid(graphs=["small"], clusters=["p100x4"])]}
    return exact.SETTINGS(optima=4, ops=[4, 8], budget=0.05, solver=5.0, suites=suites)


def test_doppler_is_held_against_optima_and_bounds() -> None:
    pytest.importorskip("ortools")
    found = list(exact.cells(small(), GRAPHS))
    assert [cell.given["kind"] for cell in found] == ["optimum"] * 4 + ["bound"]
    assert len({cell.name for cell in found}) == 5
    for cell in found:
        result = exact.run(cell.given)
        assert json.loads(json.dumps(result, allow_nan=False)) == result
        assert result["simple_bound_s"] <= result["bound_s"] * (1 + 1e-9)
        if cell.given["kind"] == "optimum":
            assert result["proven"]
            assert result["own_bound_s"] <= result["optimum_s"] * (1 + 1e-9)
            assert result["bound_s"] == result["optimum_s"] <= result["doppler_s"]
            assert result["optimum_s"] <= result["critical_path_s"]
        else:
            assert result["bound_s"] <= result["doppler_s"] * (1 + 1e-9)


def test_the_small_problems_are_of_all_kinds_and_the_same_every_time() -> None:
    settings = exact.SETTINGS(suites={})
    given = [cell.given for cell in exact.cells(settings, {})]
    assert len(given) >= 36
    assert {each["ops"] for each in given} == set(range(8, 15))
    assert {(each["devices"], each["ratio"]) for each in given} == {
        (devices, ratio) for devices in (2, 3) for ratio in exact.RATIOS
    }
    made = [exact.small_problem(7, 10, 3, 1.0, seed).fingerprint for seed in (0, 0, 1)]
    assert made[0] == made[1] != made[2]
    slow = exact.small_problem(7, 10, 3, 1.0, 0).arrays.compute
    assert (slow[:, 0] == 2 * slow[:, 1]).all()
    queued = exact.small_problem(5, 10, 3, 1.0, 0).arrays
    assert queued.n_channels == 3
    assert (queued.channel[1] == [1, -1, 1]).all()


def test_a_range_of_three_numbers_is_refused() -> None:
    with pytest.raises(ParamsError, match="ops"):
        exact.SETTINGS(ops=[1, 2, 3])
