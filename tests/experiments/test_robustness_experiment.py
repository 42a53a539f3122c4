"""Placements under jitter and wrong costs, in miniature."""

from __future__ import annotations

import json

import numpy as np

from doppler import Cluster, Graph, Problem
from doppler.cases import Grid
from doppler.experiments import robustness
from doppler.graph.op_class import op_classes
from doppler.graph.workloads import make
from doppler.graph.workloads.settings import WorkloadSettings

GRAPHS = {"small": WorkloadSettings(workload="ffnn", sizes={}, tiles=2)}


def test_every_method_is_judged_at_every_level() -> None:
    settings = robustness.SETTINGS(
        suites={"w": [Grid(graphs=["small"], clusters=["uniform:2"])]},
        methods=["doppler", "heft"],
        jitter=[0.0, 0.3],
        costs=[0.2],
        budget=0.02,
        jitter_seeds=4,
        seeds=1,
    )
    (cell,) = robustness.cells(settings, GRAPHS)
    result = robustness.run(cell.given)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    levels = [(row["kind"], row["level"]) for row in result["rows"]]
    assert levels == [("jitter", 0.0), ("jitter", 0.3), ("costs", 0.2)]
    for row in result["rows"]:
        assert [run["method"] for run in row["runs"]] == ["doppler", "heft"]
        for seconds in (row["informed_s"], *(run["makespan_s"] for run in row["runs"])):
            assert seconds > 0.5 * result["lower_bound_s"]


def test_all_ops_of_a_class_are_mistaken_alike_and_nothing_else_is() -> None:
    problem = Problem(make("ffnn", tiles=2), Cluster.load("p100x4"))
    believed = robustness.mistaken(problem, 0.5, np.random.default_rng(0))
    factor = believed.arrays.compute / problem.arrays.compute
    classes = op_classes(problem.graph)
    found = {name: factor[np.array(classes) == name] for name in set(classes)}
    assert all(np.ptp(each) < 1e-12 for each in found.values())
    assert len({round(float(each[0, 0]), 9) for each in found.values()}) == len(found) > 1
    np.testing.assert_array_equal(believed.arrays.volume, problem.arrays.volume)
    assert believed.lower_bound != problem.lower_bound
    same = robustness.mistaken(problem, 0.0, np.random.default_rng(0))
    np.testing.assert_array_equal(same.arrays.compute, problem.arrays.compute)


def test_ops_without_a_class_are_mistaken_one_by_one() -> None:
    graph = Graph.from_arrays([], [], np.ones(2000), np.ones(2000))
    believed = robustness.mistaken(
        Problem(graph, Cluster.uniform(2)), 0.3, np.random.default_rng(0)
    )
    column = believed.arrays.compute[:, 0]
    assert np.unique(column).size == 2000
    assert abs(np.log(column).std() - 0.3) < 0.03
    assert abs(column.mean() - 1.0) < 0.05
