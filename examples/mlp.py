"""A multilayer perceptron: one chain of large linear layers."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from examples.building import Example, full_of, seeded, sized

SIZES = {
    "tiny": {"batch": 8, "features": 32, "hidden": 64, "layers": 3, "classes": 10},
    "small": {"batch": 256, "features": 784, "hidden": 1024, "layers": 6, "classes": 10},
    "full": {"batch": 8192, "features": 4096, "hidden": 8192, "layers": 12, "classes": 1000},
}


def model(size: str = "tiny", **changes: int) -> Example:
    """Return the model and its example inputs; ``changes`` are entries of ``SIZES[size]``."""
    given = sized(SIZES, size, changes)
    with seeded(size):
        widths = [given["features"], *[given["hidden"]] * given["layers"]]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.GELU()]
        network = nn.Sequential(*layers, nn.Linear(widths[-1], given["classes"]))
        return network.eval(), (torch.randn(given["batch"], given["features"]),)


full = full_of(model)
