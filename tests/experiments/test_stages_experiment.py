"""The stages of the training on real devices, in miniature."""

from __future__ import annotations

import json
from typing import Any

import pytest

from doppler.errors import ParamsError
from doppler.experiments import stages
from doppler.graph.workloads.settings import WorkloadSettings


def small(**values: Any) -> stages.SETTINGS:
    sizes: dict[str, int | float | bool]
    sizes = {"batch": 64, "inputs": 64, "hidden": 64, "outputs": 64}
    graph = WorkloadSettings(workload="ffnn", sizes=sizes, tiles={"batch": 2})
    given: dict[str, Any] = {
        "graphs": {"tiny": graph},
        "seeds": 1,
        "profile_seconds": 0.2,
        "imitated": 8,
        "simulated": 8,
        "measured": 4,
        "batch": 4,
        "rounds": 3,
    }
    return stages.SETTINGS(**(given | values))


@pytest.mark.slow
def test_a_chain_goes_on_where_the_shorter_one_ended() -> None:
    (cell,) = stages.cells(small(), {})
    result = stages.run(cell.given)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    runs = {run["stages"]: run for run in result["runs"]}
    assert tuple(runs) == stages.CHAINS
    curves = {name: run["curve"] for name, run in runs.items()}
    assert curves["I"]["episodes"] == curves["II"]["episodes"] == [4, 8]
    assert curves["III"]["episodes"] == [4]
    assert curves["I+II+III"]["episodes"] == [4, 8, 12, 16, 20]
    for key in ("mean_s", "best_s"):
        assert curves["I+II"][key][:2] == curves["I"][key]
        assert curves["I+II+III"][key][:4] == curves["I+II"][key]
    for run in runs.values():
        assert run["low_s"] <= run["measured_s"] <= run["high_s"]
        assert len(run["samples_s"]) == 3
        assert run["simulated_s"] >= 0.999 * result["lower_bound_s"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"measured": 1}, "measured"),
        ({"method": "gdp"}, "unknown method"),
        ({"backend": "tpu"}, "unknown backend"),
    ],
)
def test_bad_settings_are_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ParamsError, match=named):
        small(**values)
