"""Bulk-synchronous against work-conserving execution, in miniature."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import any_problem, random_placement

from doppler import Cluster, Graph, Placement, Problem
from doppler.cases import Grid
from doppler.errors import UnknownNameError
from doppler.experiments import synchronous
from doppler.experiments.synchronous_search import search_synchronous
from doppler.graph.workloads.settings import WorkloadSettings
from doppler.simulator.bulk_synchronous import synchronous_makespan

GRAPHS = {"small": WorkloadSettings(workload="ffnn", sizes={}, tiles=2)}


def small() -> synchronous.SETTINGS:
    cases = [Grid(graphs=["small"], clusters=["p100x4"])]
    methods = ["critical_path", "sibling_affinity"]
    return synchronous.SETTINGS(suites={"w": cases}, methods=methods, budget=0.05, search=0.05)


def test_a_cell_runs_every_placement_both_ways() -> None:
    found = list(synchronous.cells(small(), GRAPHS))
    assert [cell.given["seed"] for cell in found] == [0, 1]
    result = synchronous.run(found[0].given)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    runs = result["runs"]
    assert [run["method"] for run in runs] == [*small().methods, synchronous.FOR_SYNCHRONOUS]
    assert runs[-1]["synchronous_s"] == min(run["synchronous_s"] for run in runs)
    for run in runs:
        for name in ("work_conserving_s", "synchronous_s"):
            assert run[name] >= result["lower_bound_s"] * (1 - 1e-9)


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1))
def test_the_search_keeps_to_pins_and_groups_and_never_loses_its_starts(seed: int) -> None:
    problem = any_problem(seed)
    starts = [random_placement(problem, each) for each in range(3)]
    found = search_synchronous(problem, starts, budget=0.02, seed=seed)
    found.validate(problem)
    assert found.priority is None
    best = min(synchronous_makespan(problem, start) for start in starts)
    assert synchronous_makespan(problem, found) <= best * (1 + 1e-9)


def test_the_search_finds_what_is_easy() -> None:
    problem = Problem(Graph.from_arrays([], [], np.ones(8), np.ones(8)), Cluster.uniform(4))
    found = search_synchronous(problem, [Placement([0] * 8)], budget=0.1)
    assert synchronous_makespan(problem, found) == 2.0


def test_a_method_that_there_is_not_is_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'heft'"):
        synchronous.SETTINGS(methods=["hept"])
