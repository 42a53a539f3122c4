"""LSTMs over sequences: as a grid of cells, and as torch's own layers.

``model`` calls a cell for every layer and chunk of steps, so that layers work at different steps at
the same time; ``layers`` keeps each ``nn.LSTM`` whole: one op for a layer and all its steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.building import Example, full_of, seeded, sized

SIZES = {
    "tiny": {"batch": 2, "steps": 4, "width": 16, "layers": 2, "classes": 10},
    "small": {"batch": 64, "steps": 12, "width": 512, "layers": 4, "classes": 10},
    "full": {"batch": 512, "steps": 48, "width": 2048, "layers": 8, "classes": 1000},
}


class Cells(nn.Module):
    """Layers of LSTM cells, step by step."""

    def __init__(self, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, sequence: Tensor) -> Tensor:
        """Map [batch, steps, width] to logits [batch, classes] of the last step."""
        state = sequence.new_zeros(sequence.shape[0], sequence.shape[2])
        states = [(state, state)] * len(self.cells)
        for x in sequence.unbind(1):
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(x, states[layer])
                x = states[layer][0]
        logits: Tensor = self.head(states[-1][0])
        return logits


class Layers(nn.Module):
    """Layers of ``nn.LSTM``, one after another."""

    def __init__(self, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, sequence: Tensor) -> Tensor:
        """Map [batch, steps, width] to logits [batch, classes] of the last step."""
        for layer in self.layers:
            sequence, _ = layer(sequence)
        logits: Tensor = self.head(sequence[:, -1])
        return logits


def model(size: str = "tiny", **changes: int) -> Example:
    """Return a grid of cells and its example inputs; ``changes`` are of ``SIZES[size]``."""
    return _example(Cells, size, changes)


def layers(size: str = "tiny", **changes: int) -> Example:
    """Return whole layers and their example inputs; ``changes`` are of ``SIZES[size]``."""
    return _example(Layers, size, changes)


def _example(kind: type[Cells | Layers], size: str, changes: dict[str, int]) -> Example:
    given = sized(SIZES, size, changes)
    with seeded(size):
        network = kind(given["width"], given["layers"], given["classes"])
        sequence = torch.randn(given["batch"], given["steps"], given["width"])
        return network.eval(), (sequence,)


full = full_of(model)
