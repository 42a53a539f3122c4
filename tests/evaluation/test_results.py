"""Files of results."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from doppler.errors import DopplerError
from doppler.evaluation.results import CaseResult, MethodResult, load_results, save_results


def case(graph: str = "ffnn", best: float = 1.0, **makespans: float) -> CaseResult:
    methods = {name: MethodResult(value, 0.5) for name, value in makespans.items()}
    return CaseResult(graph, "p100x4", 192, 4, methods, best, 0.9)


def test_file_has_the_form_that_others_read(tmp_path):
    one = CaseResult(
        "ffnn",
        "p100x4",
        192,
        4,
        {"doppler": MethodResult(1.5, 10.0, 1.6, 0.1, 1.7, {"how": "greedy", "episodes": 3})},
        1.25,
        1.0,
    )
    path = save_results([one], tmp_path / "suite.json")
    assert json.loads(path.read_text()) == [
        {
            "graph": "ffnn",
            "cluster": "p100x4",
            "ops": 192,
            "devices": 4,
            "methods": {
                "doppler": {
                    "makespan_s": 1.5,
                    "seconds": 10.0,
                    "expected_makespan_s": 1.6,
                    "makespan_std_s": 0.1,
                    "expected_fifo_s": 1.7,
                    "how": "greedy",
                    "episodes": 3,
                }
            },
            "best_known_s": 1.25,
            "lower_bound_s": 1.0,
        }
    ]
    assert load_results(path) == (one,)


def test_what_is_known_of_a_case_is_kept(tmp_path):
    known: dict[str, Any] = {"cores": 1, "jitter": 0.1, "trained": "graph"}
    one = replace(case(doppler=1.0), **known)
    assert known.items() <= one.to_json().items()
    assert load_results(save_results([one], tmp_path / "suite.json")) == (one,)
    assert not known.keys() & case(doppler=1.0).to_json().keys()


def noisy(jitter: float, **makespans: tuple[float, float]) -> CaseResult:
    methods = {name: MethodResult(a, 0.5, b, 0.0, 2 * b) for name, (a, b) in makespans.items()}
    return CaseResult("ffnn", "p100x4", 192, 4, methods, 1.0, 0.9, jitter=jitter)


def test_where_durations_vary_what_is_expected_decides():
    one = noisy(0.1, doppler=(1.2, 1.3), heft=(1.1, 1.6))
    assert one.judged_by == "expected_makespan_s"
    assert one.winner == "doppler"
    assert one.ranked() == ["doppler", "heft"]
    assert one.ranked("makespan_s") == ["heft", "doppler"]
    assert one.best_other("doppler", "makespan_s") == "heft"
    assert one.ratio("heft", "expected_makespan_s") == pytest.approx(1.6 / 1.3)
    assert one.ratio("heft") == 1.1
    assert one.wins("doppler", "expected_makespan_s")
    assert one.wins("doppler", "expected_fifo_s")
    assert not one.wins("doppler")
    assert one.best("makespan_s") == 1.0
    assert one.best("expected_makespan_s") == 1.3


def test_without_jitter_or_where_a_figure_is_missing_the_makespan_decides():
    assert noisy(0.0, doppler=(1.2, 1.3), heft=(1.1, 1.6)).winner == "heft"
    one = noisy(0.1, doppler=(1.2, 1.3), heft=(1.1, 1.6))
    one = replace(one, methods={**one.methods, "random": MethodResult(9.0, 0.1)})
    assert one.winner == "heft"
    assert not one.has("random", "expected_makespan_s")
    assert one.best_other("heft", "expected_makespan_s") == "doppler"
    assert case(doppler=1.0).best_other("doppler", "makespan_s") is None
    assert case(doppler=1.0).best("expected_makespan_s") is None


def test_ratios_and_shares():
    one = case(doppler=1.1, critical_path=2.0, heft=1.5)
    assert one.winner == "doppler"
    assert one.ratio("heft") == 1.5
    assert one.closed("doppler", "critical_path") == pytest.approx(0.9)
    assert one.closed("critical_path", "critical_path") == 0
    assert one.closed("doppler", "missing") is None
    assert one.wins("doppler")
    assert not one.wins("heft")
    assert not one.wins("missing")


def test_a_method_may_beat_the_best_known():
    one = case(doppler=0.95, critical_path=2.0)
    assert one.best_s == 0.95
    assert one.ratio("doppler") == 1
    assert one.closed("doppler", "critical_path") == 1


def test_nothing_to_close():
    assert case(doppler=1.0, critical_path=1.0).closed("doppler", "critical_path") is None
    assert case(doppler=1.0, critical_path=1.009).closed("doppler", "critical_path") is None


def test_wins_within_the_tolerance():
    assert case(doppler=1.0019, heft=1.0).wins("doppler")
    assert not case(doppler=1.0021, heft=1.0).wins("doppler")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e.pop("ops"), r"\[0\].ops is missing"),
        (lambda e: e.update(opps=1), r"\[0\]: unknown key 'opps': did you mean 'ops'"),
        (lambda e: e.update(ops=0), "ops is 0, must be greater than or equal to 1"),
        (lambda e: e.update(devices=1.5), "devices is 1.5, must be a whole number"),
        (lambda e: e.update(cores=0), "cores is 0, must be greater than or equal to 1"),
        (lambda e: e.update(jitter=-1), "jitter is -1, must be greater than or equal to 0"),
        (lambda e: e.update(trained="yes"), "trained is 'yes', must be 'case', 'graph' or 'none'"),
        (lambda e: e.update(graph=3), "graph is 3, must be a text"),
        (lambda e: e.update(methods={}), "methods is {}, must have at least 1 item"),
        (lambda e: e.update(methods=[]), "methods is .., must be a mapping"),
        (lambda e: e["methods"].update(heft=1.0), "methods.heft is 1.0, must be a mapping"),
        (lambda e: e["methods"]["doppler"].pop("seconds"), "methods.doppler.seconds is missing"),
        (
            lambda e: e["methods"]["doppler"].update(makespan_s=-1),
            "methods.doppler.makespan_s is -1, must be greater than or equal to 0",
        ),
        (lambda e: e["methods"]["doppler"].update(seconds="1"), "seconds is '1', must be a number"),
        (
            lambda e: e["methods"]["doppler"].update(runs=[1]),
            "methods.doppler.runs: must be a plain value",
        ),
        (lambda e: e.update(best_known_s=float("nan")), "best_known_s is nan, must be a finite"),
        (lambda e: e.update(lower_bound_s=True), "lower_bound_s is True, must be a number"),
    ],
)
def test_refuses_a_broken_entry(tmp_path, change, message):
    entry = case(doppler=1.0).to_json()
    change(entry)
    path = tmp_path / "suite.json"
    path.write_text(json.dumps([entry]))
    with pytest.raises(DopplerError, match=message) as caught:
        load_results(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("{}", "must be a list"),
        ("[3]", r"\[0\]: must be a mapping with"),
    ],
)
def test_refuses_another_file(tmp_path, text, message):
    path = tmp_path / "suite.json"
    path.write_text(text)
    with pytest.raises(DopplerError, match=message):
        load_results(path)


def test_refuses_a_case_twice(tmp_path):
    path = tmp_path / "suite.json"
    with pytest.raises(DopplerError, match="'ffnn' on 'p100x4' occurs twice"):
        save_results([case(a=1.0), case(b=1.0)], path)
    assert not path.exists()


def test_over_a_best_of_zero_a_ratio_is_one_or_infinite():
    one = case(doppler=0.0, heft=1.0)
    assert one.ratio("doppler") == 1
    assert one.ratio("heft") == float("inf")
    assert one.winner == "doppler"
