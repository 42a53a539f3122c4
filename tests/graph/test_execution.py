from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from doppler.errors import GraphError, UnknownNameError
from doppler.graph import Graph, OpSpec, TensorSpec, Tile
from doppler.graph.execution import (
    FUNCTIONS,
    assemble,
    make_tensors,
    read_tile,
    run_op,
    run_sequential,
)
from doppler.graph.workloads import SHARDED, ffnn, make, moe_layer


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


X, Y = random(2, 3, 4), random(4, 2)

CASES: dict[str, tuple[dict[str, Any], list[torch.Tensor], torch.Tensor]] = {
    "add": ({"axes": ((0, 1, 2), (2, 0))}, [X, Y], X + Y.T[:, None]),
    "amax": ({"dim": 1}, [X], X.max(1).values),
    "divide": ({}, [X, X + 9], X / (X + 9)),
    "divide_or_zero": ({}, [X, X.relu()], torch.where(X > 0, 1.0, 0.0).double()),
    "einsum": (
        {"equation": "abc,cd->bd", "scale": 0.5},
        [X, Y],
        (X.sum(0) @ Y) * 0.5,
    ),
    "exp_difference": ({"axes": ((0, 1, 2), (0, 1))}, [X, X[..., 0]], (X - X[..., :1]).exp()),
    "form": (
        {"take": (((0, 2), (1, 3), (0, 4)),), "view": (2, 8), "keep": ((0, 2), (3, 7))},
        [X],
        X[:, 1:].reshape(2, 8)[:, 3:7],
    ),
    "maximum": ({}, [X, -X], X.abs()),
    "multiply": ({"axes": ((0, 1, 2), (0,))}, [X, X[:, 0, 0]], X * X[:, :1, :1]),
    "relu": ({}, [X], X.clamp(min=0)),
    "rms_norm": (
        {"axes": ((0, 1, 2), (1,)), "dim": 1, "epsilon": 0.0},
        [X, torch.ones(3).double()],
        X / X.pow(2).mean(1, keepdim=True).sqrt(),
    ),
    "rms_scale": (
        {"axes": ((0, 1, 2), (0, 2), (1,)), "size": 3, "epsilon": 0.0},
        [X, X.pow(2).sum(1), torch.ones(3).double()],
        X / X.pow(2).mean(1, keepdim=True).sqrt(),
    ),
    "rotary": (
        {"axes": ((0, 1, 2), (0, 2), (0, 2))},
        [X, torch.zeros(2, 4).double(), torch.ones(2, 4).double()],
        torch.cat((-X[..., 2:], X[..., :2]), -1),
    ),
    "silu_multiply": ({}, [X, X + 1], torch.nn.functional.silu(X) * (X + 1)),
    "softmax": ({"dim": 0}, [X], X.exp() / X.exp().sum(0)),
    "square_sum": ({"dim": 2}, [X], (X * X).sum(2)),
    "sum": ({"dim": 0}, [X], X[0] + X[1]),
}


def test_every_function_has_a_case() -> None:
    assert set(CASES) == set(FUNCTIONS)


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_function_computes_what_it_says_and_leaves_its_inputs_alone(name: str) -> None:
    attributes, inputs, expected = CASES[name]
    before = [tensor.clone() for tensor in inputs]
    spec = OpSpec(name, tuple(range(len(inputs))), tuple(expected.shape), attributes)
    result = run_op(spec, inputs)
    torch.testing.assert_close(result, expected)
    result.fill_(7.0)
    assert all(torch.equal(old, new) for old, new in zip(before, inputs, strict=True))


def test_a_transposition_shares_no_memory_with_its_input() -> None:
    result = run_op(OpSpec("einsum", (0,), (2, 4), {"equation": "ab->ba", "scale": 2.0}), [Y])
    torch.testing.assert_close(result, 2 * random(4, 2).T)
    assert result.untyped_storage().data_ptr() != Y.untyped_storage().data_ptr()


def test_a_formed_slice_does_not_keep_the_tile_alive() -> None:
    big = random(1000, 10)
    spec = OpSpec("form", (0,), (1, 10), {"take": (((3, 4), (0, 10)),), "view": (1, 10)})
    assert run_op(spec, [big]).untyped_storage().nbytes() == 80


def test_inputs_are_reshaped_to_their_views() -> None:
    spec = OpSpec("add", (0, 1), (2, 12), {"views": ((2, 12), None)})
    flat = random(2, 12)
    torch.testing.assert_close(run_op(spec, [X, flat]), X.reshape(2, 12) + flat)


def test_an_unknown_function_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="function of an op 'einsun': did you mean 'einsum'"):
        run_op(OpSpec("einsun", (), ()), [])


def test_a_result_of_another_shape_is_an_error() -> None:
    with pytest.raises(GraphError, match=r"relu gave .* shape \(4, 2\), the spec says \(2, 4\)"):
        run_op(OpSpec("relu", (0,), (2, 4)), [Y])


def two_ops(function: str = "relu", kind: str = "normal") -> Graph:
    return Graph.build(
        2,
        [0],
        [1],
        names=["first", "second"],
        specs=[
            OpSpec("relu", (Tile("x", ((0, 4),)),), (4,)),
            OpSpec(function, (0,), (4,)),
        ],
        tensors={"x": TensorSpec((4,), init={"kind": kind, "std": 1.0})},
        outputs={1: Tile("y", ((0, 4),))},
    )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("softmax", r"graph: op 1 \(second\): softmax lacks the attribute 'dim'"),
        ("add", r"graph: op 1 \(second\): add failed: not enough values to unpack"),
    ],
)
def test_a_failing_op_is_named(function: str, message: str) -> None:
    graph = two_ops(function)
    with pytest.raises(GraphError, match=message):
        run_sequential(graph, make_tensors(graph))


def test_an_op_that_torch_refuses_is_named() -> None:
    graph = two_ops()
    with pytest.raises(GraphError, match=r"graph: op 0 \(first\): Boolean inputs"):
        run_sequential(graph, {"x": torch.ones(4, dtype=torch.bool)})


def test_only_results_are_kept_unless_asked() -> None:
    graph = two_ops()
    tensors = make_tensors(graph)
    assert set(run_sequential(graph, tensors)) == {1}
    assert set(run_sequential(graph, tensors, keep_all=True)) == {0, 1}


def test_a_graph_of_costs_alone_cannot_run() -> None:
    graph = Graph.from_arrays([0], [1], [1.0, 1.0], [1.0, 1.0], name="costs")
    with pytest.raises(GraphError, match="costs: the graph has no executable ops"):
        run_sequential(graph, {})


def test_a_missing_output_is_named() -> None:
    with pytest.raises(GraphError, match=r"the output of op 1 \(second\) is missing"):
        assemble(two_ops(), {})


def test_tensors_depend_on_the_seed_alone() -> None:
    graph = ffnn(4, 4, 4, 4)
    first, again, other = (make_tensors(graph, seed) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["X"], other["X"])
    assert not torch.equal(first["W1"], first["W2"])


@pytest.mark.parametrize("dtype", ["float33", "int64", "nn"])
def test_a_type_that_is_not_floating_point_is_refused(dtype: str) -> None:
    with pytest.raises(GraphError, match=f"dtype '{dtype}' is not a floating-point type"):
        make_tensors(two_ops(), dtype=dtype)


def test_an_unknown_initial_value_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="initial value of x 'norma': did you mean 'normal'"):
        make_tensors(two_ops(kind="norma"))


def test_worker_threads_may_run_ops_at_the_same_time() -> None:
    graph = moe_layer(16, 8, 4, 2, 8, tiles=2)
    tensors = make_tensors(graph, dtype="float64")
    outputs = run_sequential(graph, tensors, keep_all=True)
    specs = graph.specs
    assert specs is not None

    def again(op: int) -> torch.Tensor:
        return run_op(
            specs[op],
            [
                read_tile(tensors, s) if isinstance(s, Tile) else outputs[s]
                for s in specs[op].inputs
            ],
        )

    with ThreadPoolExecutor(4) as pool:
        for op, result in enumerate(pool.map(again, range(graph.n_ops))):
            torch.testing.assert_close(result, outputs[op])


SMALL = {
    "chainmm": {"m": 4, "k": 4, "n": 4, "p": 4, "q": 4},
    "ffnn": {"batch": 4, "inputs": 4, "hidden": 4, "outputs": 4},
    "llama_block": {"sequence": 4, "hidden": 16, "heads": 4},
    "llama_layer": {"sequence": 4, "hidden": 16, "heads": 4, "intermediate": 8},
    "moe_layer": {"sequence": 4, "hidden": 8, "intermediate": 8},
}


@pytest.mark.parametrize("name", sorted(SHARDED))
def test_output_bytes_are_those_of_the_outputs(name: str) -> None:
    graph = make(name, **SMALL[name])
    outputs = run_sequential(graph, make_tensors(graph), keep_all=True)
    for op, output in outputs.items():
        assert output.nbytes == graph.output_bytes[op] == 4 * math.prod(output.shape)
