from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from possible_traces import assert_possible
from random_problems import placed_problems

from doppler import Cluster, Graph, Placement, Problem, execute, simulate
from doppler.engine import EmulatedBackend, Engine, longest_idle
from doppler.errors import DeviceMemoryError, EngineError, ParamsError, PlacementError


@settings(max_examples=60)
@given(placed_problems())
def test_any_problem_runs_in_modeled_time(placed: tuple[Problem, Placement]) -> None:
    problem, placement = placed
    simulated = simulate(problem, placement)
    scale = 0.005 / max(simulated.makespan, 1.0)
    result = execute(
        problem.graph, placement, EmulatedBackend(problem, time_scale=scale), timeout=60
    )
    assert_possible(problem.graph, placement, result.trace)
    assert result.outputs == {}
    assert result.backend == result.trace.label == "emulated"
    ops = result.trace.op
    np.testing.assert_allclose(
        result.trace.end - result.trace.start,
        problem.arrays.compute[ops, placement.devices[ops]],
        rtol=1e-9,
        atol=1e-9 * (1 + result.makespan),
    )
    # The same tensors cross the same links, in whatever order.
    assert sorted(zip(result.trace.transfer_op, result.trace.transfer_target, strict=True)) == (
        sorted(zip(simulated.trace.transfer_op, simulated.trace.transfer_target, strict=True))
    )


def test_a_chain_takes_exactly_as_long_as_simulated() -> None:
    # Whatever the machine does, there is nothing to choose.
    graph = Graph.from_arrays(range(9), range(1, 10), np.linspace(1, 2, 10), [0.5] * 10)
    problem = Problem(graph, Cluster.uniform(3))
    placement = Placement(np.arange(10) % 3)
    result = execute(graph, placement, EmulatedBackend(problem, time_scale=1e-4))
    assert result.makespan == pytest.approx(simulate(problem, placement).makespan, rel=1e-12)
    assert longest_idle(graph, result.trace) == pytest.approx(0.0, abs=1e-9)


def test_jitter_is_drawn_anew_for_each_run_and_seeded() -> None:
    graph = Graph.from_arrays([0], [1], [1.0, 1.0], [1.0, 1.0])
    problem = Problem(graph, Cluster.uniform(2))
    runs = []
    for _ in range(2):
        backend = EmulatedBackend(problem, jitter=0.2, seed=5, time_scale=1e-4)
        with Engine(graph, backend) as engine:
            runs.append([engine.run(Placement([0, 1])).makespan for _ in range(3)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 3


def test_peak_memory_is_that_of_the_simulator() -> None:
    graph = Graph.from_arrays(
        [0, 1], [1, 2], [1.0] * 3, [1.0] * 3, output_bytes=[5, 7, 9], param_bytes=[100, 10, 1]
    )
    problem = Problem(graph, Cluster.uniform(2))
    placement = Placement([0, 1, 1])
    result = execute(graph, placement, EmulatedBackend(problem, time_scale=1e-3))
    assert result.peak_memory.tolist() == simulate(problem, placement).peak_memory.tolist()


def test_a_device_that_cannot_run_an_op_is_refused() -> None:
    # It would take for ever.
    graph = Graph.build(2, [0], [1], class_compute_s={"gpu": [1.0, np.inf], "cpu": [1.0, 1.0]})
    problem = Problem(graph, Cluster.accelerators_and_cpus(1, 1, np.inf))
    with pytest.raises(PlacementError, match=r"op 1 \(op1\) cannot run on device"):
        execute(graph, Placement([1, 0]), EmulatedBackend(problem))


def test_parameters_that_exceed_the_memory_name_the_device() -> None:
    graph = Graph.from_arrays([], [], [1.0] * 2, [1.0] * 2, param_bytes=[8, 3], name="big")
    backend = EmulatedBackend(Problem(graph, Cluster.uniform(2, memory=10)), time_scale=1e-4)
    with Engine(graph, backend) as engine:
        message = "big: device 'gpu1': the parameters of its ops take 11 B, but it has 10 B"
        with pytest.raises(DeviceMemoryError, match=message) as caught:
            engine.run(Placement([1, 1]))
        assert (caught.value.op, caught.value.device) == (None, "gpu1")
        assert engine.run(Placement([1, 0])).peak_memory.tolist() == [3.0, 8.0]


def test_another_graph_is_refused() -> None:
    graph = Graph.from_arrays([0], [1], [1.0, 1.0], [1.0, 1.0], name="mine")
    other = Graph.from_arrays([1], [0], [1.0, 1.0], [1.0, 1.0], name="other")
    backend = EmulatedBackend(Problem(graph, Cluster.uniform(1)))
    with pytest.raises(EngineError, match="was made for graph 'mine', not for 'other'"):
        Engine(other, backend)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"jitter": -1.0}, "jitter is -1.0"),
        ({"time_scale": 0.0}, "time_scale is 0.0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_impossible_numbers_are_refused(numbers: dict[str, Any], message: str) -> None:
    problem = Problem(Graph.from_arrays([], [], [1.0], [1.0]), Cluster.uniform(1))
    with pytest.raises(ParamsError, match=message):
        EmulatedBackend(problem, **numbers)
