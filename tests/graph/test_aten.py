from __future__ import annotations

from typing import Any

import pytest
import torch
from aten_graphs import aten_graph, call, calls, ref, result, whole

from doppler.errors import GraphError
from doppler.graph import OpSpec, TensorSpec
from doppler.graph.execution import make_tensors, run_op, run_sequential

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
W = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))

CASES: dict[str, tuple[dict[str, Any], list[Any], Any]] = {
    "one call": (
        calls(call("linear.default", ref(0), ref(1)), result(2, (3, 5))),
        [X, W],
        torch.nn.functional.linear(X, W),
    ),
    "fused": (
        calls(
            call("mm.default", ref(0), ref(1)),
            call("relu.default", ref(2)),
            call("add.Tensor", ref(3), 1, alpha=2.5),
            result(4, (3, 5)),
        ),
        [X, W.T],
        (X @ W.T).relu() + 2.5,
    ),
    "several results": (
        calls(call("max.dim", ref(0), 1), result(1, (3,), item=0), result(1, (3,), "int64", 1)),
        [X],
        tuple(X.max(1)),
    ),
    "items of an input": (
        calls(call("mul.Tensor", ref(0, 1), ref(0, 0)), result(1, (3, 4))),
        [(X, X + 1)],
        X * (X + 1),
    ),
    "a list of tensors": (
        calls(call("cat.default", (ref(0), ref(1), ref(0)), 0), result(2, (11, 4))),
        [X, W],
        torch.cat((X, W, X)),
    ),
    "optional tensors": (
        calls(call("index.Tensor", ref(0), (None, ref(1))), result(2, (3, 2))),
        [X, torch.tensor([1, 3])],
        X[:, [1, 3]],
    ),
    "a dtype and a device": (
        calls(
            call("arange.default", 4, dtype={"dtype": "int32"}, device={"device": "here"}),
            call("to.dtype", ref(0), {"dtype": "float64"}),
            call("add.Tensor", ref(1), ref(2)),
            result(3, (3, 4), "float64"),
        ),
        [X],
        X.double() + torch.arange(4),
    ),
    "a tensor made of nothing": (
        calls(call("full.default", (2,), {"float": "-inf"}), result(0, (2,))),
        [],
        torch.full((2,), float("-inf")),
    ),
    "a view": (calls(call("view.default", ref(0), (2, -1)), result(1, (2, 6))), [X], X.view(2, 6)),
    "a scalar": (calls(call("sum.default", ref(0)), result(1, ())), [X], X.sum()),
    "one of several": (
        calls(call("unbind.int", ref(0), 1), result(1, (3,), item=2)),
        [X],
        X[:, 2],
    ),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_calls_compute_what_torch_computes(name: str) -> None:
    attributes, inputs, expected = CASES[name]
    spec = OpSpec("aten", tuple(range(len(inputs))), (), attributes)
    found = run_op(spec, inputs)
    assert isinstance(found, tuple) == isinstance(expected, tuple)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_graph_of_calls_runs_in_order() -> None:
    graph = aten_graph(
        [
            ((whole("x", (3, 4)),), calls(call("max.dim", ref(0), 1, True), *_max_results())),
            (
                (0, whole("x", (3, 4))),
                calls(call("gather.default", ref(1), 1, ref(0, 1)), result(2, (3, 1))),
            ),
        ],
        {"x": TensorSpec((3, 4), dtype="float32")},
    )
    tensors = make_tensors(graph)
    torch.testing.assert_close(
        run_sequential(graph, tensors)[1], tensors["x"].max(1, keepdim=True).values
    )


def _max_results() -> tuple[Any, Any]:
    return result(1, (3, 1), item=0), result(1, (3, 1), "int64", 1)


def test_a_value_is_freed_after_its_last_use() -> None:
    attributes = calls(
        call("exp.default", ref(0)),
        call("relu.default", ref(1)),
        call("neg.default", ref(2)),
        result(3, (3, 4)),
    )
    inputs = [X]
    freed: list[bool] = []
    import weakref

    from doppler.graph.aten import compile_calls, find_operator

    exp = find_operator("aten.exp.default").call
    alive: list[weakref.ref[torch.Tensor]] = []

    def watched(tensor: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = exp(tensor)
        alive.append(weakref.ref(made))
        return made

    def last(tensor: torch.Tensor) -> torch.Tensor:
        freed.append(alive[0]() is None)
        return -tensor

    compute = compile_calls(attributes, 1)
    names = compute.__globals__
    functions = [name for name in names if name.startswith("c")]
    names[functions[0]], names[functions[2]] = watched, last
    compute(inputs)
    assert freed == [True]


@pytest.mark.parametrize(
    ("dtype", "init", "expected"),
    [
        ("int64", {"kind": "values", "values": (1, 2**53 + 1)}, [1, 2**53 + 1]),
        ("bool", {"kind": "values", "values": (True, False)}, [True, False]),
        ("float32", {"kind": "values", "values": (0.5, {"float": "inf"})}, [0.5, float("inf")]),
        ("int32", {"kind": "constant", "value": 2**30 + 1}, [2**30 + 1] * 2),
        ("int64", {"kind": "integers", "low": 7, "high": 8}, [7, 7]),
    ],
)
def test_tensors_are_of_their_own_type(dtype: str, init: dict[str, Any], expected: Any) -> None:
    tensor = make_tensors(one_op(TensorSpec((2,), "input", init, dtype)))["x"]
    assert tensor.dtype == getattr(torch, dtype)
    assert tensor.tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "init", "message"),
    [
        ("int64", {"kind": "normal", "std": 1.0}, "'normal' is for floating-point types, not for"),
        ("int64", {"kind": "integers"}, "'integers' lacks 'high'"),
        ("int64", {"kind": "integers", "high": 0}, "'integers' is wrong: random_ expects"),
        ("int64", {"kind": "values", "values": (1, 2, 3)}, "'values' is wrong: shape"),
        ("int64", {"kind": "values", "values": ("a", 2)}, "'values' is wrong"),
        ("float32", {"std": 1.0}, "initial value of x None: known are"),
    ],
)
def test_a_tensor_that_cannot_be_filled_is_named(
    dtype: str, init: dict[str, Any], message: str
) -> None:
    from doppler.errors import DopplerError

    with pytest.raises(DopplerError, match=message):
        make_tensors(one_op(TensorSpec((2,), "input", init, dtype)))


def test_a_tensor_larger_than_the_memory_is_refused() -> None:
    graph = one_op(TensorSpec((2**50, 2)))
    with pytest.raises(GraphError, match="more memory than this machine has"):
        make_tensors(graph)


def one_op(spec: TensorSpec) -> Any:
    dtype = spec.dtype or "float32"
    attributes = calls(call("clone.default", ref(0)), result(1, spec.shape, dtype))
    return aten_graph([((whole("x", spec.shape),), attributes)], {"x": spec})
