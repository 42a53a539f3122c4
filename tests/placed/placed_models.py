"""Small models, placed within a second: two devices of the CPU, whole, no time for a search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import doppler
from doppler.placed import PlacedModel

DEVICES = ("cpu:0", "cpu:1")
X = torch.linspace(-2.0, 2.0, 32).reshape(4, 8)


def place(
    model: nn.Module,
    inputs: Any = (X,),
    devices: Sequence[str] | None = DEVICES,
    **settings: Any,
) -> PlacedModel:
    quick: Mapping[str, Any] = {"budget": 0, "method": "critical_path", "shard": None}
    return doppler.compile(model, inputs, devices, **{**quick, **settings})


class Branches(nn.Module):
    """Two branches that can run at once."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left = nn.Linear(8, width)
        self.right = nn.Linear(8, width)
        self.out = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.left(x).relu() + self.right(x).tanh())
        return result


class Calling(nn.Module):
    """A model whose forward pass is a function of itself and its arguments."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("count", torch.zeros(()))
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def total(output: Tensor) -> Tensor:
    return output.square().sum()
