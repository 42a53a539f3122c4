"""Cost against size, in miniature."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from doppler.errors import ParamsError
from doppler.experiments import scaling


def small(**values: Any) -> scaling.Settings:
    given: dict[str, Any] = {"ops": [100, 2000], "repeats": 2, "most_seconds": 0.5, "episodes": 2}
    return scaling.Settings(**(given | values))


def test_a_method_is_left_out_where_it_would_take_too_long() -> None:
    found = list(scaling.cells(small(methods=["doppler"], most_ops={"doppler": 100}), {}))
    assert [(cell.given["method"], cell.given["ops"]) for cell in found] == [("doppler", 100)]


def test_a_cell_says_what_a_step_and_an_inference_cost() -> None:
    cell = list(scaling.cells(small(methods=["doppler"]), {}))[-1]
    result = scaling.run(cell.given)
    assert 1500 < result["ops"] < 2500
    assert result["devices"] == 4
    # Each op beyond the first layer has three inputs on average.
    assert 2 < result["edges"] / result["ops"] < 4
    for name in ("train_step", "inference"):
        samples = result[f"{name}_samples_s"]
        assert result[f"{name}_s"] == statistics.median(samples)
        assert min(samples) > 0
    # A step records what inference forgets.
    recorded = 2 * result["ops"] * result["devices"] * 22 * 4
    assert result["train_memory_bytes"] > recorded
    assert result["train_memory_bytes"] > result["inference_memory_bytes"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"methods": ["hefty"]}, "unknown method"),
        ({"ops": [10]}, "ops"),
        ({"episodes": 1}, "episodes"),
        ({"most_ops": {"doppler": 0}}, "most_ops"),
    ],
)
def test_bad_settings_are_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ParamsError, match=named):
        small(**values)
