"""Programs as graphs: executable ops, the tensors that they read, and what goes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from running import assert_as_eager, assert_equal, run_captured
from torch import Tensor, nn

from doppler import Graph, load_graph, save_graph
from doppler.capture.capture import capture
from doppler.errors import CaptureError
from doppler.graph import OpSpec, Tile
from doppler.graph.execution import make_tensors, run_sequential


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 4)

    def forward(self, *args: Tensor) -> Any:
        return self.function(self, *args)


X = torch.linspace(-1, 1, 32).reshape(8, 4)


def graph_of(function: Callable[..., Any], *args: Tensor, **options: Any) -> Graph:
    ran = assert_as_eager(Of(function), args, **options)
    return ran.captured.graph


def specs_of(graph: Graph) -> tuple[OpSpec, ...]:
    assert graph.specs is not None
    return tuple(graph.specs)


def calls_of(spec: OpSpec) -> list[str]:
    return [call["op"].split(".")[1] for call in spec.attributes["calls"]]


def test_an_op_is_a_run_of_calls_with_the_views_that_they_read() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.relu(self.first(x).t().reshape(2, 24)) * 2

    graph = graph_of(forward, X)
    (spec,) = specs_of(graph)
    assert calls_of(spec)[0] == "linear"
    assert {"relu", "mul"} <= {*calls_of(spec)}
    assert spec.shape == (2, 24)
    assert (graph.names[0], graph.kinds[0]) == ("first.linear", "linear")
    assert {each.tensor for each in spec.inputs if isinstance(each, Tile)} == {
        "args_0",
        "first.weight",
        "first.bias",
    }


def test_views_are_no_ops_and_are_taken_where_they_are_read() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = self.first(x)
        return self.second(y.t().reshape(8, 6)), torch.relu(y[:, 1:3]), y.sum()

    graph = graph_of(forward, X, fusion=0.0)
    assert sorted(graph.kinds) == ["linear", "linear", "relu", "sum"]
    # The whole tensor travels once, and its readers look at their parts of it.
    first = graph.names.index("first.linear")
    assert sum(int(source) == first for source in graph.src) == 3


def test_an_output_that_is_also_read_is_an_op_of_its_own_value() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = self.first(x)
        return y, self.second(y), y.t(), y

    graph = graph_of(forward, X)
    assert len(graph.outputs) == 4
    for op, tile in graph.outputs.items():
        (result,) = specs_of(graph)[op].attributes["results"]
        assert tuple(result["shape"]) == tuple(high - low for low, high in tile.slices)


def test_several_results_are_one_value_and_sized_together() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        values, places = self.first(x).topk(2)
        return torch.relu(values), places + 1

    graph = graph_of(forward, X, fusion=0.0)
    (op,) = (op for op, spec in enumerate(specs_of(graph)) if "topk" in calls_of(spec))
    assert [result["dtype"] for result in specs_of(graph)[op].attributes["results"]] == [
        "float32",
        "int64",
    ]
    assert graph.output_bytes[op] == 8 * 2 * (4 + 8)


def test_results_that_nobody_reads_are_not_kept() -> None:
    graph = graph_of(lambda self, x: self.first(x).max(1)[0] + 1, X, fusion=0.0)
    (op,) = (op for op, spec in enumerate(specs_of(graph)) if "max" in calls_of(spec))
    (result,) = specs_of(graph)[op].attributes["results"]
    assert (result["dtype"], graph.output_bytes[op]) == ("float32", 8 * 4)


def test_arguments_are_plain_data() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = x.masked_fill(x > 0, float("-inf")).to(torch.float64)
        return torch.cat([y, y], 1), x.new_full((2,), float("nan"))

    spec = {op: call for s in specs_of(graph_of(forward, X, fusion=0.0)) for op, call in _calls(s)}
    assert spec["masked_fill"]["args"][2] == {"float": "-inf"}
    assert {"dtype": "float64"} in spec["_to_copy"]["kwargs"].values()
    assert {"device": "here"} in spec["new_full"].get("kwargs", {}).values() or "device" not in str(
        spec["new_full"]
    )
    assert len(spec["cat"]["args"][0]) == 2


def _calls(spec: OpSpec) -> list[tuple[str, Any]]:
    return list(zip(calls_of(spec), spec.attributes["calls"], strict=True))


def test_tensors_say_how_they_are_filled() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)
            self.norm = nn.BatchNorm1d(4)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.norm(self.table(tokens)) + torch.tensor([1.0, 2.0, 3.0, 4.0])

    graph = capture(Model().eval(), (torch.tensor([2, 7, 3]),)).graph
    inits = {name: dict(spec.init) for name, spec in graph.tensors.items()}
    assert inits["tokens"] == {"kind": "integers", "low": 2, "high": 8}
    assert inits["table.weight"]["kind"] == "normal"
    assert inits["norm.running_var"] == {"kind": "constant", "value": 1.0}
    (values,) = (init["values"] for init in inits.values() if init["kind"] == "values")
    assert tuple(values) == (1.0, 2.0, 3.0, 4.0)
    outputs = run_sequential(graph, make_tensors(graph))
    assert all(bool(tensor.isfinite().all()) for tensor in outputs.values())


def test_large_constants_are_not_written_into_the_graph() -> None:
    table = torch.arange(5000.0)
    graph = graph_of(lambda self, x: x.sum() + table.sin(), X)
    (spec,) = (spec for spec in graph.tensors.values() if spec.role == "constant")
    assert spec.init["kind"] == "normal"


@pytest.mark.parametrize("shard", [None, {"batch": 2}])
def test_a_file_holds_all_of_it(shard, tmp_path) -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = self.second(self.first(x)).masked_fill(x > 0, float("-inf"))
        return y.softmax(-1).bfloat16(), y.topk(2)

    model = Of(forward)
    ran = run_captured(model, (X,), shard=shard)
    graph = ran.captured.graph
    back = load_graph(save_graph(graph, tmp_path / "graph.json"))
    assert back.specs == graph.specs
    assert dict(back.tensors) == dict(graph.tensors)
    assert dict(back.outputs) == dict(graph.outputs)
    assert list(map(tuple, back.tiles)) == list(map(tuple, graph.tiles))
    for column in ("names", "kinds", "meta_ops"):
        assert list(getattr(back, column)) == list(getattr(graph, column))
    tensors = make_tensors(graph, 3)
    assert_equal(run_sequential(back, make_tensors(back, 3)), run_sequential(graph, tensors))


def test_a_model_that_computes_nothing_has_no_graph() -> None:
    with pytest.raises(CaptureError, match="computes nothing that could be placed"):
        capture(Of(lambda self, x: None), (X,))
