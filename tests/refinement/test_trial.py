from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from doppler.errors import PromotionError
from doppler.refinement.trial import FEWEST, PAIRS, Trial, Verdict, plan_looks

ERROR = 0.004


def tried(
    ratio: float, seed: int, noise: float = 0.03, outliers: float = 0.0, error: float = ERROR
) -> Trial:
    """Run champion and challenger until there is a verdict."""
    rng = np.random.default_rng(seed)
    trial = Trial(error, seed=seed)
    while trial.verdict is Verdict.OPEN:
        seconds = ratio if trial.turn == "challenger" else 1.0
        hit = 8.0 if rng.random() < outliers else 1.0
        trial.observe(float(seconds * math.exp(noise * rng.normal())) * hit)
    return trial


@pytest.mark.parametrize("outliers", [0.0, 0.05])
def test_a_clearly_faster_challenger_wins_soon(outliers: float) -> None:
    found = [tried(0.8, seed, outliers=outliers) for seed in range(50)]
    assert sum(trial.verdict is Verdict.PROMOTED for trial in found) >= 48
    assert np.median([len(trial.differences) for trial in found]) <= 25


def test_a_slower_one_loses_soon() -> None:
    found = [tried(1.1, seed) for seed in range(50)]
    assert all(trial.verdict is Verdict.REJECTED for trial in found)
    assert np.median([len(trial.differences) for trial in found]) <= FEWEST + 1


def test_one_that_is_no_faster_is_given_up_before_all_pairs_have_run() -> None:
    found = [tried(1.0, seed, error=0.1) for seed in range(100)]
    # Three standard deviations of 100 draws.
    assert sum(trial.verdict is Verdict.PROMOTED for trial in found) <= 10 + 9
    assert np.mean([len(trial.differences) for trial in found]) < 60


@given(
    st.floats(1e-9, 0.25),
    st.integers(1, 1000),
    st.integers(1, 20),
)
def test_the_looks_share_the_error(error: float, pairs: int, looks: int) -> None:
    assume(2.0**-pairs <= error)
    shares = plan_looks(error, pairs, looks)
    assert math.fsum(shares.values()) == pytest.approx(error)
    assert max(shares) == pairs
    # Each look can promote: the pairs suffice for its share.
    assert all(2.0**-count <= share * (1 + 1e-9) for count, share in shares.items())


@given(st.lists(st.floats(0.5, 2.0), min_size=2 * PAIRS, max_size=2 * PAIRS), st.integers(0, 99))
def test_each_pair_has_a_run_of_both_in_the_order_drawn(seconds: list[float], seed: int) -> None:
    trial = Trial(ERROR, seed=seed)
    again = Trial(ERROR, seed=seed)
    for number, each in enumerate(seconds):
        assert trial.between == (number % 2 == 0)
        before = trial.turn
        assert again.turn == before
        again.observe(each)
        if trial.observe(each) is not Verdict.OPEN:
            break
        if number % 2 == 0:
            assert {before, trial.turn} == {"champion", "challenger"}
        else:
            assert trial.first[-1] != before
            by_turn = math.log(each) - math.log(seconds[number - 1])
            sign = 1 if before == "challenger" else -1
            assert trial.differences[-1] == pytest.approx(sign * by_turn)
    assert again.differences == trial.differences


def test_a_tie_never_wins() -> None:
    trial = Trial(0.004)
    while trial.verdict is Verdict.OPEN:
        trial.observe(3e-6)
    assert trial.verdict is Verdict.REJECTED
    assert trial.interval() == (1.0, 0.0, math.inf)


def test_failures() -> None:
    trial = Trial(ERROR, seed=1)
    assert trial.interval() is None
    assert trial.p_value is None
    seen = set()
    for _ in range(12):
        side, between = trial.turn, trial.between
        if side == "champion":
            # The pair begins anew.
            assert trial.observe(None) is Verdict.OPEN
            assert trial.between
            assert trial.differences == []
            seen.add(between)
        elif not between:
            trial.observe(1.0)
            break
        trial.observe(1.0)
    while trial.turn == "champion":
        trial.observe(1.0)
    assert trial.observe(None) is Verdict.REJECTED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pairs": 9, "looks": 1}, "pairs is 9, must be 10 to 1000 at an error of 0.001: fewer"),
        ({"pairs": 0}, "pairs is 0, must be 10"),
        ({"pairs": 1001}, "pairs is 1001"),
        ({"looks": 0}, "looks is 0"),
        ({"min_gain": -0.1}, "min_gain is -0.1"),
        ({"min_gain": 1.0}, "min_gain is 1.0"),
        ({"error": 0.0}, "error is 0.0"),
        ({"error": 0.3}, "error is 0.3"),
        ({"error": math.nan}, "error is nan"),
    ],
)
def test_what_cannot_tell_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(PromotionError, match=message):
        Trial(**{"error": 0.001, **options})  # type: ignore[arg-type]
