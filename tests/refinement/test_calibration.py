"""Factors make a problem of what the fit says of it, whatever the cluster's times come from."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from doppler import Cluster, Graph, Problem, place, simulate, workloads
from doppler.graph.op_class import op_classes
from doppler.refinement.calibration import Factors, trace_factors


def modelled() -> Problem:
    return Problem(workloads.ffnn(64, 32, 64, 32), Cluster.load("p100x4"))


def measured() -> Problem:
    """Every op class has a measured time, as after a profile of the graph."""
    graph, cluster = workloads.ffnn(64, 32, 64, 32), Cluster.load("p100x4")
    times = {name: 1e-3 * (1 + place) for place, name in enumerate(sorted(set(op_classes(graph))))}
    devices = tuple(dataclasses.replace(device, measured=times) for device in cluster.devices)
    return Problem(graph, dataclasses.replace(cluster, devices=devices))


def explicit() -> Problem:
    graph = Graph.from_arrays([0, 1], [1, 2], [1.0, 2.0, 3.0], [0.5, 0.25, 0.125])
    return Problem(graph, Cluster.uniform(4))


@pytest.mark.parametrize("make", [modelled, measured, explicit])
def test_factors_multiply_every_time(make) -> None:
    believed = make()
    rng = np.random.default_rng(0)
    factors = Factors(rng.uniform(0.5, 2.0, 4), rng.uniform(0.5, 4.0, len(believed.cluster.links)))
    arrays, found = believed.arrays, factors.problem(believed).arrays
    np.testing.assert_allclose(found.compute, arrays.compute * factors.devices)
    for link, factor in zip(believed.cluster.links, factors.links, strict=True):
        ends = link.source, link.target
        for op in range(believed.n_ops):
            np.testing.assert_allclose(
                found.latency[ends] + found.volume[op] * found.factor[ends],
                factor * (arrays.latency[ends] + arrays.volume[op] * arrays.factor[ends]),
            )


@pytest.mark.parametrize("make", [modelled, measured, explicit])
def test_a_trace_shows_the_factors(make) -> None:
    believed = make()
    links = np.linspace(1.0, 4.0, len(believed.cluster.links))
    truth = Factors(np.array([1.0, 1.6, 0.7, 1.0]), links).problem(believed)
    placement = place(truth, "round_robin", budget=0.0)
    shown = trace_factors(believed, simulate(truth, placement).trace)
    used = np.unique(placement.devices)
    np.testing.assert_allclose(shown.devices[used], np.array([1.0, 1.6, 0.7, 1.0])[used])
    seen = np.isfinite(shown.links)
    assert seen.any()
    np.testing.assert_allclose(shown.links[seen], links[seen])
