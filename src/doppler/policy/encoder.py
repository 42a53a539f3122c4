"""Bidirectional message passing over the dataflow graph."""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import spmm


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

    def forward(self, h: Tensor, producers: Tensor, consumers: Tensor) -> Tensor:
        """Update embeddings ``h`` [ops, size]; the rest as for :class:`Encoder`."""
        message = self.own(h)
        # In place: on large graphs it is new memory, not arithmetic, that takes the time.
        message.addmm_(self.propagate(producers, x=h), self.producers.weight.T)
        message.addmm_(self.propagate(consumers, x=h), self.consumers.weight.T)
        updated: Tensor = h + self.norm(message).relu_()
        return updated

    def message_and_aggregate(self, edge_index: Tensor, x: Tensor) -> Tensor:
        """Average the embeddings of each op's neighbors, without one row per edge."""
        received: Tensor = spmm(edge_index, x, self.aggr)
        return received


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

    def forward(self, features: Tensor, producers: Tensor, consumers: Tensor) -> Tensor:
        """Embed the ops of a graph.

        Parameters
        ----------
        features : float tensor, shape [ops, n_features]
        producers, consumers : sparse CSR float tensor, shape [ops, ops]
            Ones in the row of each op at those that it reads, and at those that read it.

        Returns
        -------
        float tensor, shape [ops, size]
        """
        h = self.enter(features).relu_()
        for layer in self.rounds:
            h = layer(h, producers, consumers)
        embedded: Tensor = self.norm(h)
        return embedded
