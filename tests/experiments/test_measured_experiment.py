"""Methods measured on real devices, in miniature."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np
import pytest

from doppler.errors import ParamsError
from doppler.experiments import measured
from doppler.experiments.interleaved import median_interval
from doppler.graph.workloads.settings import WorkloadSettings


def small(**values: Any) -> measured.SETTINGS:
    graph = WorkloadSettings(
        workload="ffnn",
        sizes={"batch": 64, "inputs": 64, "hidden": 64, "outputs": 64},
        tiles={"batch": 2},
    )
    given: dict[str, Any] = {
        "graphs": {"tiny": graph},
        "profile_seconds": 0.2,
        "budget": 0.02,
        "rounds": 3,
    }
    return measured.SETTINGS(**(given | values))


def test_every_method_is_run_as_often_and_its_interval_holds_its_median() -> None:
    (cell,) = measured.cells(small(methods=["doppler", "heft", "single_device"]), {})
    result = measured.run(cell.given)
    assert [run["method"] for run in result["runs"]] == ["doppler", "heft", "single_device"]
    for run in result["runs"]:
        assert len(run["samples_s"]) == 3
        assert run["median_s"] == median(run["samples_s"])
        assert run["low_s"] <= run["median_s"] <= run["high_s"]
        # To some rounding: sums of the same times, in another order.
        assert run["simulated_s"] >= 0.999 * result["lower_bound_s"]


def test_the_default_graphs_can_be_run() -> None:
    for workload in measured.small_graphs().values():
        assert workload.build().specs is not None


def test_the_interval_covers_the_true_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        middle, low, high = median_interval(rng.exponential(size=30).tolist())
        assert low <= middle <= high
        covered += low <= np.log(2) <= high
    assert 940 <= covered <= 990
    assert median_interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    assert median_interval([1.0]) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"backend": "tpu"}, "unknown backend"),
        ({"methods": ["heftier"]}, "unknown method"),
        ({"devices": 1}, "devices"),
        ({"graphs": {}}, "graphs"),
    ],
)
def test_bad_settings_are_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ParamsError, match=named):
        small(**values)
