"""Bidirectional message passing over the dataflow graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing


class BidirectionalLayer(MessagePassing):  # type: ignore[misc]
    """One round of messages, from producers and from consumers, with a residual connection.

    ``h + relu(norm(W_0 h + W_1 mean over producers + W_2 mean over consumers))``, after GraphSAGE
    (Hamilton et al., NeurIPS 2017) with a weight for each direction.

    Parameters
    ----------
    size : int
        Width of the embeddings.
    """

    def __init__(self, size: int) -> None:
        super().__init__(aggr="mean")
        self.own = nn.Linear(size, size)
        self.producers = nn.Linear(size, size, bias=False)
        self.consumers = nn.Linear(size, size, bias=False)
        self.norm = nn.LayerNorm(size)

    def forward(self, h: Tensor, edges: Tensor) -> Tensor:
        """Update embeddings ``h`` [ops, size] along ``edges`` [2, edges] (producer, consumer)."""
        message = self.own(h)
        if edges.shape[1]:
            message = message + self.producers(self.propagate(edges, x=h))
            message = message + self.consumers(self.propagate(edges.flip(0), x=h))
        updated: Tensor = h + torch.relu(self.norm(message))
        return updated


class Encoder(nn.Module):
    """Embeds every op of a graph.

    Parameters
    ----------
    n_features : int
        Node features of an op.
    size : int
        Width of the embeddings.
    layers : int
        Rounds of messages.
    """

    def __init__(self, n_features: int, size: int, layers: int) -> None:
        super().__init__()
        self.enter = nn.Linear(n_features, size)
        self.rounds = nn.ModuleList(BidirectionalLayer(size) for _ in range(layers))
        self.norm = nn.LayerNorm(size)

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        """Embed ops: ``features`` [ops, n_features], ``edges`` [2, edges] -> [ops, size]."""
        h = torch.relu(self.enter(features))
        for layer in self.rounds:
            h = layer(h, edges)
        embedded: Tensor = self.norm(h)
        return embedded
