"""What :mod:`doppler.simulator` promises around the kernel: checks, messages, memory, options."""

from __future__ import annotations

import numpy as np
import pytest

from doppler import Cluster, Graph, Placement, Problem, simulate, simulate_many
from doppler.errors import MemoryLimitError, ParamsError, PlacementError, UnknownNameError
from doppler.simulator import check_memory, describe_overflow


@pytest.fixture
def diamond() -> Problem:
    """0 feeds 1 and 2, they feed 3."""
    graph = Graph.from_arrays(
        [0, 0, 1, 2],
        [1, 2, 3, 3],
        [1.0, 2.0, 4.0, 1.0],
        [10.0, 20.0, 40.0, 0.0],
        output_bytes=[100.0, 200.0, 400.0, 50.0],
        param_bytes=[1.0, 2.0, 4.0, 8.0],
    )
    return Problem(graph, Cluster.uniform(2))


def test_by_hand(diamond: Problem) -> None:
    result = simulate(diamond, Placement([0, 0, 1, 0]))
    # 0 runs to 1 and is sent until 11; 1 runs 1..3, 2 runs 11..15, is sent until 55; 3 to 56.
    assert result.makespan == 56.0
    trace = result.trace
    assert trace.op.tolist() == [0, 1, 2, 3]
    assert trace.start.tolist() == [0.0, 1.0, 11.0, 55.0]
    assert trace.end.tolist() == [1.0, 3.0, 15.0, 56.0]
    assert trace.device.tolist() == [0, 0, 1, 0]
    assert trace.transfer_op.tolist() == [0, 2]
    assert trace.transfer_start.tolist() == [1.0, 15.0]
    assert trace.transfer_end.tolist() == [11.0, 55.0]
    assert trace.device_names == ("gpu0", "gpu1")
    assert trace.label == "simulated"
    # Device 0: parameters 11; output 0 until its transfer at 11, output 1 from 1; later outputs
    # 1 and 3 and the copy of 2. Device 1: parameters 4; the copy of 0 and output 2.
    assert result.peak_memory.tolist() == [11 + 200 + 400 + 50, 4 + 100 + 400]


def test_transfers_of_a_trace_come_in_order_of_start() -> None:
    graph = Graph.from_arrays([0, 1], [2, 2], [5.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    trace = simulate(Problem(graph, Cluster.uniform(3)), Placement([0, 1, 2])).trace
    assert trace.transfer_op.tolist() == [1, 0]


def test_first_ready_first_run_ignores_priority_on_request(diamond: Problem) -> None:
    placement = Placement([0, 0, 0, 0], [0, 2, 1, 3])
    assert simulate(diamond, placement).trace.op.tolist() == [0, 2, 1, 3]
    assert simulate(diamond, placement, runtime="fifo").trace.op.tolist() == [0, 1, 2, 3]


def test_unknown_runtime(diamond: Problem) -> None:
    with pytest.raises(UnknownNameError, match="unknown runtime 'lifo'"):
        simulate(diamond, Placement([0, 0, 0, 0]), runtime="lifo")


@pytest.mark.parametrize("jitter", [-0.1, 11.0, float("nan"), float("inf")])
def test_jitter_out_of_range(diamond: Problem, jitter: float) -> None:
    with pytest.raises(ParamsError, match=r"jitter is .*, must be a number from 0 to 10"):
        simulate(diamond, Placement([0, 0, 0, 0]), jitter=jitter)
    with pytest.raises(ParamsError, match=r"jitter is .*, must be a number from 0 to 10"):
        simulate_many(diamond, [[0, 0, 0, 0]], jitter=jitter)


def test_a_placement_of_another_graph(diamond: Problem) -> None:
    with pytest.raises(PlacementError, match="3 ops, but graph 'graph' has 4"):
        simulate(diamond, Placement([0, 0, 0]))


@pytest.mark.parametrize(
    ("devices", "priority", "message"),
    [
        ([[0, 0, 0]], None, r"shape \(1, 3\), expected \[placements, 4\]"),
        ([0, 0, 0, 0], None, r"must be a list of lists of whole numbers"),
        ([[0, 0, 0, 2]], None, "devices must lie in 0 to 1"),
        ([[0, 0, 0, -1]], None, "devices must lie in 0 to 1"),
        ([[0, 0, 0, 1]], [[0, 1, 2]], r"priority has shape \(1, 3\), devices \(1, 4\)"),
    ],
)
def test_batches_are_checked(
    diamond: Problem, devices: list[list[int]], priority: list[list[int]] | None, message: str
) -> None:
    with pytest.raises(PlacementError, match=message):
        simulate_many(diamond, devices, priority)


def test_a_batch_with_too_few_seeds(diamond: Problem) -> None:
    with pytest.raises(PlacementError, match="1 seeds for 2 placements"):
        simulate_many(diamond, [[0, 0, 0, 0], [0, 0, 0, 0]], jitter=0.1, seeds=[3])


def test_memory_that_suffices() -> None:
    graph = Graph.from_arrays([0], [1], [1.0, 1.0], [1.0, 1.0], output_bytes=[3e9, 2e9])
    roomy = Problem(graph, Cluster.uniform(2, memory=5e9))
    assert not roomy.may_overflow
    check_memory(roomy, Placement([0, 0]))


def test_memory_that_overflows_names_device_and_bytes() -> None:
    graph = Graph.from_arrays(
        [0], [1], [1.0, 1.0], [1.0, 1.0], name="two", output_bytes=[3e9, 2e9], param_bytes=[0, 1e9]
    )
    tight = Problem(graph, Cluster.uniform(2, memory=5.5e9))
    assert tight.may_overflow
    with pytest.raises(MemoryLimitError) as caught:
        check_memory(tight, Placement([0, 0]))
    assert str(caught.value) == (
        "two: does not fit in memory: device 'gpu0' lacks 500 MB (needs 6 GB, has 5.5 GB)"
    )
    # Apart, one holds 3 GB, the other 6 GB: the copy, its own output and the parameter.
    with pytest.raises(MemoryLimitError, match="device 'gpu1' lacks 500 MB"):
        check_memory(tight, Placement([0, 1]))
    check_memory(Problem(graph, Cluster.uniform(2, memory=6e9)), Placement([0, 1]))


def test_overflow_is_described_for_every_device() -> None:
    graph = Graph.from_arrays([], [], [1.0, 1.0], [1.0, 1.0], output_bytes=[7.0, 2e12])
    problem = Problem(graph, Cluster.uniform(2, memory=5.0))
    text = describe_overflow(problem, np.array([7.0, 2e12]))
    assert "device 'gpu0' lacks 2 B (needs 7 B, has 5 B)" in text
    assert "device 'gpu1' lacks 2 TB (needs 2 TB, has 5 B)" in text
