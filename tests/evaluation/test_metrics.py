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
    metrics = flat_metrics(Report({"suite": suite}, unseen))
    assert metrics == {
        "suite.cases": 2,
        "suite.wins": 1,
        "suite.gap_closed": pytest.approx(0.75),
        "suite.gap_closed_least": pytest.approx(0.5),
        "suite.gap_closed_pooled": pytest.approx(2 / 3),
        "suite.ratio_to_best": pytest.approx(2**0.5),
        "zero_shot.greedy": pytest.approx(1.1),
    }


def test_rivals_are_told_by_what_is_expected_and_held_out_cases_apart() -> None:
    methods = {
        "doppler": MethodResult(1.0, 1.0, 1.0, 0.1, 1.0),
        "heft": MethodResult(1.0, 1.0, 1.5, 0.1, 0.5),
    }
    one = CaseResult("a", "c", 4, 2, methods, 1.0, 0.5, jitter=0.1, trained="none")
    metrics = flat_metrics(Report({"large": (one,), "operators": ()}))
    for group in ("large", "held_out"):
        assert metrics[f"{group}.over.heft"] == pytest.approx(1.5)
        assert metrics[f"{group}.expected_wins"] == 1
        assert metrics[f"{group}.expected_fifo_wins"] == 0
    assert not [name for name in metrics if name.startswith(("operators", "trained"))]


def test_what_nothing_tells_is_left_out() -> None:
    metrics = flat_metrics(Report({"suite": (case("a", 1.0, doppler=1.0),)}))
    assert metrics == {"suite.cases": 1, "suite.wins": 1, "suite.ratio_to_best": 1.0}
