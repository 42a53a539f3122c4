"""Policy and search against search alone, in miniature."""

from __future__ import annotations

import json
from typing import Any

import pytest

from doppler.cases import Grid
from doppler.errors import ParamsError, UnknownNameError
from doppler.experiments import search
from doppler.experiments.problems import problem_of
from doppler.graph.workloads.settings import WorkloadSettings

GRAPHS = {"small": WorkloadSettings(workload="ffnn", sizes={}, tiles=2)}


def small(**values: Any) -> search.SETTINGS:
    cases = [Grid(graphs=["small"], clusters=["uniform:2"])]
    budgets = [search.Budget(seconds=0.05, seeds=2), search.Budget(seconds=0.1, seeds=1)]
    given: dict[str, Any] = {"cases": cases, "budgets": budgets, "jitter_seeds": 8}
    return search.SETTINGS(**(given | values))


def test_both_are_searched_with_every_budget_and_seed() -> None:
    found = list(search.cells(small(), GRAPHS))
    assert [(cell.given["budget"], cell.given["seed"]) for cell in found] == [
        (0.05, 0),
        (0.05, 1),
        (0.1, 0),
    ]
    assert len({cell.name for cell in found}) == 3
    assert "policy" not in search.ALONE
    for cell in found[1:]:
        result = search.run(cell.given)
        assert json.loads(json.dumps(result, allow_nan=False)) == result
        assert result["ops"] == problem_of(cell.given).n_ops
        for name in ("with_policy", "search_alone"):
            # Under jitter a run may be a little faster than what bounds it without.
            assert result[f"{name}_s"] > 0.8 * problem_of(cell.given).lower_bound
            assert "episode" not in result[f"{name}_origin"] or name == "with_policy"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"budgets": []}, "budgets"),
        ({"jitter": 1.0}, "jitter"),
        ({"case": []}, "case"),
    ],
)
def test_bad_settings_are_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ParamsError, match=named):
        small(**values)


def test_an_unknown_graph_is_named() -> None:
    settings = small(cases=[Grid(graphs=["smaller"], clusters=["uniform:2"])])
    with pytest.raises(UnknownNameError, match="smaller"):
        list(search.cells(settings, GRAPHS))
