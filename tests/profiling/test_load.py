"""Other work is what the cores did and this process did not."""

from __future__ import annotations

import pytest

from doppler.profiling.load import OtherLoad


def test_the_work_of_others_is_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = [(0.0, 100.0, 5.0), (2.0, 104.0, 6.0), (3.0, 105.0, 7.5), (3.0, 105.0, 7.5)]
    monkeypatch.setattr(OtherLoad, "_read", staticmethod(lambda: readings.pop(0)))
    load = OtherLoad()
    # Four busy seconds in two, one of them ours.
    assert load.look() == 1.5
    # Ticks are coarse: ours may seem more than all.
    assert load.look() == 0.0
    assert load.look() == 0.0


def test_on_this_machine() -> None:
    load = OtherLoad()
    sum(range(1_000_000))
    assert 0.0 <= load.look() < 10_000


def test_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr("doppler.profiling.load._STAT", tmp_path / "none")
    load = OtherLoad()
    assert load.look() == 0.0
