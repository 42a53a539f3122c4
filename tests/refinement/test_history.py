from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from doppler.refinement.history import CANDIDATE, CHAMPION, RunHistory


def test_a_history_is_a_sequence_of_runs() -> None:
    history = RunHistory()
    history.append(CHAMPION, 0, measured=1.0)
    history.append(CANDIDATE, 3, 0.5, 0.6, 0.6, -0.2)
    assert len(history) == 2
    assert history[-1] == (2, "candidate", 3, 0.5, 0.6, 0.6, -0.2)
    assert [run.kind for run in history] == ["champion", "candidate"]
    with pytest.raises(IndexError):
        history[2]


def test_the_curve_is_a_csv_with_empty_cells_for_what_is_not_known(tmp_path: Path) -> None:
    history = RunHistory()
    history.append(CHAMPION, 0)
    history.append(CANDIDATE, 1, 0.5, 0.25, 0.75, 0.125)
    rows = list(csv.DictReader(history.save_csv(tmp_path / "regret.csv").open()))
    assert rows[0]["measured"] == ""
    assert math.isclose(float(rows[1]["regret"]), 0.125)
    assert list(rows[0]) == ["run", "kind", "placement", "predicted", "measured", "ratio", "regret"]
