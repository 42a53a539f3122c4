"""DOPPLER as published (Yao et al., ICLR 2026): no priorities at run time, no search, no hints."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch_geometric.utils import scatter

from doppler.baselines.solution import solution_by_learning
from doppler.cores import cores
from doppler.heuristics.base import Solution
from doppler.policy.features import DEVICE_FEATURES, FeatureSet
from doppler.policy.frozen import LOGIT_RANGE, Sizes
from doppler.policy.hint import Hint
from doppler.policy.network import DualNetwork, Heads
from doppler.problem import Problem
from doppler.training.dual_learner import DualLearner, DualSettings

IntArray = npt.NDArray[np.int32]

#: Of an op: its compute, what it receives and sends, its t-level and its b-level.
NODE_FEATURES = 5
#: Of an edge: its transfer, and which way it is passed.
EDGE_FEATURES = 2
#: A fifth of the episodes are the teacher's. With one step of the optimizer for each batch of them,
#: Stage I ended far from its teacher, and Stage II began with episodes that took twice as long.
PUBLISHED = DualSettings(
    runtime="fifo",
    imitation=0.2,
    imitation_steps=8,
    teacher="critical_path",
    learning_rate=3e-3,
    final_learning_rate=3e-4,
    entropy=1e-2,
    self_imitation=False,
)


class PublishedInputs(NamedTuple):
    """What the encoder reads of a problem.

    Attributes
    ----------
    features : float32 tensor, shape [ops, NODE_FEATURES]
    sender, receiver : int64 tensor, shape [2 x edges]
        Each edge both ways.
    edges : float32 tensor, shape [2 x edges, EDGE_FEATURES]
    below, above : int64 tensor, shape [ops]
        The consumer on the longest path to an exit, and the producer on the longest path from an
        entry; the op itself where there is none.
    """

    features: Tensor
    sender: Tensor
    receiver: Tensor
    edges: Tensor
    below: Tensor
    above: Tensor


def published_inputs(problem: Problem) -> PublishedInputs:
    """Make the tensors that the published encoder reads. O(V + E)."""
    graph, compute, moved = problem.graph, problem.mean_compute, problem.mean_transfer
    n_ops = problem.n_ops
    mean = float(compute.mean()) or float(moved.mean()) or 1.0
    received = np.bincount(graph.dst, moved[graph.src], minlength=n_ops)
    sent = moved * np.diff(problem.arrays.succ_ptr)
    below = problem.b_level(compute, transfers=True)
    above = problem.t_level(compute, transfers=True)
    longest = float(below.max()) or 1.0
    columns = (
        np.log1p(compute / mean),
        np.log1p(received / mean),
        np.log1p(sent / mean),
        above / longest,
        below / longest,
    )
    cost = np.log1p(moved[graph.src] / mean)
    ways = np.repeat([0.0, 1.0], graph.n_edges)
    return PublishedInputs(
        torch.from_numpy(np.stack(columns, axis=1).astype(np.float32)),
        torch.from_numpy(np.concatenate([graph.src, graph.dst]).astype(np.int64)),
        torch.from_numpy(np.concatenate([graph.dst, graph.src]).astype(np.int64)),
        torch.from_numpy(np.stack([np.tile(cost, 2), ways], axis=1).astype(np.float32)),
        _farthest(graph.src, graph.dst, below),
        _farthest(graph.dst, graph.src, above + compute + moved),
    )


def _farthest(ops: IntArray, others: IntArray, length: npt.NDArray[np.float64]) -> Tensor:
    """Choose of each op's neighbors the one with the greatest length, or the op itself."""
    chosen = np.arange(len(length))
    ascending = np.argsort(length[others], kind="stable")
    # Of several values for one op the last one stays.
    chosen[ops[ascending]] = others[ascending]
    return torch.from_numpy(chosen)


def path_means(embedded: Tensor, towards: Tensor) -> Tensor:
    """Average the embeddings along the path that leads on from each op, the op included.

    Pointer doubling: after k rounds each op has the sum over the next 2^k. O(V log(longest path)).

    Parameters
    ----------
    embedded : float tensor, shape [ops, size]
    towards : int64 tensor, shape [ops]
        The next op on the path; an op at its end names itself.
    """
    total, count = embedded, torch.ones(len(embedded), 1)
    here = torch.arange(len(towards))
    going = (towards != here).float().unsqueeze(1)
    while bool(going.any()):
        total = total + going * total[towards]
        count = count + going * count[towards]
        going = going * going[towards]
        towards = towards[towards]
    return total / count


class PublishedLayer(nn.Module):
    """A round of messages: ``phi(h_v, mean over neighbors of psi(h_u, h_v, e_uv))``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.sender = nn.Linear(size, size)
        self.receiver = nn.Linear(size, size, bias=False)
        self.edge = nn.Linear(EDGE_FEATURES, size, bias=False)
        self.update = nn.Linear(2 * size, size)
        self.norm = nn.LayerNorm(size)

    def forward(self, h: Tensor, inputs: PublishedInputs) -> Tensor:
        """Update embeddings ``h`` [ops, size]."""
        message = self.sender(h)[inputs.sender] + self.receiver(h)[inputs.receiver]
        message = torch.relu(message + self.edge(inputs.edges))
        received = scatter(message, inputs.receiver, dim=0, dim_size=len(h), reduce="mean")
        updated: Tensor = h + torch.relu(self.norm(self.update(torch.cat([h, received], dim=1))))
        return updated


class PublishedPolicy(DualNetwork):
    """SEL and PLC with the paper's features, edge features and path embeddings.

    What differs from the paper, and why:

    - All features are free of units (logarithms of ratios to the mean, shares of the longest path),
      so that seconds of any size do not saturate the networks.
    - The layer that embeds the five device features is linear, and so part of PLC's first layer;
      the same holds for the mean embedding of a device, of which a projection of ``sizes.code``
      numbers is averaged. So an episode needs no matrix product at each step.
    - The sum over a device's ops is divided by one more than their number, which gives zeros for an
      empty device.
    - Embeddings along a path are averaged, not added: else long paths drown what else SEL reads.
    - Residual connections and layer norms, as in the encoder of our own policy.

    Parameters
    ----------
    sizes : Sizes
    """

    def __init__(self, sizes: Sizes | None = None) -> None:
        super().__init__()
        self.sizes = sizes or Sizes()
        self.features = FeatureSet.named("paper")
        width, hidden = self.sizes.embedding, self.sizes.hidden
        self.enter = nn.Linear(NODE_FEATURES, width)
        self.rounds = nn.ModuleList(PublishedLayer(width) for _ in range(self.sizes.layers))
        self.own = nn.Sequential(nn.Linear(NODE_FEATURES, width), nn.ReLU())
        self.select = nn.Sequential(nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, 1))
        self.node = nn.Linear(2 * width, hidden)
        self.code = nn.Linear(width, self.sizes.code, bias=False)
        self.first = nn.Linear(len(DEVICE_FEATURES), hidden, bias=False)
        self.first_code = nn.Linear(self.sizes.code, hidden, bias=False)
        self.second = nn.Linear(hidden, 1, bias=False)
        # There is no way around the hidden layer; the kernel asks for one.
        self.direct = nn.Linear(len(DEVICE_FEATURES), 1, bias=False)
        nn.init.zeros_(self.direct.weight)
        used = torch.tensor(self.features.used, dtype=torch.float32)
        self.register_buffer("used", used, persistent=False)

    def read(self, problem: Problem) -> PublishedInputs:
        """Make the tensors that the encoder reads."""
        return published_inputs(problem)

    def forward(self, inputs: PublishedInputs, hint: Hint | None = None) -> Heads:
        """Encode a problem, once for a batch of episodes. O(V log(longest path) + E)."""
        return self.heads(inputs, self.embed(inputs))

    def embed(self, inputs: PublishedInputs) -> Tensor:
        """Pass messages; returns the embeddings of the ops, shape [ops, size]."""
        h = torch.relu(self.enter(inputs.features))
        for layer in self.rounds:
            h = layer(h, inputs)
        return h

    def heads(self, inputs: PublishedInputs, embedded: Tensor) -> Heads:
        """Make of embeddings what SEL and PLC start from."""
        own = self.own(inputs.features)
        paths = (path_means(embedded, inputs.below), path_means(embedded, inputs.above))
        raw = self.select(torch.cat([embedded, *paths, own], dim=1)).squeeze(-1)
        return Heads(
            LOGIT_RANGE * torch.tanh(raw),
            self.node(torch.cat([embedded, own], dim=1)),
            self.code(embedded),
            torch.zeros(len(DEVICE_FEATURES)),
        )


def published_learner(problem: Problem, seed: int = 0, threads: int = 1) -> DualLearner:
    """Make the published method ready to learn a problem, with seeded weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = PublishedPolicy()
    return DualLearner(problem, policy, PUBLISHED, threads=threads)


def doppler_paper(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Train DOPPLER as published on one problem: Stage I on critical path, then Stage II.

    Episodes are sampled from the policy, and starts are the earliest possible. The best of all
    episodes is the answer.

    Parameters
    ----------
    problem : Problem
    budget : float
        Seconds of training; 0: one batch of episodes.
    seed : int

    Raises
    ------
    MemoryLimitError
        If no episode fits in memory.
    """
    start = time.perf_counter()
    learner = published_learner(problem, seed, cores())
    return solution_by_learning(
        problem, learner, budget=budget, seed=seed, origin="doppler-paper", start=start
    )
