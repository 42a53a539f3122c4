from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from executable_graphs import (
    SMALL,
    assert_equals_sequential,
    executable_graphs,
    layered_graph,
    random_placement,
    small_workload,
)
from faults import FaultyBackend
from hypothesis import given, settings
from hypothesis import strategies as st
from possible_traces import assert_possible
from torch import Tensor

import doppler
from doppler import Graph, Placement
from doppler.cores import core_ids
from doppler.engine import CpuBackend, Engine, execute
from doppler.errors import (
    DeviceMemoryError,
    EngineError,
    ParamsError,
    PlacementError,
    UnknownNameError,
)
from doppler.graph import OpSpec, TensorSpec, Tile
from doppler.graph.execution import FUNCTIONS, assemble, make_tensors, run_sequential


@pytest.mark.parametrize("n_devices", [1, 2, 4])
@pytest.mark.parametrize("name", sorted(SMALL))
def test_every_workload_equals_the_sequential_run(name: str, n_devices: int) -> None:
    graph = small_workload(name)
    rng = np.random.default_rng(n_devices)
    reference = run_sequential(graph, make_tensors(graph))
    with Engine(graph, CpuBackend(n_devices)) as engine:
        for trial in range(20):
            placement = random_placement(graph, n_devices, rng)
            runtime = "fifo" if trial % 4 == 3 else "priority"
            result = engine.run(placement, runtime=runtime, timeout=60)
            assert_equals_sequential(graph, result, reference)
            assert_possible(graph, placement, result.trace)


@settings(max_examples=60)
@given(executable_graphs(), st.data())
def test_any_graph_equals_the_sequential_run(graph: Graph, data: st.DataObject) -> None:
    n_devices = data.draw(st.integers(1, 4))
    n_ops = graph.n_ops
    devices = data.draw(st.lists(st.integers(0, n_devices - 1), min_size=n_ops, max_size=n_ops))
    whole = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=n_ops, max_size=n_ops)
    placement = Placement(devices, data.draw(st.one_of(st.none(), whole)))
    # Copiers copy all outputs, or the larger ones, or none.
    at_once = data.draw(st.sampled_from([-1.0, 16.0, math.inf]))
    backend = FaultyBackend(CpuBackend(n_devices), at_once)
    result = execute(graph, placement, backend, timeout=60)
    assert_equals_sequential(graph, result)
    assert_possible(graph, placement, result.trace)


def test_the_whole_result_can_be_put_together() -> None:
    graph = small_workload("ffnn")
    placement = random_placement(graph, 2, np.random.default_rng(0))
    result = doppler.execute(graph, placement, "cpu", seed=3, timeout=60)
    whole = assemble(graph, result.outputs)
    expected = assemble(graph, run_sequential(graph, make_tensors(graph, 3)))
    torch.testing.assert_close(whole, expected, rtol=1e-5, atol=1e-5)
    assert result.backend == result.trace.label == "cpu"
    assert result.trace.device_names == ("cpu0", "cpu1")
    assert result.makespan == result.trace.end.max() > 0


def test_own_tensors_are_used_and_left_as_they_are() -> None:
    graph = layered_graph()
    x = torch.full((4,), 2.0, requires_grad=True)
    placement = random_placement(graph, 3, np.random.default_rng(1))
    result = execute(graph, placement, CpuBackend(3), tensors={"x": x}, timeout=60)
    assert all(
        torch.equal(value, torch.full((4,), 2.0 * 2**9)) for value in result.outputs.values()
    )
    assert not any(value.requires_grad for value in result.outputs.values())
    assert torch.equal(x, torch.full((4,), 2.0))


def single(function: str = "relu", **extra: object) -> Graph:
    spec = OpSpec(function, (Tile("x", ((0, 4),)),), (4,), extra)
    return Graph.build(
        1,
        [],
        [],
        name="single",
        names=["only"],
        specs=[spec],
        tensors={"x": TensorSpec((4,))},
        outputs={0: Tile("y", ((0, 4),))},
    )


def chain(length: int) -> Graph:
    specs = [OpSpec("relu", (Tile("x", ((0, 10),)),), (10,))]
    specs += [OpSpec("relu", (op,), (10,)) for op in range(length - 1)]
    return Graph.build(
        length,
        range(length - 1),
        range(1, length),
        name="chain",
        specs=specs,
        tensors={"x": TensorSpec((20,))},
        outputs={length - 1: Tile("y", ((0, 10),))},
    )


def test_a_device_has_its_own_number_of_torch_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    relu = FUNCTIONS["relu"]

    def counted(inputs: Sequence[Tensor], attributes: Mapping[str, Any]) -> Tensor:
        seen.append(torch.get_num_threads())
        return relu(inputs, attributes)

    monkeypatch.setitem(FUNCTIONS, "relu", counted)
    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        execute(chain(4), Placement([0, 1, 0, 1]), CpuBackend(2, threads=2), timeout=60)
        assert seen == [2] * 4
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(usual)


def test_memory_is_freed_after_the_last_consumer() -> None:
    # A tile of 40 B; in the run an op's input and output of 40 B each.
    result = execute(chain(50), Placement([0] * 50), "cpu")
    assert result.peak_memory.tolist() == [120.0]


def test_a_copy_takes_room_until_its_consumers_are_done() -> None:
    result = execute(chain(50), Placement([0, 1] * 25), "cpu")
    assert (result.peak_memory >= 80.0).all()
    assert (result.peak_memory <= [160.0, 120.0]).all()


def test_a_placement_that_exceeds_the_memory_names_op_and_device() -> None:
    graph = chain(3)
    with Engine(graph, CpuBackend(2, memory=100.0)) as engine:
        with pytest.raises(
            DeviceMemoryError,
            match=r"op 1 \(op1\) on device 'cpu0': its output "
            r"takes 40 B, but of 100 B only 20 B are free",
        ) as caught:
            engine.run(Placement([0, 0, 0]))
        assert (caught.value.op, caught.value.device) == (1, "cpu0")
        assert engine.run(Placement([0, 1, 1])).peak_memory.tolist() == [80.0, 80.0]


def test_inputs_that_exceed_the_memory_name_op_and_device() -> None:
    message = r"chain: op 0 \(op0\) on device 'cpu1': the inputs and parameters do not fit"
    with pytest.raises(DeviceMemoryError, match=message):
        execute(chain(2), Placement([1, 0]), CpuBackend(2, memory=30.0))


def test_tiles_of_other_placements_make_room() -> None:
    tiles = [Tile("x", ((row, row + 1), (0, 10))) for row in range(2)]
    graph = Graph.build(
        2,
        [],
        [],
        specs=[OpSpec("relu", (tile,), (1, 10)) for tile in tiles],
        tensors={"x": TensorSpec((2, 10))},
        outputs=dict(enumerate(tiles)),
    )
    with Engine(graph, CpuBackend(2, memory=80.0)) as engine:
        for devices in ([0, 1], [1, 0], [0, 1]):
            assert_equals_sequential(graph, engine.run(Placement(devices)))


def test_devices_without_ops_are_no_obstacle() -> None:
    result = execute(single(), Placement([2]), CpuBackend(4))
    assert result.peak_memory.tolist() == [0.0, 0.0, 32.0, 0.0]


@pytest.mark.skipif(len(core_ids()) < 2, reason="there is but one core to keep to")
def test_devices_that_take_all_cores_keep_to_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = core_ids()
    seen: dict[int, tuple[int, ...]] = {}

    def note(inputs: Sequence[Tensor], attributes: Mapping[str, Any]) -> Tensor:
        seen[threading.get_ident()] = core_ids()
        return inputs[0].relu()

    monkeypatch.setitem(FUNCTIONS, "relu", note)
    monkeypatch.setattr("doppler.engine.cpu.core_ids", lambda: usual[:2])
    execute(chain(6), Placement([0, 1, 0, 1, 0, 1]), CpuBackend(2), timeout=60)
    assert sorted(seen.values()) == [(usual[0],), (usual[1],)]
    seen.clear()
    execute(chain(6), Placement([0, 1, 2, 1, 0, 2]), CpuBackend(3), timeout=60)
    assert set(seen.values()) == {usual}
    assert core_ids() == usual


def test_threads_are_those_of_the_device_and_the_callers_stay() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with Engine(layered_graph(), CpuBackend(2, threads=1)) as engine:
            engine.run(random_placement(engine.graph, 2, np.random.default_rng(0)))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (Placement([0, 0]), "placement: 2 ops, but graph 'single' has 1"),
        (Placement([2]), r"op 0 \(only\) is on device 2, but the last device is 1"),
    ],
)
def test_a_placement_that_does_not_suit_is_refused(placement: Placement, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        execute(single(), placement, CpuBackend(2))


def test_pins_and_colocation_are_heeded() -> None:
    spec = OpSpec("relu", (Tile("x", ((0, 4),)),), (4,))
    graph = Graph.build(
        3,
        [],
        [],
        specs=[spec] * 3,
        tensors={"x": TensorSpec((4,))},
        pinned=[1, -1, -1],
        colocation=[-1, 7, 7],
    )
    with Engine(graph, CpuBackend(2)) as engine:
        engine.run(Placement([1, 0, 0]))
        with pytest.raises(
            PlacementError, match=r"op 0 \(op0\) is on device 0, but pinned to .* 1"
        ):
            engine.run(Placement([0, 0, 0]))
        with pytest.raises(
            PlacementError, match="colocation group 7 is split over devices 0 and 1"
        ):
            engine.run(Placement([1, 0, 1]))


def test_an_unknown_runtime_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown runtime 'lifo'"):
        execute(single(), Placement([0]), "cpu", runtime="lifo")


@pytest.mark.parametrize("timeout", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_timeout_is_refused(timeout: float) -> None:
    with pytest.raises(ParamsError, match=r"timeout is .*, must be a number > 0 and <= "):
        execute(single(), Placement([0]), "cpu", timeout=timeout)


def test_an_unknown_backend_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown backend 'cpus': did you mean 'cpu'"):
        execute(single(), Placement([0]), "cpus")


def test_a_graph_without_ops_to_run_is_refused() -> None:
    graph = Graph.from_arrays([0], [1], [1.0, 1.0], [1.0, 1.0], name="costs")
    with pytest.raises(EngineError, match="costs: the graph has no executable ops"):
        execute(graph, Placement([0, 0]), "cpu")


def test_missing_and_misshapen_tensors_are_named() -> None:
    with pytest.raises(EngineError, match="tensor 'x' is not among the tensors given"):
        Engine(single(), CpuBackend(1), tensors={})
    with pytest.raises(EngineError, match=r"tensor 'x' has shape \(5,\), the graph says \(4,\)"):
        Engine(single(), CpuBackend(1), tensors={"x": torch.zeros(5)})
    with pytest.raises(EngineError, match="tensor 'x' is a ndarray, must be a torch tensor"):
        Engine(single(), CpuBackend(1), tensors={"x": torch.zeros(4).numpy()})  # type: ignore[dict-item]


def test_a_closed_engine_does_not_run() -> None:
    with Engine(single(), CpuBackend(1)) as engine:
        pass
    with pytest.raises(EngineError, match="the engine is closed"):
        engine.run(Placement([0]))


@pytest.mark.parametrize(
    "numbers",
    [{"n_devices": 0}, {"n_devices": 2**31}, {"threads": 0}, {"threads": 10**6}, {"memory": 0.0}],
)
def test_impossible_devices_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="threads must be from 1 to 1024, the memory above 0"):
        CpuBackend(**numbers)
