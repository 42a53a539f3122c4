"""What is measured of a graph, what is left out, and why."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from aten_graphs import aten_graph, call, calls, ref, result, whole

from doppler import Graph, workloads
from doppler.errors import GraphError
from doppler.graph.op_class import op_classes
from doppler.graph.spec import OpSpec, TensorSpec
from doppler.profiling.classes import OpClass, find_classes, measure_classes
from doppler.profiling.rates import Rates
from doppler.profiling.workers import Workers

RATES = Rates(1e9, 1e9, 1e-6, {}, {})
ROOM = [1e9, 1e9]


def small() -> Graph:
    return workloads.ffnn(16, 8, 16, 8)


def test_every_distinct_class_is_found_once() -> None:
    graph, other = small(), workloads.chainmm(8, 8, 8, 8, 8)
    found = find_classes([graph, other, graph])
    names = op_classes(graph)
    assert {c.name for c in found} == {*names, *op_classes(other)}
    counts = {c.name: c.count for c in found}
    assert sum(counts.values()) == 2 * graph.n_ops + other.n_ops
    op = 0
    first = next(c for c in found if c.name == names[op])
    assert first.flops == graph.flops[op]
    assert first.moved == graph.bytes_read[op] + graph.output_bytes[op]
    assert first.held == 4 * (
        math.prod(first.shapes[0]) + math.prod(first.shapes[1]) + math.prod(first.spec.shape)
    )
    assert first.expected(RATES) == pytest.approx(1e-6 + max(first.flops, first.moved) / 1e9)


def test_a_graph_without_executable_ops_is_refused() -> None:
    graph = Graph.from_arrays([], [], [1.0], [1.0], source="dir/plain.json")
    with pytest.raises(GraphError, match=r"dir/plain\.json: the graph has no executable ops to"):
        find_classes([small(), graph])


@pytest.mark.parametrize("make", [small, lambda: workloads.llama_layer(1, 16, 32, 4, 2, 24)])
def test_every_class_is_timed_on_every_device(make) -> None:
    classes = find_classes([make()])
    with Workers(("cpu", "cpu")) as workers:
        found = measure_classes(workers, [RATES] * 2, ROOM, classes, repeats=2, budget=30.0)
    assert found.left_out == {}
    assert [set(times) for times in found.timings] == [{c.name for c in classes}] * 2
    # Threads of one CPU are one kind: each has the samples of both.
    assert {timing.count for times in found.timings for timing in times.values()} == {4}
    assert found.timings[0] == found.timings[1]
    assert all(timing.seconds > 0 for timing in found.timings[0].values())


def test_what_the_budget_does_not_hold_is_named() -> None:
    classes = find_classes([small()])
    slow = replace(RATES, launch_overhead=1.0)
    with Workers(("cpu",)) as workers:
        found = measure_classes(workers, [slow], ROOM, classes, repeats=1, budget=4.5)
    # Two classes at two ops of a second each, those with the most ops first.
    assert len(found.timings[0]) == 2
    assert len(found.left_out) == len(classes) - 2
    assert set(found.left_out.values()) == {"would take about 2 s"}
    most = sorted((c.count for c in classes), reverse=True)[:2]
    assert sorted(c.count for c in classes if c.name in found.timings[0]) == sorted(most)


def test_a_budget_that_ends_early_leaves_out_what_had_no_turn() -> None:
    classes = find_classes([small()])
    free = replace(RATES, launch_overhead=0.0, flops=1e30, memory_bandwidth=1e30)
    with Workers(("cpu",)) as workers:
        found = measure_classes(workers, [free], ROOM, classes, repeats=1, budget=1e-7)
    assert found.timings == [{}]
    assert set(found.left_out.values()) == {"the budget ended before its turn"}


def test_what_does_not_fit_in_memory_is_not_tried() -> None:
    classes = find_classes([small()])
    with Workers(("cpu",)) as workers:
        found = measure_classes(workers, [RATES], [100.0], classes, repeats=1, budget=9.0)
    assert all(reason.startswith("takes ") for reason in found.left_out.values())
    assert len(found.left_out) + len(found.timings[0]) == len(classes)
    assert found.left_out


def test_an_op_that_fails_is_left_out_and_the_others_are_measured() -> None:
    classes = find_classes([small()])
    broken = OpClass("broken", OpSpec("einsum", (0,), (2,), {"equation": "a->"}), ((2,),), 9, 0, 0)
    with Workers(("cpu", "cpu")) as workers:
        found = measure_classes(
            workers, [RATES] * 2, ROOM, [broken, *classes], repeats=1, budget=9.0
        )
    assert set(found.left_out) == {"broken"}
    assert "einsum gave a result of shape ()" in found.left_out["broken"]
    assert len(found.timings[0]) == len(classes)


def test_calls_are_timed_on_inputs_of_their_types() -> None:
    looked_up = calls(
        call("embedding.default", ref(0), ref(1)),
        call("topk.default", ref(2), 2),
        result(3, (4, 2), item=0),
        result(3, (4, 2), "int64", 1),
    )
    taken = calls(
        call("lt.Scalar", ref(0, 0), 0.0),
        call("mul.Tensor", ref(1), ref(0, 1)),
        result(2, (4, 2), "int64"),
    )
    graph = aten_graph(
        [((whole("table", (9, 6)), whole("ids", (4,))), looked_up), ((0,), taken)],
        {
            "table": TensorSpec((9, 6), "parameter", dtype="float32"),
            "ids": TensorSpec((4,), "input", {"kind": "integers", "high": 9}, "int64"),
        },
    )
    classes = find_classes([graph, small()])
    with Workers(("cpu", "cpu")) as workers:
        found = measure_classes(workers, [RATES] * 2, ROOM, classes, repeats=1, budget=9.0)
    assert found.left_out == {}
    assert {*op_classes(graph)} < set(found.timings[0])


def test_calls_that_cannot_run_are_refused_before_any_does() -> None:
    wrong = calls(call("mm.default", ref(0), ref(0)), result(1, (4, 6)))
    graph = aten_graph([((whole("x", (4, 6)),), wrong)], {"x": TensorSpec((4, 6))})
    with pytest.raises(
        GraphError, match=r"captured: op 0 \(op0\): call 0 \(aten\.mm\.default\): t"
    ):
        find_classes([graph])
