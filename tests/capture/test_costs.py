"""Costs from shapes: products of matrices as torch counts them, and bytes as they are moved."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from programs import captured
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from doppler.capture.capture import capture
from doppler.capture.costs import flops, is_heavy, traffic
from doppler.capture.program import Program


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(torch.randn(shape) for shape in shapes)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *self.weights)


MODELS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)), (4, 5, 16)),
    "convolution": (nn.Conv2d(4, 8, 3, stride=2, padding=1), (2, 4, 9, 9)),
    "groups": (nn.Conv2d(8, 16, 3, groups=4), (2, 8, 9, 9)),
    "line": (nn.Conv1d(4, 8, 5), (2, 4, 32)),
    "transposed": (nn.ConvTranspose2d(4, 8, 3, stride=2), (2, 4, 5, 5)),
    "matmul": (Of(lambda x, w: x @ w, (5, 7)), (3, 4, 5)),
    "bmm": (Of(torch.bmm, (3, 5, 7)), (3, 4, 5)),
    "addmm": (Of(lambda x, w, b: torch.addmm(b, x, w), (5, 7), (7,)), (4, 5)),
    "einsum": (Of(lambda x, w: torch.einsum("bij,jk->bik", x, w), (5, 7)), (3, 4, 5)),
    "transformer": (nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), (2, 6, 16)),
}


def heavy(program: Program) -> float:
    return sum(flops(call, program) for call in program.calls if is_heavy(call.op))


@pytest.mark.parametrize("name", MODELS)
def test_products_cost_what_torch_counts(name: str) -> None:
    model, shape = MODELS[name]
    x = torch.randn(shape)
    args = (x, x) if name == "transformer" else (x,)
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def count(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        return sdpa_flop_count(query, key, value)

    with FlopCounterMode(display=False, custom_mapping={attention: count}) as counter:
        model.eval()(*args)
    program, _ = captured(model, *args)
    assert heavy(program) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_a_recurrent_layer_multiplies_by_every_matrix_at_every_step() -> None:
    program, _ = captured(nn.LSTM(8, 16), torch.randn(5, 3, 8))
    assert heavy(program) == 2 * 5 * 3 * (4 * 16 * 8 + 4 * 16 * 16)


def cost_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> tuple[float, float, float]:
    """FLOPs, bytes read and bytes written of the only call of a function of one input."""
    program, _ = captured(Of(function, *shapes[1:]), torch.randn(shapes[0]))
    (call,) = program.calls
    return (flops(call, program), *traffic(call, program))


def test_maps_and_reductions_cost_by_their_elements() -> None:
    assert cost_of(lambda x: x * 2, (10, 10)) == (100, 400, 400)
    assert cost_of(lambda x, w: x + w, (10, 10), (10,)) == (100, 440, 400)
    assert cost_of(lambda x: x.sum(1), (10, 10)) == (100, 400, 40)
    assert cost_of(lambda x: x + x, (10, 10)) == (100, 400, 400)
    assert cost_of(torch.tanh, (10, 10))[0] > 100


def test_views_cost_nothing() -> None:
    assert cost_of(lambda x: x.t(), (10, 20)) == (0, 0, 0)
    assert cost_of(lambda x: x.expand(5, 10, 20), (10, 20)) == (0, 0, 0)


def test_a_lookup_reads_what_it_returns_and_not_the_table() -> None:
    program, _ = captured(nn.Embedding(1000, 64), torch.zeros(3, dtype=torch.int64))
    (call,) = program.calls
    read, written = traffic(call, program)
    assert written == 3 * 64 * 4
    assert read == written + 3 * 8


def test_ops_of_a_graph_have_the_costs_of_their_calls() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    whole = capture(model, (torch.randn(4, 16),)).graph
    apart = capture(model, (torch.randn(4, 16),), fusion=0.0).graph
    assert apart.n_ops == 3
    assert whole.n_ops < 3
    for column in ("flops", "param_bytes"):
        assert getattr(whole, column).sum() == getattr(apart, column).sum()
    # What resides on the device: parameters, and inputs that are given anew.
    elements = sum(parameter.numel() for parameter in model.parameters()) + 4 * 16
    assert apart.param_bytes.sum() == 4 * elements
    assert apart.output_bytes.tolist() == [4 * 4 * 32, 4 * 4 * 32, 4 * 4 * 8]
    assert all(map(math.isfinite, whole.bytes_read))


def test_attention_of_other_lengths() -> None:
    class Cross(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, k)

    program, _ = captured(Cross(), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8))
    assert heavy(program) == sdpa_flop_count((1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8))
