"""Cost against size, in miniature."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from doppler.errors import ParamsError
from doppler.experiments import scaling


def small(**values: Any) -> scaling.SETTINGS:
    given: dict[str, Any] = {"repeats": 2, "most_seconds": 0.5, "episodes": 2}
    return scaling.SETTINGS(**(given | {"ops": {"doppler": [100, 2000]}} | values))


def test_each_method_has_sizes_of_its_own() -> None:
    found = list(scaling.cells(small(ops={"doppler": [100, 200], "placeto": [100]}), {}))
    assert [(cell.given["method"], cell.given["ops"]) for cell in found] == [
        ("doppler", 100),
        ("doppler", 200),
        ("placeto", 100),
    ]
    assert {cell.given["method"] for cell in scaling.cells(scaling.SETTINGS(), {})} == set(
        scaling.SUBJECTS
    )


def test_a_cell_says_what_a_step_and_an_inference_cost() -> None:
    cell = list(scaling.cells(small(), {}))[-1]
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
        ({"ops": {"hefty": [100]}}, "unknown method"),
        ({"ops": {"doppler": [10]}}, "ops"),
        ({"episodes": 1}, "episodes"),
        ({"ops": {}}, "ops"),
    ],
)
def test_bad_settings_are_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ParamsError, match=named):
        small(**values)
