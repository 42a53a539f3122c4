"""Transfer from one problem to another, in miniature."""

from __future__ import annotations

import json
from typing import Any

import pytest

from doppler.errors import ParamsError, UnknownNameError
from doppler.experiments import transfer
from doppler.experiments.learners import untrained_dual
from doppler.experiments.problems import problem_of
from doppler.graph.workloads.settings import WorkloadSettings
from doppler.simulator import makespan_of

GRAPHS = {
    "one": WorkloadSettings(workload="chainmm", sizes={}, tiles=2),
    "other": WorkloadSettings(workload="ffnn", sizes={}, tiles=2),
}


def small(**values: Any) -> transfer.SETTINGS:
    pair = transfer.TransferPair(kind="workload", source="one@uniform:2", target="other@uniform:3")
    given: dict[str, Any] = {"pairs": [pair], "seeds": 2, "episodes": 32, "batch": 4}
    return transfer.SETTINGS(**(given | values))


def test_a_policy_goes_on_with_a_share_of_the_episodes() -> None:
    cells = list(transfer.cells(small(), GRAPHS))
    assert len({cell.name for cell in cells}) == 2
    given = cells[1].given
    result = transfer.run(given)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert (result["few_episodes"], result["scratch_episodes"]) == (8, 32)
    assert result["curve_few"]["episodes"] == [4, 8]
    assert result["curve_scratch"]["episodes"][-1] == 32
    for name in ("scratch", "few_shot"):
        # To some rounding: sums of the same times, in another order.
        assert result[f"{name}_s"] >= 0.999 * result["lower_bound_s"]
        assert result[f"{name}_s"] <= result[f"{name}_greedy_s"]
    # Nothing of the other seed, or of the target, is left in the policy that it starts with.
    target = problem_of(given["problems"][1])
    learner = untrained_dual("doppler-policy", target, 1)
    assert makespan_of(target, learner.greedy()) == result["untrained_s"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"few": 0.0}, "few"),
        ({"few": 1.0}, "few"),
        ({"batch": 1}, "batch"),
        ({"method": "gdp"}, "unknown method"),
        ({"pairs": []}, "pairs"),
        ({"pairs": [{"kind": "graph", "source": "one@a", "target": "other@a"}]}, "kind"),
        ({"pairs": [{"kind": "workload", "source": "one", "target": "other@a"}]}, "source"),
    ],
)
def test_bad_settings_are_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ParamsError, match=named):
        small(**values)


def test_an_unknown_graph_is_named() -> None:
    pair = transfer.TransferPair(kind="workload", source="two@uniform:2", target="one@uniform:2")
    with pytest.raises(UnknownNameError, match="two"):
        list(transfer.cells(small(pairs=[pair]), GRAPHS))
