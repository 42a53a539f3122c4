from __future__ import annotations

import numpy as np
import pytest

from doppler.refinement.trial import FEWEST, MOST, Trial, Verdict


def tried(
    ratio: float, seed: int, noise: float = 0.03, outliers: float = 0.0
) -> tuple[Verdict, int]:
    """Run champion and challenger by turns until there is a verdict."""
    rng = np.random.default_rng(seed)

    def measured(seconds: float) -> float:
        hit = rng.random() < outliers
        return float(seconds * np.exp(noise * rng.normal()) * (8.0 if hit else 1.0))

    trial = Trial(1)
    for pair in range(1, MOST + 1):
        trial.champion(measured(1.0))
        trial.challenged(measured(ratio))
        if trial.verdict() is not Verdict.OPEN:
            return trial.verdict(), pair
    raise AssertionError("a trial must end")


@pytest.mark.parametrize("outliers", [0.0, 0.05])
def test_a_clearly_faster_challenger_wins_soon(outliers: float) -> None:
    found = [tried(0.8, seed, outliers=outliers) for seed in range(50)]
    assert sum(verdict is Verdict.PROMOTED for verdict, _ in found) >= 48
    assert np.median([pairs for _, pairs in found]) <= FEWEST + 2


@pytest.mark.parametrize("outliers", [0.0, 0.05])
def test_one_that_is_no_faster_hardly_ever_wins(outliers: float) -> None:
    found = [tried(1.0, seed, outliers=outliers)[0] for seed in range(400)]
    assert sum(verdict is Verdict.PROMOTED for verdict in found) <= 8


def test_a_slower_one_loses() -> None:
    found = [tried(1.1, seed)[0] for seed in range(50)]
    assert all(verdict is Verdict.REJECTED for verdict in found)


def test_the_champion_has_its_turn_before_each_run_that_counts() -> None:
    trial = Trial(1)
    assert trial.owes_champion
    trial.challenged(1.0)
    assert trial.owes_champion
    trial.champion(1.0)
    assert not trial.owes_champion
    assert trial.verdict() is Verdict.OPEN
