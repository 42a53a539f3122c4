"""The table of best known makespans: the file, its checks, and the table that is shipped."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from doppler import Cluster, Graph, Placement, Problem
from doppler.cases import cases
from doppler.errors import DopplerError
from doppler.evaluation.reference import (
    Reference,
    References,
    cluster_fingerprint,
    load_references,
    save_references,
)
from doppler.graph.fingerprint import fingerprint
from doppler.methods import solve
from doppler.params import load_params

ROOT = Path(__file__).parents[2]


@pytest.fixture
def entry(problem) -> Reference:
    solution = solve(problem, "heft")
    return Reference(
        graph="layers",
        cluster="three",
        graph_fingerprint=fingerprint(problem.graph),
        cluster_fingerprint=cluster_fingerprint(problem),
        best_known_s=solution.makespan,
        lower_bound_s=problem.lower_bound,
        seconds=1.5,
        how="heft",
        placement=solution.placement,
    )


def test_a_table_survives_its_file(entry, problem, tmp_path) -> None:
    path = save_references(References([entry]), tmp_path / "table.json")
    table = load_references(path)
    assert list(table) == [("layers", "three")]
    read = table["layers", "three"]
    assert read.to_json() == entry.to_json()
    read.check(problem)
    assert table.best_known("layers", "three", problem) == entry.best_known_s


def test_a_large_placement_is_packed(entry, tmp_path) -> None:
    rng = np.random.default_rng(0)
    placement = Placement(rng.integers(0, 16, 5000), rng.permutation(5000))
    large = dataclasses.replace(entry, placement=placement)
    assert isinstance(large.to_json()["devices"], str)
    path = save_references(References([large]), tmp_path / "table.json")
    read = load_references(path)["layers", "three"].placement
    assert np.array_equal(read.devices, placement.devices)
    assert np.array_equal(read.priority, placement.priority)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-20], lambda data: data + b"more", lambda data: data[4:]]
)
def test_a_damaged_packed_placement_is_refused(entry, tmp_path, damage) -> None:
    large = dataclasses.replace(entry, placement=Placement(np.arange(5000)))
    packed = base64.b64decode(large.to_json()["devices"])
    path = tmp_path / "table.json"
    damaged = base64.b64encode(damage(packed)).decode()
    path.write_text(json.dumps([{**large.to_json(), "devices": damaged}]))
    with pytest.raises(DopplerError, match="devices must be a list of whole numbers, or packed"):
        load_references(path)


def test_nothing_is_known_of_another_problem(entry, problem) -> None:
    table = References([entry])
    assert table.best_known("layers", "four", problem) is None
    graph = problem.graph
    slower = Graph.from_arrays(graph.src, graph.dst, graph.compute_s * 2, graph.transfer_s)
    assert table.best_known("layers", "three", Problem(slower, problem.cluster)) is None
    wider = Problem(graph, Cluster.uniform(4))
    assert table.best_known("layers", "three", wider) is None


def test_a_placement_must_keep_its_promise(entry, problem) -> None:
    wrong = dataclasses.replace(entry, best_known_s=entry.best_known_s * 0.99)
    with pytest.raises(DopplerError, match=r"layers on three: .* takes .* and the table says"):
        wrong.check(problem)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": -1}, r"\[0\].seconds is -1, must be greater than or equal to 0"),
        ({"best_known_s": float("nan")}, "best_known_s is nan"),
        ({"best_known_s": 0.001}, "is below lower_bound_s"),
        ({"lower_bound_s": 10**400}, "must be a number of 64 bits"),
        ({"how": None}, "how is None, must be a text"),
        ({"devices": "x"}, "devices must be a list"),
        ({"more": 1}, "unknown key 'more'"),
    ],
)
def test_an_impossible_entry_is_named(entry, tmp_path, change, message) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps([{**entry.to_json(), **change}]))
    with pytest.raises(DopplerError, match=message):
        load_references(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is empty"), ("{}", "must be a list"), ("[1]", r"\[0\]: must be a mapping")],
)
def test_another_file_is_refused(tmp_path, text, message) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(DopplerError, match=message):
        load_references(path)


def test_a_case_occurs_once(entry, tmp_path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps([entry.to_json()] * 2))
    with pytest.raises(DopplerError, match="occur twice"):
        load_references(path)


def test_the_shipped_table_is_about_the_cases_of_the_evaluation_and_true() -> None:
    params = load_params(ROOT / "params.yaml")
    table = load_references(ROOT / "benchmarks" / "best_known.json")
    assert set(table) <= set(params.evaluated)
    assert set(table) >= set(cases([*params.evaluate.suite.cases, *params.evaluate.zero_shot]))
    graphs = {graph: params.graphs[graph].build() for graph, _ in table}
    for case in (case for case in params.evaluated if case in table):
        problem = Problem(graphs[case.graph], Cluster.load(case.cluster))
        assert table.best_known(*case, problem) is not None, f"{case}: search it again"
        table[case].check(problem)


def test_no_graph_that_counts_as_held_out_is_trained_on_under_another_name() -> None:
    params = load_params(ROOT / "params.yaml")
    assert len(cases(params.evaluate.zero_shot)) >= 16

    def graphs(chosen) -> set[str]:
        names = {case.graph for case in chosen}
        return {fingerprint(params.graphs[name].build()) for name in names}

    held_out = [case for case in params.evaluated if params.trained(case) == "none"]
    assert set(held_out) >= set(cases(params.evaluate.zero_shot))
    assert not graphs(held_out) & graphs(cases(params.training))
    assert len(cases(params.evaluate.zero_shot_large)) == 10
