"""The tables of docs/gallery.md: who wins, what does not fit; and that they are of the file."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from documents import ROOT

from doppler.errors import DopplerError


@pytest.fixture(scope="module")
def tables(make: ModuleType) -> ModuleType:
    return importlib.import_module("models_tables")


def row(example: str, cluster: str = "a100x4", **seconds: float | None) -> dict[str, Any]:
    answers = {key: {"seconds": value, "note": "whole"} for key, value in seconds.items()}
    return {
        "example": example,
        "cluster": cluster,
        "parameter_bytes": 2e9,
        "answers": answers,
    }


ROWS = [
    row("won:model", balanced=4.0, pipeline=2.0, doppler=1.0),
    row("won:model", "p100x4", balanced=None, pipeline=2.0, doppler=1.0),
    row("lost:layers", balanced=1.0, pipeline=None, doppler=2.0),
]


def test_wins_are_counted_and_means_are_geometric(tables: ModuleType) -> None:
    text = " ".join(tables.summary(ROWS).split())
    assert "In 2 of 3 cases Doppler is at or below" in text
    assert "balanced 1.41 times as long (2 cases), pipeline 2.00 times as long" in text
    assert "Not possible, for memory or because the model cannot be cut so: balanced in 1, " in text
    assert tables.behind(ROWS[2]) == ["balanced"]


def test_what_fits_nowhere_counts_as_lost_to_what_does(tables: ModuleType) -> None:
    lost = row("big:model", balanced=1.0, doppler=None)
    assert tables.behind(lost) == ["balanced"]
    assert "In 0 of 1 cases" in tables.summary([lost])
    nothing = row("big:model", balanced=None, pipeline=None, doppler=None)
    text = tables.summary([*ROWS, nothing])
    assert "In 2 of 3 cases" in text
    assert "In 1 more nothing was found that fits." in " ".join(text.split())
    assert "| `big` | 2.00 GB | - | - | - | nothing fits | - |" in tables.simulated([nothing])


def test_a_table_for_each_cluster_stresses_wins(tables: ModuleType) -> None:
    text = tables.simulated(ROWS)
    assert "On `a100x4`:" in text
    assert "On `p100x4`:" in text
    assert "| `won` | 2.00 GB | 4.000 s | 2.000 s | **1.000 s** | whole | 4.00 |" in text
    assert "| `won` | 2.00 GB | - | 2.000 s | **1.000 s** | whole | - |" in text
    assert "| `lost:layers` | 2.00 GB | 1.000 s | - | 2.000 s | whole | 0.50 |" in text


def test_runs_are_told_beside_one_device(tables: ModuleType) -> None:
    runs = [{"example": "won:model", "seconds": {"one device": 0.2, "doppler": 0.1}}]
    assert "| `won` | 200.0 ms | 100.0 ms | 2.00 times as fast |" in tables.measured(runs)
    assert tables.measured([]) == tables.NOTHING


def test_the_gallery_shows_what_is_in_the_file(tables: ModuleType, make: ModuleType) -> None:
    text = (ROOT / "docs/gallery.md").read_text()
    found = tables.read(ROOT / "benchmarks/models.json")
    for name, content in tables.blocks(found).items():
        text = make.replaced(text, name, content, "gallery.md")
    assert text == (ROOT / "docs/gallery.md").read_text()


def test_a_damaged_file_is_one_line(tables: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "models.json").write_text("{}")
    with pytest.raises(DopplerError, match="is no report of this benchmark"):
        tables.read(tmp_path / "models.json")
