"""The report's few numbers."""

from __future__ import annotations

import pytest

from doppler.evaluation.metrics import flat_metrics
from doppler.evaluation.report import Report
from doppler.evaluation.results import CaseResult, MethodResult


def case(graph: str, best: float, **makespans: float) -> CaseResult:
    methods = {name: MethodResult(makespan, 1.0) for name, makespan in makespans.items()}
    return CaseResult(graph, "c", 4, 2, methods, best, 0.5)


def test_figures_by_hand() -> None:
    suite = (
        case("a", 1.0, doppler=1.0, critical_path=2.0),
        case("b", 10.0, doppler=20.0, critical_path=30.0, heft=14.0),
    )
    unseen = (case("d", 1.0, greedy=1.1), case("e", 1.0, greedy=1.1))
    metrics = flat_metrics(Report(suite, unseen))
    assert metrics == {
        "cases": 2,
        "wins": 1,
        "gap_closed": pytest.approx(0.75),
        "gap_closed_least": pytest.approx(0.5),
        "gap_closed_pooled": pytest.approx(2 / 3),
        "ratio_to_best": pytest.approx(2**0.5),
        "zero_shot.greedy": pytest.approx(1.1),
    }


def test_what_nothing_tells_is_left_out() -> None:
    metrics = flat_metrics(Report((case("a", 1.0, doppler=1.0),)))
    assert metrics == {"cases": 1, "wins": 1, "ratio_to_best": 1.0}
