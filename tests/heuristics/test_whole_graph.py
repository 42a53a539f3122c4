"""Whole-graph placements: sorted, valid, and no worse than either method."""

from __future__ import annotations

from doppler import Cluster, Placement, Problem, workloads
from doppler.heuristics.partition import candidates
from doppler.heuristics.whole_graph import whole_graph


def test_the_best_of_maps_and_partitions_comes_first() -> None:
    problem = Problem(workloads.llama_layer(tiles=3), Cluster.load("a100_2x4"))
    found = whole_graph(problem, 3)
    assert len(found) == 3
    seconds = [makespan for _, makespan in found]
    assert seconds == sorted(seconds)
    assert seconds[0] <= candidates(problem)[0].makespan
    for devices, _ in found:
        Placement(devices).validate(problem)


def test_nothing_fits_in_no_memory() -> None:
    problem = Problem(workloads.ffnn(), Cluster.uniform(2, memory=1.0))
    assert whole_graph(problem, 8) == []
