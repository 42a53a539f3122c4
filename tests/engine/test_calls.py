"""Graphs of calls of torch's operators on devices: tuples, new tensors, sharing, one device."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from aten_graphs import aten_graph, call, calls, ref, result, whole
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

from doppler import Graph, Placement
from doppler.engine import CpuBackend, Engine, compare_outputs, execute
from doppler.errors import DeviceMemoryError, EngineError, OpError, UnknownNameError
from doppler.graph import OpSpec, TensorSpec, Tile
from doppler.graph.execution import assemble, make_tensors, run_sequential

SIZE = (4, 6)


def branches() -> Graph:
    """Two results of one op, read on their own by two others; whole numbers at the end."""
    top = calls(
        call("topk.default", ref(0), 2),
        result(1, (4, 2), item=0),
        result(1, (4, 2), "int64", 1),
    )
    gathered = calls(
        call("gather.default", ref(1), 1, ref(0, 1)),
        call("sub.Tensor", ref(2), ref(0, 0)),
        result(3, (4, 2)),
    )
    counted = calls(call("sum.dim_IntList", ref(0, 1), (1,)), result(1, (4,), "int64"))
    last = calls(
        call("abs.default", ref(0)),
        call("sum.default", ref(2)),
        call("add.Tensor", ref(1), ref(3)),
        call("gt.Scalar", ref(4), 4),
        result(5, (4,), "bool"),
    )
    x = whole("x", SIZE)
    return aten_graph(
        [((x,), top), ((0, x), gathered), ((0,), counted), ((1, 2), last)],
        {"x": TensorSpec(SIZE, dtype="float32")},
    )


def affine(scale: str = "parameter") -> Graph:
    """``relu(x w) + s``, the rows of x in two ops."""
    attributes = calls(
        call("mm.default", ref(0), ref(1)),
        call("relu.default", ref(3)),
        call("add.Tensor", ref(4), ref(2)),
        result(5, (2, 3)),
    )
    specs = [
        OpSpec(
            "aten",
            (Tile("x", ((row, row + 2), (0, 6))), whole("w", (6, 3)), whole("s", ())),
            (2, 3),
            attributes,
        )
        for row in (0, 2)
    ]
    return Graph.build(
        2,
        [],
        [],
        name="affine",
        specs=specs,
        tensors={
            "x": TensorSpec(SIZE, dtype="float32"),
            "w": TensorSpec((6, 3), scale, dtype="float32"),
            "s": TensorSpec((), "buffer", {"kind": "constant", "value": 1.0}, "float32"),
        },
        outputs={0: Tile("y", ((0, 2), (0, 3))), 1: Tile("y", ((2, 4), (0, 3)))},
        output_bytes=[24, 24],
    )


def expected(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return (tensors["x"] @ tensors["w"]).relu() + tensors["s"]


@pytest.mark.parametrize("n_devices", [1, 2, 3])
def test_values_of_several_tensors_move_between_devices(n_devices: int) -> None:
    graph = branches()
    rng = np.random.default_rng(0)
    reference = run_sequential(graph, make_tensors(graph))
    with Engine(graph, CpuBackend(n_devices)) as engine:
        for _ in range(10):
            placement = random_placement(graph, n_devices, rng)
            run = engine.run(placement)
            assert torch.equal(run.outputs[3], reference[3])
            assert compare_outputs(graph, run.outputs, reference).equal
            assert_possible(graph, placement, run.trace)


def test_the_sizes_are_those_of_all_results() -> None:
    run = execute(branches(), Placement([0, 1, 1, 1]), "cpu")
    # x, then two results of 4 x 2, float32 and int64.
    assert run.peak_memory[0] == 96 + 32 + 64
    assert run.trace.transfer_op.tolist() == [0]


def test_whole_numbers_must_be_equal() -> None:
    graph = branches()
    outputs = run_sequential(graph, make_tensors(graph))
    other = {3: ~outputs[3]}
    found = compare_outputs(graph, other, outputs)
    assert (found.difference, found.tolerance, found.equal) == (1.0, 0.0, False)


def test_new_tensors_take_the_place_of_the_old_ones() -> None:
    graph = affine()
    tensors = make_tensors(graph)
    placement = Placement([0, 1])
    with Engine(graph, CpuBackend(2), tensors=tensors) as engine:

        def run(**new: torch.Tensor) -> torch.Tensor:
            tensors.update(new)
            return assemble(graph, engine.run(placement, tensors=new or None).outputs)["y"]

        torch.testing.assert_close(run(), expected(tensors))
        torch.testing.assert_close(run(x=torch.ones(SIZE)), expected(tensors))
        torch.testing.assert_close(run(w=torch.ones(6, 3)), expected(tensors))
        torch.testing.assert_close(run(x=torch.zeros(SIZE), s=torch.tensor(3.0)), expected(tensors))
        torch.testing.assert_close(run(), expected(tensors))


def test_a_released_tensor_is_freed_and_must_be_given_anew() -> None:
    graph, placement = branches(), Placement([0, 1, 0, 1])
    x = torch.randn(SIZE)
    with Engine(graph, CpuBackend(2), tensors={"x": x}, share=True) as engine:
        first = assemble(graph, engine.run(placement).outputs)
        engine.release(["x"])
        gone = weakref.ref(x)
        again = x.clone()
        del x
        assert gone() is None
        with pytest.raises(EngineError, match="'x' was released; give it anew"):
            engine.run(placement)
        second = assemble(graph, engine.run(placement, tensors={"x": again}).outputs)
        assert all(torch.equal(second[name], value) for name, value in first.items())
        engine.run(placement)
        with pytest.raises(UnknownNameError, match="'z'"):
            engine.release(["z"])


def test_only_the_tiles_of_new_tensors_are_placed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    from doppler.engine.cpu import CpuDeployment

    placed: list[tuple[int, ...]] = []
    place = CpuDeployment._place

    def watched(self: Any, tensor: torch.Tensor, device: int) -> torch.Tensor:
        placed.append((device, *tensor.shape))
        return place(self, tensor, device)

    monkeypatch.setattr(CpuDeployment, "_place", watched)
    with Engine(affine(), CpuBackend(2)) as engine:
        engine.run(Placement([0, 1]))
        assert sorted(placed) == [(0,), (0, 2, 6), (0, 6, 3), (1,), (1, 2, 6), (1, 6, 3)]
        placed.clear()
        engine.run(Placement([0, 1]), tensors={"x": torch.ones(SIZE)})
        assert sorted(placed) == [(0, 2, 6), (1, 2, 6)]


@pytest.mark.parametrize(
    ("new", "error", "message"),
    [
        ({"w": torch.ones(6, 3), "x": torch.ones(6, 4)}, EngineError, r"'x' has shape \(6, 4\)"),
        ({"x": torch.ones(SIZE, dtype=torch.float64)}, EngineError, "'x' has dtype float64, the"),
        ({"x": [1.0]}, EngineError, "affine: tensor 'x' is a list, must be a torch tensor"),
        ({"x": torch.ones(SIZE, device="meta")}, EngineError, "'x' is sparse or has no values"),
        ({"xs": torch.ones(SIZE)}, UnknownNameError, "tensor of affine 'xs': did you mean 'x'"),
    ],
)
def test_a_tensor_that_does_not_suit_changes_nothing(
    new: dict[str, Any], error: type[Exception], message: str
) -> None:
    graph = affine()
    tensors = make_tensors(graph)
    with Engine(graph, CpuBackend(2), tensors=tensors) as engine:
        with pytest.raises(error, match=message):
            engine.run(Placement([0, 1]), tensors=new)
        run = engine.run(Placement([0, 1]))
        torch.testing.assert_close(assemble(graph, run.outputs)["y"], expected(tensors))


def test_a_graph_of_generated_ops_takes_new_tensors_of_the_same_type() -> None:
    graph = layered_graph()
    with Engine(graph, CpuBackend(2), tensors={"x": torch.ones(4)}) as engine:
        placement = random_placement(graph, 2, np.random.default_rng(0))
        run = engine.run(placement, tensors={"x": torch.full((4,), 3.0)})
        assert all(torch.equal(y, torch.full((4,), 3.0 * 2**9)) for y in run.outputs.values())
        with pytest.raises(EngineError, match=r"'x' has dtype torch\.float64, and had"):
            engine.run(placement, tensors={"x": torch.ones(4, dtype=torch.float64)})


def test_calls_with_other_inputs_from_several_threads_do_not_mix() -> None:
    graph = affine()
    tensors = make_tensors(graph)
    wrong: list[int] = []

    def caller(number: int) -> None:
        own = {**tensors, "x": torch.full(SIZE, float(number))}
        for _ in range(20):
            run = engine.run(Placement([0, number % 2]), tensors={"x": own["x"]})
            if not torch.allclose(assemble(graph, run.outputs)["y"], expected(own)):
                wrong.append(number)

    with Engine(graph, CpuBackend(2), tensors=tensors) as engine:
        threads = [threading.Thread(target=caller, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_shared_tensors_are_used_as_they_are_and_count() -> None:
    graph = affine()
    tensors = make_tensors(graph)
    with (
        Engine(graph, CpuBackend(2), tensors=tensors, share=True) as shared,
        Engine(graph, CpuBackend(2), tensors=tensors) as copied,
    ):
        before = expected(tensors)
        results = [
            assemble(graph, engine.run(Placement([0, 1])).outputs)["y"]
            for engine in (shared, copied)
        ]
        tensors["w"].mul_(2.0)
        runs = [engine.run(Placement([0, 1])) for engine in (shared, copied)]
        changed, same = (assemble(graph, run.outputs)["y"] for run in runs)
        for found in (*results, same):
            torch.testing.assert_close(found, before)
        torch.testing.assert_close(changed, expected(tensors))
        assert runs[0].peak_memory.tolist() == runs[1].peak_memory.tolist()
        assert min(runs[0].peak_memory) > 72


def test_a_shared_tensor_that_is_not_contiguous_is_copied() -> None:
    graph = affine()
    tensors = make_tensors(graph)
    tensors["w"] = torch.randn(3, 6).T
    run = execute(graph, Placement([0, 0]), "cpu", tensors=tensors)
    torch.testing.assert_close(assemble(graph, run.outputs)["y"], expected(tensors))


def test_shared_tensors_are_never_written_to() -> None:
    graph = branches()
    x = torch.randn(SIZE, requires_grad=True)
    before = x.detach().clone()
    with Engine(graph, CpuBackend(1), tensors={"x": x}, share=True) as engine:
        run = engine.run(Placement([0] * 4))
    assert torch.equal(x, before)
    assert not run.outputs[3].requires_grad


@pytest.mark.parametrize("name", sorted(SMALL))
def test_one_device_gives_what_the_executor_gives(name: str) -> None:
    graph = small_workload(name)
    rng = np.random.default_rng(0)
    reference = run_sequential(graph, make_tensors(graph))
    with Engine(graph, CpuBackend(2)) as engine:
        for trial in range(4):
            placement = Placement([1] * graph.n_ops, rng.permutation(graph.n_ops))
            runtime = ("priority", "fifo")[trial % 2]
            here = engine.run(placement, runtime=runtime)
            there = engine.run(placement, runtime=runtime, timeout=60)
            assert_equals_sequential(graph, here, reference)
            assert_possible(graph, placement, here.trace)
            assert here.trace.op.tolist() == there.trace.op.tolist()
            assert here.peak_memory.tolist() == there.peak_memory.tolist()


@settings(max_examples=40)
@given(executable_graphs(), st.data())
def test_any_graph_on_one_device(graph: Graph, data: st.DataObject) -> None:
    priority = data.draw(
        st.one_of(
            st.none(), st.lists(st.integers(-9, 9), min_size=graph.n_ops, max_size=graph.n_ops)
        )
    )
    placement = Placement([0] * graph.n_ops, priority)
    with Engine(graph, CpuBackend(1)) as engine:
        here, there = engine.run(placement), engine.run(placement, timeout=60)
    assert_equals_sequential(graph, here)
    assert_possible(graph, placement, here.trace)
    assert here.trace.op.tolist() == there.trace.op.tolist()
    assert here.peak_memory.tolist() == there.peak_memory.tolist()


def test_one_device_needs_no_threads_and_leaves_the_callers_settings() -> None:
    graph = layered_graph()
    placement = Placement([0] * graph.n_ops)
    seen: set[tuple[int, int, bool, bool]] = set()

    def look(op: int, device: int) -> None:
        seen.add(
            (
                threading.get_ident(),
                torch.get_num_threads(),
                torch.is_grad_enabled(),
                torch.is_autocast_enabled("cpu"),
            )
        )

    backend = FaultyBackend(CpuBackend(1, threads=2))
    backend.at_op = look
    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with Engine(graph, backend) as engine, torch.autocast("cpu"):
            engine.run(placement)
            assert torch.get_num_threads() == 3
            assert torch.is_autocast_enabled("cpu")
        assert torch.is_grad_enabled()
        assert seen == {(threading.get_ident(), 2, False, False)}
    finally:
        torch.set_num_threads(usual)


def test_a_failure_on_one_device_names_the_op_and_the_engine_lives_on() -> None:
    graph = layered_graph()
    placement = Placement([0] * graph.n_ops)
    backend = FaultyBackend(CpuBackend(1))

    def fail(op: int, device: int) -> None:
        if op == 30:
            raise ValueError("bad")

    with Engine(graph, backend) as engine:
        backend.at_op = fail
        with pytest.raises(
            OpError, match=r"layered: op 30 \(op30\) on device 'cpu0' failed: ValueError: bad"
        ) as caught:
            engine.run(placement)
        assert (caught.value.op, caught.value.device) == (30, "cpu0")
        backend.at_op = lambda op, device: None
        assert_equals_sequential(graph, engine.run(placement))


def test_an_interrupt_on_one_device_ends_the_run() -> None:
    graph = layered_graph()
    backend = FaultyBackend(CpuBackend(1))

    def interrupt(op: int, device: int) -> None:
        raise KeyboardInterrupt

    with Engine(graph, backend) as engine:
        backend.at_op = interrupt
        with pytest.raises(KeyboardInterrupt):
            engine.run(Placement([0] * graph.n_ops))


def test_too_little_memory_on_one_device_is_told_before_any_op_runs() -> None:
    graph = affine()
    ran: list[int] = []
    backend = FaultyBackend(CpuBackend(1, memory=48 + 48 + 72 + 4 + 24))
    backend.at_op = lambda op, device: ran.append(op)
    with (
        Engine(graph, backend) as engine,
        pytest.raises(
            DeviceMemoryError,
            match=r"affine: op 1 \(op1\) on device 'cpu0': its output takes 24 B, but of 196 B "
            "only 0 B are free",
        ),
    ):
        engine.run(Placement([0, 0]))
    assert not ran


def test_a_device_that_an_op_names_is_its_own() -> None:
    attributes = calls(
        call("arange.default", 3, device={"device": "here"}), result(0, (3,), "int64")
    )
    graph = aten_graph([((), attributes)], {})
    run = execute(graph, Placement([1]), "cpu")
    assert run.outputs[0].tolist() == [0, 1, 2]


def test_an_op_that_fails_on_its_values_is_named() -> None:
    attributes = calls(call("embedding.default", ref(0), ref(1)), result(2, (2, 3)))
    graph = aten_graph(
        [((whole("table", (4, 3)), whole("ids", (2,))), attributes)],
        {
            "table": TensorSpec((4, 3), "parameter", dtype="float32"),
            "ids": TensorSpec((2,), "input", {"kind": "values", "values": (1, 9)}, "int64"),
        },
    )
    with pytest.raises(OpError, match=r"captured: op 0 \(op0\) .* failed: IndexError: index out"):
        execute(graph, Placement([0]), "cpu")
