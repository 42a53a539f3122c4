"""What surely fits does."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import problems, random_placement

from doppler import Cluster, Graph, Placement, Problem, simulate
from doppler.simulator.memory import surely_fits


def surely(problem: Problem, devices: np.ndarray) -> bool:
    count = problem.n_devices
    return surely_fits(problem.arrays, devices.copy(), np.empty(count), np.empty(count, np.uint32))


@settings(max_examples=200)
@given(problem=problems(), seed=st.integers(0, 1000))
def test_what_surely_fits_fits_in_any_order(problem: Problem, seed: int) -> None:
    placement = random_placement(problem, seed)
    if not problem.may_overflow:
        assert surely(problem, placement.devices)
    if surely(problem, placement.devices):
        for runtime in ("priority", "fifo"):
            peak = simulate(problem, placement, runtime=runtime).peak_memory
            assert (peak <= problem.arrays.capacity).all()


def test_it_is_what_the_devices_would_hold_if_nothing_were_freed() -> None:
    # Two consumers on device 1 share a copy: 1 + 2 + 4 bytes there, 1 + 8 bytes on device 0.
    graph = Graph.from_arrays(
        [0, 0], [1, 2], [1.0] * 3, [1.0] * 3, output_bytes=[1.0, 2.0, 4.0], param_bytes=[8.0, 0, 0]
    )
    devices = np.array([0, 1, 1], np.int32)
    for memory, fits in ((9.0, True), (8.0, False)):
        assert surely(Problem(graph, Cluster.uniform(2, memory=memory)), devices) == fits
    # A byte less on device 1 alone.
    light = Graph.from_arrays(
        [0, 0], [1, 2], [1.0] * 3, [1.0] * 3, output_bytes=[1.0, 2.0, 4.0], param_bytes=[0.0] * 3
    )
    for memory, fits in ((7.0, True), (6.0, False)):
        assert surely(Problem(light, Cluster.uniform(2, memory=memory)), devices) == fits


def test_what_is_freed_in_time_may_fit_all_the_same() -> None:
    # A chain on one device holds two outputs at a time, four in all.
    graph = Graph.from_arrays([0, 1, 2], [1, 2, 3], [1.0] * 4, [1.0] * 4, output_bytes=[1.0] * 4)
    problem = Problem(graph, Cluster.uniform(1, memory=2.0))
    placement = Placement([0] * 4)
    assert not surely(problem, placement.devices)
    assert (simulate(problem, placement).peak_memory <= 2.0).all()
