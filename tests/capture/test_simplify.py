"""What need not run is left out, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from programs import captured, run
from torch import Tensor, nn

from doppler.capture.export import export
from doppler.capture.program import Program
from doppler.capture.simplify import simplify


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


X = torch.arange(12.0).reshape(3, 4)


def simplified(function: Callable[..., Any], *args: Tensor) -> tuple[Program, list[str]]:
    """The program of a function, which gives what the function gives, and its operators."""
    program, tensors = captured(Of(function), *args)
    found = run(program, tensors)
    expected = function(*args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)
    return program, [call.op.split(".")[1] for call in program.calls]


@pytest.mark.parametrize(
    "copy",
    [
        torch.clone,
        torch.detach,
        Tensor.contiguous,
        Tensor.float,
        lambda x: x.to("cpu"),
        lambda x: x.reshape(3, 4),
        lambda x: x.expand(3, 4),
        lambda x: torch.dropout(x, 0.5, False),
    ],
)
def test_copies_of_one_shape_and_dtype_are_gone(copy) -> None:
    assert simplified(lambda x: copy(copy(x) + 1) * 2, X)[1] == ["add", "mul"]


def test_casts_stay() -> None:
    assert simplified(lambda x: x.to(torch.float64) + 1, X)[1][1:] == ["add"]


def test_views_suit_tensors_of_any_strides() -> None:
    assert "view" not in simplified(lambda x: (x + 1).view(4, 3) * 2, X)[1]


def test_what_is_known_at_capture_is_computed_once() -> None:
    def mask(x: Tensor) -> Tensor:
        return x + torch.ones(3, 4).tril().masked_fill(torch.zeros(3, 4) == 0, 2.0)

    program, ops = simplified(mask, X)
    assert ops == ["add"]
    assert [source.role for source in program.sources.values()].count("constant") == 1


def test_several_results_of_one_folded_call() -> None:
    program, ops = simplified(lambda x: x + sum(torch.arange(8.0).reshape(2, 4).unbind()), X)
    assert ops == ["add"]
    program, ops = simplified(lambda x: (x + 1, *torch.tensor([3.0, 1.0]).sort()), X)
    assert ops == ["add"]
    assert len(program.outputs) == 3


def test_random_numbers_are_drawn_anew() -> None:
    exported = export(Of(lambda x: x + torch.rand(4)), (X,))
    program, _ = simplify(exported.program, exported.constants)
    assert [call.op.split(".")[1] for call in program.calls] == ["rand", "add"]


def test_large_and_expanded_constants_are_made_when_they_are_needed() -> None:
    def large(x: Tensor) -> Tensor:
        return x + torch.zeros(5000, 5000).sum()

    exported = export(Of(large), (X,))
    program, constants = simplify(exported.program, exported.constants)
    assert "zeros" in [call.op.split(".")[1] for call in program.calls]
    assert not constants
    assert "expand" in simplified(lambda x: x + torch.ones(1, 4).expand(3, 4).sin(), X)[1]


def test_dead_calls_and_their_tensors_are_gone_but_inputs_stay() -> None:
    class Dead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(4, 4)
            self.unused = nn.Linear(4, 4)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            self.unused(y)
            return self.used(x)

    program, _ = captured(Dead(), X, X)
    assert [call.name for call in program.calls] == ["used.linear"]
    assert program.sources.keys() == {"x", "y", "used.weight", "used.bias"}
    assert {each.source for each in program.inputs} == {"x", "used.weight", "used.bias"}
