"""A branched convolutional network: each block joins branches of equal work.

The blocks are those of Inception (Szegedy et al., CVPR 2015), with kernels as large as each other
in every branch, so that no branch waits for one that does all the work.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.building import Example, full_of, seeded, sized

SIZES = {
    "tiny": {"batch": 2, "pixels": 16, "channels": 8, "branches": 4, "blocks": 2, "classes": 10},
    "small": {"batch": 16, "pixels": 32, "channels": 64, "branches": 4, "blocks": 3, "classes": 10},
    "full": {
        "batch": 64,
        "pixels": 112,
        "channels": 256,
        "branches": 4,
        "blocks": 8,
        "classes": 1000,
    },
}


class Branch(nn.Sequential):
    """Two 3x3 convolutions, each with its normalization and nonlinearity."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )


class Block(nn.Module):
    """Branches side by side, their channels joined again."""

    def __init__(self, channels: int, branches: int) -> None:
        super().__init__()
        width = channels // branches
        self.branches = nn.ModuleList(Branch(channels, width) for _ in range(branches))

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, channels, height, width] to the same shape."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class Inception(nn.Module):
    """A stem, blocks of branches, and a classifier."""

    def __init__(self, channels: int, branches: int, blocks: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*[Block(channels, branches) for _ in range(blocks)])
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [batch, 3, height, width] to logits [batch, classes]."""
        logits: Tensor = self.head(self.blocks(self.stem(images)).mean((2, 3)))
        return logits


def model(size: str = "tiny", **changes: int) -> Example:
    """Return the model and its example inputs; ``changes`` are entries of ``SIZES[size]``."""
    given = sized(SIZES, size, changes)
    with seeded(size):
        network = Inception(given["channels"], given["branches"], given["blocks"], given["classes"])
        images = torch.randn(given["batch"], 3, given["pixels"], given["pixels"])
        return network.eval(), (images,)


full = full_of(model)
