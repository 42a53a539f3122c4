"""Factors make a problem of what the fit says of it, whatever the cluster's times come from."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from doppler import Cluster, Graph, Placement, Problem, place, simulate, workloads
from doppler.graph.op_class import op_classes
from doppler.refinement.calibration import (
    EXPLANATIONS,
    JITTERS,
    Calibrator,
    Factors,
    factors_of,
    observations,
    trace_factors,
)


def modeled() -> Problem:
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


@pytest.mark.parametrize("make", [modeled, measured, explicit])
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


@pytest.mark.parametrize("make", [modeled, measured, explicit])
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


def measurements(truth: Problem, runs: int, jitter: float) -> tuple[list, list]:
    """Logarithms of the seconds of random placements."""
    rng = np.random.default_rng(0)
    placements = [Placement(rng.integers(4, size=truth.n_ops)) for _ in range(40)]
    logs = [
        [np.log(simulate(truth, each, jitter=jitter, seed=seed).makespan) for seed in range(runs)]
        for each in placements
    ]
    return placements, logs


def test_makespans_alone_tell_which_device_and_link_is_slow() -> None:
    believed = modeled()
    devices, links = np.ones(4), np.ones(len(believed.cluster.links))
    devices[2], links[5] = 1.6, 4.0
    placements, logs = measurements(Factors(devices, links).problem(believed), 1, 0.0)
    seen, calibrator = observations(placements, logs), Calibrator(believed)
    explanations = np.zeros((1 + EXPLANATIONS, 2 + 4 + len(links)))
    for number in range(60):
        explanations = calibrator.fit(explanations, 0.0, seen, [], np.random.default_rng(number))
    found = factors_of(explanations[0], 4)
    assert found.devices.argmax() == 2
    np.testing.assert_allclose(found.devices, devices, rtol=0.15)
    predicted = calibrator.predict(explanations, 0.0, seen)[:, 0]
    assert np.abs(predicted - seen.target).mean() < 0.03


def test_traces_bind_the_factors() -> None:
    believed = modeled()
    links = np.linspace(1.0, 4.0, len(believed.cluster.links))
    truth = Factors(np.array([1.0, 1.6, 0.7, 1.0]), links)
    placements, logs = measurements(truth.problem(believed), 1, 0.0)
    explanations = np.zeros((1 + EXPLANATIONS, 2 + 4 + len(links)))
    explanations = Calibrator(believed).fit(
        explanations,
        0.0,
        observations(placements, logs),
        [np.concatenate(truth)],
        np.random.default_rng(0),
    )
    found = factors_of(explanations[0], 4)
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(truth), rtol=0.05)


def test_jitter_is_what_makes_makespans_vary_as_measured() -> None:
    believed = modeled()
    best = np.zeros(2 + 4 + len(believed.cluster.links))
    for jitter in (0.0, 0.05):
        placements, logs = measurements(believed, 12, jitter)
        found = Calibrator(believed).jitter(best, observations(placements, logs), 0.2)
        assert abs(JITTERS.index(found) - JITTERS.index(jitter)) <= 1


def test_the_same_draws_lead_to_the_same_explanations() -> None:
    believed = modeled()
    seen = observations(*measurements(believed, 1, 0.02))
    explanations = np.zeros((1 + EXPLANATIONS, 2 + 4 + len(believed.cluster.links)))
    one, other = (
        Calibrator(believed).fit(explanations, 0.02, seen, [], np.random.default_rng(1))
        for _ in range(2)
    )
    assert (one == other).all()
    assert (explanations == 0.0).all()
