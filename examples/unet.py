"""A U-Net: what it reads on the way down is joined on the way up (Ronneberger et al., 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.building import Example, full_of, seeded, sized

SIZES = {
    "tiny": {"batch": 2, "pixels": 16, "channels": 8, "depth": 2, "classes": 3},
    "small": {"batch": 4, "pixels": 64, "channels": 32, "depth": 3, "classes": 3},
    "full": {"batch": 16, "pixels": 256, "channels": 64, "depth": 4, "classes": 21},
}


class Convolutions(nn.Sequential):
    """Two 3x3 convolutions, each with its normalization and nonlinearity."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
        )


class UNet(nn.Module):
    """Halve the image and double the channels ``depth`` times, and back."""

    def __init__(self, channels: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            Convolutions(before, after) for before, after in zip([3, *widths], widths, strict=False)
        )
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in reversed(widths[:-1])
        )
        self.up = nn.ModuleList(Convolutions(2 * width, width) for width in reversed(widths[:-1]))
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [batch, 3, height, width] to logits [batch, classes, height, width]."""
        kept = []
        for level, convolutions in enumerate(self.down):
            x = convolutions(self.pool(x) if level else x)
            kept.append(x)
        kept.pop()
        for grow, convolutions in zip(self.grow, self.up, strict=True):
            x = convolutions(torch.cat([kept.pop(), grow(x)], dim=1))
        logits: Tensor = self.head(x)
        return logits


def model(size: str = "tiny", **changes: int) -> Example:
    """Return the model and its example inputs; ``changes`` are entries of ``SIZES[size]``."""
    given = sized(SIZES, size, changes)
    with seeded(size):
        network = UNet(given["channels"], given["depth"], given["classes"])
        images = torch.randn(given["batch"], 3, given["pixels"], given["pixels"])
        return network.eval(), (images,)


full = full_of(model)
