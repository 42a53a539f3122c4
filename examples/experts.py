"""A mixture of experts whose shapes are static: every expert is a module and sees every token.

The weight of an expert that a token is not routed to is zero, so the result is that of routing each
token to its best ``top_k`` experts. It costs the products of the experts that were not chosen, and
buys ops that do not depend on the data and can lie on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.building import Example, full_of, seeded, sized

SIZES = {
    "tiny": {"batch": 2, "tokens": 8, "width": 32, "hidden": 64, "experts": 4, "layers": 2},
    "small": {"batch": 4, "tokens": 256, "width": 256, "hidden": 1024, "experts": 8, "layers": 2},
    "full": {"batch": 16, "tokens": 2048, "width": 2048, "hidden": 7168, "experts": 8, "layers": 4},
}
TOP_K = 2


class Expert(nn.Sequential):
    """A feed-forward network of one hidden layer."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class Experts(nn.Module):
    """Add to each token what its best experts make of it, weighted by the router."""

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Expert(width, hidden) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, tokens, width] to the same shape."""
        normed = self.norm(x)
        logits = self.router(normed)
        best, chosen = logits.topk(TOP_K, dim=-1)
        weights = torch.zeros_like(logits).scatter(-1, chosen, best.softmax(-1))
        for index, expert in enumerate(self.experts):
            x = x + expert(normed) * weights[..., index, None]
        return x


def model(size: str = "tiny", **changes: int) -> Example:
    """Return the model and its example inputs; ``changes`` are entries of ``SIZES[size]``."""
    given = sized(SIZES, size, changes)
    with seeded(size):
        layers = [
            Experts(given["width"], given["hidden"], given["experts"])
            for _ in range(given["layers"])
        ]
        network = nn.Sequential(*layers)
        tokens = torch.randn(given["batch"], given["tokens"], given["width"])
        return network.eval(), (tokens,)


full = full_of(model)
