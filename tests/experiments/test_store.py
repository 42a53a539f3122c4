"""The cells that are done: kept, found again, and run anew once anything has changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doppler.errors import DopplerError
from doppler.experiments.cell import Cell
from doppler.experiments.store import Store, code_digest


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cells", "code")


def cell(**given: object) -> Cell:
    return Cell("seconds", {"graph": "layer", "cluster": "uniform:4", **given})


def test_a_name_tells_cells_apart_and_is_a_file_name() -> None:
    first, second = cell(seed=0, budget=0.5), cell(seed=1, budget=0.5)
    assert first.name == "layer-uniform-4-seed0-budget0.5"
    assert second.name != first.name
    assert "/" not in cell(graph="a/../b").name


def test_a_result_is_found_again(store: Store) -> None:
    one = cell(seed=0)
    assert not store.has(one)
    store.save(one, {"makespan_s": 1.0}, 2.5)
    assert store.has(one)
    kept = json.loads(store.path(one).read_text())
    assert kept["given"] == one.given
    assert kept["result"] == {"makespan_s": 1.0}
    assert kept["seconds"] == 2.5


def test_what_a_result_came_of_decides_whether_it_counts(store: Store, tmp_path: Path) -> None:
    one = cell(seed=0)
    store.save(one, {}, 0.0)
    assert not Store(store.folder, "other code").has(one)
    # The same name, but something else is given.
    changed = Cell("seconds", {**one.given, "workload": {"sizes": {"m": 2}}})
    assert changed.name == one.name
    assert not store.has(changed)


def test_a_graph_file_that_changes_makes_its_cells_stale(store: Store, tmp_path: Path) -> None:
    graph = tmp_path / "graph.txt"
    graph.write_text("1")
    one = cell(file=str(graph))
    store.save(one, {}, 0.0)
    assert store.has(one)
    graph.write_text("2")
    assert not store.has(one)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"digest": 1}', "\x00"])
def test_a_damaged_file_counts_for_none(store: Store, text: str) -> None:
    one = cell(seed=0)
    store.save(one, {}, 0.0)
    store.path(one).write_text(text)
    assert not store.has(one)


def test_a_number_that_is_none_is_refused(store: Store) -> None:
    with pytest.raises(DopplerError, match="seconds: layer-uniform-4-seed0"):
        store.save(cell(seed=0), {"makespan_s": float("nan")}, 0.0)
    assert not list(store.folder.glob("*"))


def test_cells_that_there_are_no_longer_are_removed(store: Store) -> None:
    store.save(cell(seed=0), {}, 0.0)
    store.save(cell(seed=1), {}, 0.0)
    store.keep_only([cell(seed=1)])
    assert [path.name for path in store.folder.iterdir()] == [f"{cell(seed=1).name}.json"]


def test_comments_and_docstrings_are_no_part_of_the_code(tmp_path: Path) -> None:
    source, data = tmp_path / "module.py", tmp_path / "data.yaml"
    source.write_text("def f():\n    return 1\n")
    data.write_text("a: 1\n")

    def digest() -> str:
        return code_digest([source, data])

    before = digest()
    source.write_text(
        '"""What it is."""\n\n\ndef f():\n    """Return."""\n    # One.\n    return 1\n'
    )
    assert digest() == before
    source.write_text("def f():\n    return 2\n")
    assert digest() != before
    source.write_text("def f():\n    return 1\n")
    data.write_text("a: 2\n")
    assert digest() != before
