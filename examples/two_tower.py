"""A two-tower recommender: tables of embeddings, then a small network for each side.

In full size the tables take 41 GB: more than one device has, next to no arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.building import Example, full_of, seeded, sized

SIZES = {
    "tiny": {"batch": 8, "rows": 64, "width": 16, "tables": 2, "bag": 4, "hidden": 32},
    "small": {"batch": 2048, "rows": 100_000, "width": 64, "tables": 4, "bag": 16, "hidden": 512},
    "full": {
        "batch": 16384,
        "rows": 10_000_000,
        "width": 128,
        "tables": 4,
        "bag": 32,
        "hidden": 1024,
    },
}


class Tower(nn.Module):
    """Sum the embeddings of each feature's ids, then a network of two hidden layers."""

    def __init__(self, rows: int, width: int, tables: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.network = nn.Sequential(
            nn.Linear(tables * width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, width),
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids [batch, tables, bag] to unit vectors [batch, width]."""
        bags = [table(ids[:, index]).sum(1) for index, table in enumerate(self.tables)]
        joined = self.network(torch.cat(bags, dim=-1))
        return nn.functional.normalize(joined, dim=-1)


class TwoTower(nn.Module):
    """Score users against the items of the batch."""

    def __init__(self, rows: int, width: int, tables: int, hidden: int) -> None:
        super().__init__()
        self.users = Tower(rows, width, tables, hidden)
        self.items = Tower(rows, width, tables, hidden)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Map ids [batch, tables, bag] of both sides to scores [batch]."""
        scores: Tensor = (self.users(users) * self.items(items)).sum(-1)
        return scores


def model(size: str = "tiny", **changes: int) -> Example:
    """Return the model and its example inputs; ``changes`` are entries of ``SIZES[size]``."""
    given = sized(SIZES, size, changes)
    with seeded(size):
        network = TwoTower(given["rows"], given["width"], given["tables"], given["hidden"])
        shape = given["batch"], given["tables"], given["bag"]
        users, items = torch.randint(given["rows"], shape), torch.randint(given["rows"], shape)
        return network.eval(), (users, items)


full = full_of(model)
