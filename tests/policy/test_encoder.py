"""The encoder against the same sums over a dense adjacency matrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from policies import random_policy
from random_problems import weighty_graph

from doppler import Cluster, Graph, Problem
from doppler.policy.encoder import BidirectionalLayer, Encoder
from doppler.policy.network import Inputs, policy_inputs


def dense_layer(layer: BidirectionalLayer, h: torch.Tensor, reads: torch.Tensor) -> torch.Tensor:
    """h + relu(norm(W_0 h + W_1 mean over producers + W_2 mean over consumers))."""
    producers = reads / reads.sum(1, keepdim=True).clamp(min=1)
    consumers = reads.T / reads.T.sum(1, keepdim=True).clamp(min=1)
    message = layer.own(h) + layer.producers(producers @ h) + layer.consumers(consumers @ h)
    return h + torch.relu(layer.norm(message))


@pytest.mark.parametrize(
    "graph",
    [
        weighty_graph(0, 30),
        Graph.from_arrays([], [], [1.0], [1.0]),
        Graph.from_arrays([], [], [1.0] * 4, [1.0] * 4),
        Graph.from_arrays([0, 3], [1, 4], [1.0] * 6, [0.5] * 6),
    ],
    ids=["connected", "one op", "no edges", "parts"],
)
def test_embeddings_and_gradients_are_those_of_dense_matrices(graph: Graph) -> None:
    inputs = policy_inputs(Problem(graph, Cluster.uniform(2)))
    encoder = random_policy().encoder
    edges = np.zeros((graph.n_ops, graph.n_ops), np.float32)
    edges[graph.dst, graph.src] = 1.0
    reads = torch.from_numpy(edges)
    found = encoder(inputs.features, inputs.producers, inputs.consumers)
    h = torch.relu(encoder.enter(inputs.features))
    for layer in encoder.rounds:
        h = dense_layer(layer, h, reads)  # type: ignore[arg-type]
    wanted = encoder.norm(h)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(0))
    parameters = list(encoder.parameters())
    gradients = torch.autograd.grad((found * weight).sum(), parameters)
    slow = torch.autograd.grad((wanted * weight).sum(), parameters)
    for (name, _), gradient, expected in zip(
        encoder.named_parameters(), gradients, slow, strict=True
    ):
        torch.testing.assert_close(
            gradient,
            expected,
            rtol=1e-3,
            atol=1e-4,
            msg=lambda m, name=name: f"{name}: {m}",  # type: ignore[misc]
        )


def test_labels_of_ops_do_not_matter() -> None:
    graph = weighty_graph(4, 40)
    label = np.random.default_rng(1).permutation(40)
    back = np.argsort(label)
    other = Graph.from_arrays(
        label[graph.src], label[graph.dst], graph.compute_s[back], graph.transfer_s[back]
    )
    policy = random_policy()
    with torch.no_grad():
        heads = policy(policy_inputs(Problem(graph, Cluster.uniform(3))))
        relabelled = policy(policy_inputs(Problem(other, Cluster.uniform(3))))
    for found, wanted in zip(relabelled[:3], heads[:3], strict=True):
        torch.testing.assert_close(found[label], wanted, rtol=1e-4, atol=1e-5)


def test_neighbors_are_the_rows() -> None:
    inputs = policy_inputs(
        Problem(Graph.from_arrays([0, 1, 0], [1, 2, 2], [1.0] * 3, [1.0] * 3), Cluster.uniform(1))
    )
    assert isinstance(inputs, Inputs)
    assert inputs.producers.to_dense().tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    assert inputs.consumers.to_dense().tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]


@pytest.mark.filterwarnings("error")
def test_no_warnings() -> None:
    policy_inputs(Problem(weighty_graph(), Cluster.uniform(2)))


def test_information_travels_one_edge_a_round_both_ways() -> None:
    # A chain of nine: a change at op 4 is felt two ops away, and no further, after two rounds.
    graph = Graph.from_arrays(range(8), range(1, 9), [1.0] * 9, [1.0] * 9)
    inputs = policy_inputs(Problem(graph, Cluster.uniform(2)))
    encoder = Encoder(inputs.features.shape[1], 16, 2)
    changed = inputs.features.clone()
    changed[4] += 1.0
    with torch.no_grad():
        before = encoder(inputs.features, inputs.producers, inputs.consumers)
        difference = before - encoder(changed, inputs.producers, inputs.consumers)
    felt = difference.abs().sum(1) > 1e-6
    assert felt.tolist() == [False, False, True, True, True, True, True, False, False]
