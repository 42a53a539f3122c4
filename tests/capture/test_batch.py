"""Sharding along the batch: chains that share what does not depend on it, put together again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from programs import captured
from running import assert_as_eager
from torch import Tensor, nn

from doppler.capture.batch import replicate
from doppler.capture.capture import capture
from doppler.capture.program import Program, TensorMeta
from doppler.errors import CaptureError


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 4)

    def forward(self, *args: Tensor) -> Any:
        return self.function(self, *args)


def net(self: Any, x: Tensor) -> Tensor:
    return self.second(torch.relu(self.first(x)))


X = torch.linspace(-1, 1, 32).reshape(8, 4)


def replicated(function: Callable[..., Any], parts: int, *args: Tensor) -> Program:
    model = Of(function)
    whole, _ = captured(model, *args)
    part, _ = captured(model, *(each[: len(each) // parts] for each in args))
    return replicate(part, whole.sources, {each.name: each.meta for each in whole.outputs})


def test_every_chain_has_its_part_of_the_batch_and_its_number() -> None:
    program = replicated(net, 4, X)
    linear = [call for call in program.calls if call.meta_op == "first.linear"]
    assert [call.tile for call in linear] == [(0,), (1,), (2,), (3,)]
    assert [call.name for call in linear] == [f"first.linear[{chain}]" for chain in range(4)]
    blocks = [each for each in program.inputs if each.source == "args_0"]
    assert [block.slices[0] for block in blocks] == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert program.sources["args_0"].meta == TensorMeta((8, 4), "float32")
    # Parameters are there once.
    assert len(program.inputs) == 4 + 4
    (output,) = program.outputs
    assert output.meta.shape == (8, 4)
    assert [slices[0] for _, slices in output.pieces] == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_what_does_not_depend_on_the_batch_is_computed_once() -> None:
    def shared(self: Any, x: Tensor) -> Tensor:
        return self.second(self.first(x) * torch.tanh(self.first.weight.sum()))

    calls = replicated(shared, 4, X).calls
    names = [call.name for call in calls]
    assert names.count("sum") == names.count("tanh") == 1
    assert len([name for name in names if name.startswith("mul[")]) == 4


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("fusion", [0.0, 0.002])
def test_outputs_are_those_of_the_whole_batch(parts, fusion) -> None:
    def several(self: Any, x: Tensor, y: Tensor) -> Any:
        z = net(self, x) + y
        return {"a": z, "b": (z.t(), z.argmax(1)), "weights": self.first.weight.sum()}

    model = Of(several)
    assert_as_eager(model, (X, X.flip(0)), shard={"batch": parts}, fusion=fusion)


def test_a_batch_of_tokens_and_an_input_without_a_batch() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
            return self.table(tokens) * mask

    tokens = torch.arange(24).reshape(4, 6) % 10
    ran = assert_as_eager(Model(), (tokens, torch.ones(6, 1)), shard={"batch": 2})
    assert ran.captured.graph.tensors["tokens"].shape == (4, 6)


def test_random_numbers_are_drawn_by_every_chain() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    graph = capture(model, (X,), shard={"batch": 4}, fusion=0.0).graph
    assert sum("dropout" in kind for kind in graph.kinds) == 4


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (lambda self, x: net(self, x).mean(), (X,), "output0 is computed of the whole batch"),
        (lambda self, x: x.t() @ x, (X,), "output0 is computed of the whole batch"),
        (lambda self, x: x @ x.t(), (X,), "output0 of shape"),
        (lambda self, x: net(self, x[:3]), (X,), "output0 of shape (3, 4) does not"),
        (net, (torch.ones(6, 4),), "a batch of 6 cannot be cut into 4 equal parts"),
        (lambda self, x: self.first.weight * x, (torch.tensor(2.0),), "could be the batch"),
    ],
)
def test_what_cannot_be_sharded_is_refused(function, args, message) -> None:
    with pytest.raises(CaptureError) as error:
        capture(Of(function), args, shard={"batch": 4})
    assert message in str(error.value)


def test_a_batch_that_the_model_normalizes_over_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(CaptureError, match="1 is normalized over the batch"):
        capture(model.train(), (X,), shard={"batch": 2})
    assert_as_eager(model.eval(), (X,), shard={"batch": 2})
