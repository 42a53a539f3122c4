"""The progress bar."""

from __future__ import annotations

import pytest
from training_cases import small_case, small_policy

from doppler.training.progress import training_bar
from doppler.training.reinforce import ReinforceSettings, reinforce


def test_the_bar_is_drawn_on_stderr_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with training_bar("reinforce") as bar:
        reinforce(
            small_policy(),
            [small_case()],
            ReinforceSettings(updates=3, episodes=2),
            progress=bar,
        )
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "reinforce" in printed.err
    assert "3/3" in printed.err
    assert "ratio_to_bound" in printed.err


def test_the_bar_ends_when_training_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArithmeticError), training_bar("imitate"):
        raise ArithmeticError
    assert capsys.readouterr().out == ""
