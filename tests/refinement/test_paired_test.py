"""Promotion: never on a tie, hardly ever by chance, nearly always for a real gain."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from doppler.errors import EngineError, PromotionError
from doppler.refinement.paired_test import PairedResult, compare_paired, decision_markdown


def from_list(values: list) -> Callable[[], object]:
    left: Iterator = iter(values)

    def measure() -> object:
        value = next(left)
        if isinstance(value, BaseException):
            raise value
        return value

    return measure


def simulated(seed: int, ratio: float, noise: float, **options) -> PairedResult:
    """Compare two sides whose makespans are log-normal, on a machine that gets slower."""
    rng = np.random.default_rng([seed, 1])
    clock = iter(np.linspace(1.0, 1.2, 1000))

    def measure(factor: float) -> Callable[[], float]:
        return lambda: factor * next(clock) * math.exp(noise * rng.standard_normal())

    return compare_paired(measure(0.01), measure(0.01 * ratio), seed=seed, **options)


@pytest.mark.parametrize("options", [{}, {"looks": 4}, {"pairs": 8}, {"confidence": 0.8}])
def test_at_equal_speed_chance_promotes_no_oftener_than_it_may(options) -> None:
    promoted = np.mean([simulated(seed, 1.0, 0.05, **options).promote for seed in range(800)])
    error = (1 - options.get("confidence", 0.95)) / 2
    # Three standard deviations of a mean of 800 draws.
    assert promoted <= error + 3 * math.sqrt(error / 800)


def test_heavy_tails_promote_no_oftener() -> None:
    def run(seed: int) -> bool:
        rng = np.random.default_rng([seed, 1])

        def measure() -> float:
            return math.exp(0.02 * np.clip(rng.standard_cauchy(), -100, 100))

        return compare_paired(measure, measure, seed=seed).promote

    assert np.mean([run(seed) for seed in range(800)]) <= 0.042


@pytest.mark.parametrize("looks", [1, 4])
def test_a_real_gain_is_promoted_nearly_always(looks: int) -> None:
    results = [simulated(seed, 0.95, 0.02, looks=looks) for seed in range(200)]
    assert np.mean([result.promote for result in results]) >= 0.99
    assert np.mean([result.low <= 0.95 <= result.high for result in results]) >= 0.94
    if looks > 1:
        assert np.mean([result.pairs for result in results]) < 15


def test_a_loss_is_never_promoted_and_ends_early() -> None:
    results = [simulated(seed, 1.05, 0.02, looks=4) for seed in range(100)]
    assert not any(result.promote for result in results)
    assert np.mean([result.pairs for result in results]) < 15


@pytest.mark.parametrize("makespan", [1.0, 3e-6])
def test_a_tie_is_never_promoted(makespan: float) -> None:
    result = compare_paired(lambda: makespan, lambda: makespan)
    assert not result.promote
    assert (result.ratio, result.low, result.high) == (1.0, 1.0, 1.0)
    assert result.text == (
        "challenger 0.0% faster (95% interval 0.0 to 0.0%, 20 pairs): champion kept"
    )


def test_nearly_all_ties_do_not_promote() -> None:
    # Five wins among fifteen exact ties: the averages of two ties still are 0.
    result = compare_paired(lambda: 1.0, from_list([0.9] * 5 + [1.0] * 15))  # type: ignore[arg-type]
    assert not result.promote


def test_outliers_do_not_turn_a_decision() -> None:
    rng = np.random.default_rng(3)
    champion = 0.01 * np.exp(0.02 * rng.standard_normal(20))
    better = 0.95 * 0.01 * np.exp(0.02 * rng.standard_normal(20))
    same = 0.01 * np.exp(0.02 * rng.standard_normal(20))
    better[[2, 11]] *= 10
    same[[2, 11]] /= 10
    assert compare_paired(from_list([*champion]), from_list([*better])).promote  # type: ignore[arg-type]
    assert not compare_paired(from_list([*champion]), from_list([*same])).promote  # type: ignore[arg-type]


def test_the_least_gain_counts() -> None:
    assert simulated(0, 0.95, 0.005, min_gain=0.03).promote
    assert not simulated(0, 0.95, 0.005, min_gain=0.06).promote
    small = simulated(0, 0.95, 0.005, min_gain=0.06)
    assert small.high < 1
    assert small.p_value > 0.025
    assert small.text.endswith("champion kept")


def test_the_order_is_drawn_by_the_seed_and_both_run_in_every_pair() -> None:
    def calls(seed: int) -> tuple[list[str], PairedResult]:
        order: list[str] = []

        def side(name: str) -> Callable[[], float]:
            return lambda: order.append(name) or 1.0  # type: ignore[func-returns-value]

        return order, compare_paired(side("a"), side("b"), pairs=40, seed=seed)

    order, result = calls(7)
    assert len(order) == 80
    assert all({*order[i : i + 2]} == {"a", "b"} for i in range(0, 80, 2))
    first = tuple("champion" if name == "a" else "challenger" for name in order[::2])
    assert result.first == first
    assert 10 < first.count("champion") < 30
    assert calls(7)[0] == order
    assert calls(8)[0] != order


def test_several_problems_count_equally() -> None:
    result = compare_paired(
        lambda: [1.0, 100.0],
        lambda: np.array([0.8, 110.0]),
        problems=["small", "large"],
    )
    assert result.ratio == pytest.approx(math.sqrt(0.8 * 1.1))
    assert result.by_problem == pytest.approx({"small": 0.8, "large": 1.1})
    assert result.promote
    assert compare_paired(lambda: [1, 1], lambda: [1, 1]).problems == ("problem 1", "problem 2")


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (EngineError("op 'mm.3' failed\non gpu1"), "EngineError: op 'mm.3' failed on gpu1"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        (math.nan, "measured nan s, must be a finite time above 0"),
        (math.inf, "measured inf s"),
        (0.0, "measured 0.0 s"),
        (-1.0, "measured -1.0 s"),
        ([1.0, 1.0], "measured 2 makespans, must be 1"),
        ([], "measured 0 makespans"),
    ],
)
def test_a_challenger_that_fails_is_not_promoted(run, reason) -> None:
    result = compare_paired(lambda: 1.0, from_list([0.5, 0.5, run]), seed=1)  # type: ignore[arg-type]
    assert not result.promote
    assert (result.ratio, result.low, result.high, result.p_value) == (None, None, None, None)
    assert result.failure.startswith("failed in pair 3 (")
    assert reason in result.failure
    assert result.pairs == 2
    assert result.text == f"challenger {result.failure}: champion kept"
    assert "failure" in decision_markdown(result)


def test_a_challenger_that_fails_in_the_warm_up() -> None:
    result = compare_paired(lambda: 1.0, from_list([EngineError("lost")]), warmup=1)  # type: ignore[arg-type]
    assert result.failure == "failed in the warm-up (EngineError: lost)"
    assert decision_markdown(result)


def test_a_champion_that_fails_is_an_error() -> None:
    with pytest.raises(PromotionError, match=r"champion failed in pair 2 \(EngineError: lost\)"):
        compare_paired(from_list([1.0, EngineError("lost")]), lambda: 1.0)  # type: ignore[arg-type]


def test_an_interrupt_is_not_a_failure() -> None:
    with pytest.raises(KeyboardInterrupt):
        compare_paired(lambda: 1.0, from_list([KeyboardInterrupt()]))  # type: ignore[arg-type]


def test_the_warm_up_does_not_count() -> None:
    champion, challenger = from_list([9.0, *[1.0] * 6]), from_list([1e-3, *[2.0] * 6])
    result = compare_paired(champion, challenger, pairs=6, warmup=1)  # type: ignore[arg-type]
    assert result.ratio == pytest.approx(2.0)
    assert result.text == (
        "challenger 100.0% slower (95% interval 100.0 to 100.0%, 6 pairs): champion kept"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pairs": 5}, "pairs is 5, must be 6 to 1000 at an error of 0.025: fewer"),
        ({"pairs": 7, "confidence": 0.999}, "pairs is 7, must be 11 to 1000"),
        ({"pairs": 1001}, "pairs is 1001"),
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"confidence": math.nan}, "confidence is nan"),
        ({"min_gain": -0.1}, "min_gain is -0.1"),
        ({"min_gain": 1.0}, "min_gain is 1.0"),
        ({"looks": 0}, "looks is 0"),
        ({"warmup": -1}, "warmup is -1"),
    ],
)
def test_what_cannot_tell_is_refused_before_any_run(options, message) -> None:
    with pytest.raises(PromotionError, match=message):
        compare_paired(lambda: pytest.fail("it ran"), lambda: pytest.fail("it ran"), **options)


def test_the_line_says_what_was_found() -> None:
    assert simulated(0, 0.95, 0.01).text == (
        "challenger 5.2% faster (95% interval 4.4 to 5.9%, 20 pairs): promoted"
    )
    assert "slower to" in simulated(0, 1.0, 0.02).text
    assert "% slower (95% interval" in simulated(0, 1.05, 0.02).text


def test_json_holds_all_of_it() -> None:
    result = simulated(0, 0.95, 0.02, pairs=12, looks=2, min_gain=0.01)
    values = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert values["text"] == result.text
    assert values["error"] == pytest.approx(0.025)
    assert values["pairs"] == len(values["first"]) == len(values["champion_s"])
    assert values["challenger_s"] == [list(row) for row in result.challenger_s]
    assert values["by_problem"] == pytest.approx({"problem 1": result.ratio})


def test_markdown_for_people() -> None:
    result = compare_paired(
        lambda: [1.0, 2.0], lambda: [0.9, 1.8], pairs=8, problems=["ffnn", "a|b"]
    )
    text = decision_markdown(result, "v1", "v2")
    assert text.startswith("# v2 against v1\n\nChallenger 10.0% faster (95% interval 10.0 to 10.0%")
    assert "| decision | **promoted** |" in text
    assert "| 95% interval | 0.9000 to 0.9000 |" in text
    assert "| one-sided p-value | 0.0039 |" in text
    assert "| ffnn | 1 | 0.9 | 0.9000 |" in text
    assert "| a\\|b | 2 | 1.8 | 0.9000 |" in text
