"""GDP: a graph encoder and attention over the sequence of ops choose all devices at once.

Zhou et al., "GDP: Generalized Device Placement for Dataflow Graphs" (arXiv:1910.01578, 2019), and
"Transferable Graph Optimizers for ML Compilers" (NeurIPS 2020). A GraphSAGE encoder with max
pooling embeds the ops; Transformer-XL attention without positional embedding runs over them in
topological order, segment by segment; a softmax for every op gives the probabilities of its
devices, all at once; PPO learns from the simulated run-time, with minus its square root as reward.
Time and memory are linear in ops and edges.

Deviations, each with its reason:

- Costs and sizes are logarithms of their ratio to the mean. As they are, they saturate the network.
- The ids of adjacent ops are read as the mean of a fixed random code for each id, since ids as
  numbers would make ops alike whose ids are near.
- Each embedding is standardized over the ops of the graph. Else the ops of a tiled graph, which
  differ in little but their place, have nearly the same embedding, and all of them learn the same.
- PPO clips the ratio of each op. That of a whole placement is a product over all ops, and leaves
  the range of the clip at the first step.
- The advantage is compared to the mean of the batch and divided by its deviation. The mean of all
  trials so far lags behind a policy that learns in some dozens of updates.
- The ops of a colocation group take the mean of their logits, and devices that cannot run an op are
  ruled out: neither is in the paper.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from doppler.baselines.decisions import PlacedUnits, gumbel_noise, make_decisions
from doppler.baselines.features import costs_and_sizes, scaled_to_one, standardized
from doppler.baselines.neighbors import average, make_neighbors
from doppler.baselines.solution import solution_by_learning
from doppler.heuristics.base import Solution
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.training.single import Batch, costs_of

#: Numbers of the code that stands for the id of an op.
CODE = 32


@dataclass(frozen=True)
class GdpSettings:
    """Sizes of the network, and how it learns.

    Attributes
    ----------
    width : int
        Of the embeddings.
    encoder_layers, attention_layers, heads : int
    segment : int
        Ops that attend to each other and to the segment before.
    learning_rate : float
        Of Adam (Kingma and Ba, 2015); falls linearly to a tenth.
    clip : float
        Most by which the probability of a choice may change before it counts no more (PPO).
    epochs : int
        Times that a batch is learned from.
    entropy : float
        Weight of the mean entropy of a choice; falls linearly to 0.
    gradient_norm : float
        Longer gradients are scaled down to it.
    """

    width: int = 64
    encoder_layers: int = 2
    attention_layers: int = 2
    heads: int = 4
    segment: int = 128
    learning_rate: float = 1e-3
    clip: float = 0.2
    epochs: int = 4
    entropy: float = 0.01
    gradient_norm: float = 1.0


class GdpInputs(NamedTuple):
    """What the network reads of a problem; ops in topological order.

    Attributes
    ----------
    features : float32 tensor, shape [ops, features]
        Cost, size, numbers of producers and of consumers, and the codes of both.
    kinds : int64 tensor, shape [ops]
        Number of the kind of each op.
    neighbor : int64 tensor, shape [2 edges]
        Producers and consumers of each op, op after op.
    start : int64 tensor, shape [ops + 1]
        Where the neighbors of each op begin.
    unit : int64 tensor, shape [ops]
        See :class:`doppler.baselines.decisions.PlacedUnits`.
    """

    features: Tensor
    kinds: Tensor
    neighbor: Tensor
    start: Tensor
    unit: Tensor


def gdp_inputs(problem: Problem, decisions: PlacedUnits) -> GdpInputs:
    """Make the tensors that the network reads. O(V + E)."""
    arrays, graph, n_ops = problem.arrays, problem.graph, problem.n_ops
    order = arrays.order
    place = np.empty(n_ops, np.int64)
    place[order] = np.arange(n_ops)
    src, dst = place[graph.src], place[graph.dst]
    to, neighbor = np.concatenate([dst, src]), np.concatenate([src, dst])
    neighbor = neighbor[np.argsort(to, kind="stable")]
    degree = np.bincount(to, minlength=n_ops)
    producers, consumers = (arrays.pred_ptr, arrays.pred), (arrays.succ_ptr, arrays.succ)
    code = np.random.default_rng(0).standard_normal((n_ops, CODE), np.float32)
    counts = [np.log1p(np.diff(pointers)) for pointers, _ in (producers, consumers)]
    columns = [
        costs_and_sizes(problem),
        np.stack(counts, axis=1).astype(np.float32),
        average(torch.from_numpy(code), make_neighbors(*producers, *consumers)).numpy(),
        average(torch.from_numpy(code), make_neighbors(*consumers, *producers)).numpy(),
    ]
    _, kinds = np.unique(np.array(graph.kinds), return_inverse=True)
    return GdpInputs(
        torch.from_numpy(np.concatenate(columns, axis=1)[order]),
        torch.from_numpy(kinds[order].astype(np.int64)),
        torch.from_numpy(neighbor),
        torch.from_numpy(np.concatenate([[0], np.cumsum(degree)])),
        decisions.unit[torch.from_numpy(order.astype(np.int64))],
    )


class SageLayer(nn.Module):
    """Max-pooling GraphSAGE: ``relu(W [h; max over neighbors of sigmoid(A h + b)])``.

    Both affine maps are standardized over the ops before their nonlinearity.

    Parameters
    ----------
    size : int
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.message = nn.Linear(size, size)
        self.update = nn.Linear(2 * size, size)

    def forward(self, h: Tensor, neighbor: Tensor, start: Tensor) -> Tensor:
        """Update embeddings ``h`` [ops, size]; an op without neighbors receives 0."""
        sent = torch.sigmoid(standardized(self.message(h)))[neighbor]
        received = torch.segment_reduce(
            sent, "max", offsets=start, axis=0, initial=0.0, unsafe=True
        )
        return torch.relu(standardized(self.update(torch.cat([h, received], dim=-1))))


class AttentionLayer(nn.Module):
    """Attention within segments and to the segment before, whose embeddings are not changed.

    Transformer-XL (Dai et al., ACL 2019) without positional embedding: an op attends to the ops
    before it in its segment, to itself, and to the whole segment before, through which no gradient
    flows. All segments are computed at once: what a layer remembers of a segment is the input of
    the same layer, which is known.

    Parameters
    ----------
    size, heads : int
    """

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(size)
        self.query = nn.Linear(size, size, bias=False)
        self.key_value = nn.Linear(size, 2 * size, bias=False)
        self.out = nn.Linear(size, size)
        self.feed_norm = nn.LayerNorm(size)
        self.feed = nn.Sequential(nn.Linear(size, 2 * size), nn.ReLU(), nn.Linear(2 * size, size))

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        """Update embeddings.

        Parameters
        ----------
        h : float32 tensor, shape [segments, length, size]
        mask : bool tensor, shape [segments, 1, length, 2 length]
            Which ops of the segment before, and of the own, each op attends to.
        """
        segments, length, size = h.shape
        x = self.norm(h)
        before = torch.cat([torch.zeros_like(x[:1]), x[:-1].detach()])
        seen = torch.cat([before, x], dim=1)
        query = self.query(x).view(segments, length, self.heads, -1).transpose(1, 2)
        key, value = (
            part.reshape(segments, 2 * length, self.heads, -1).transpose(1, 2)
            for part in self.key_value(seen).chunk(2, dim=-1)
        )
        found = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        h = h + self.out(found.transpose(1, 2).reshape(segments, length, size))
        updated: Tensor = h + self.feed(self.feed_norm(h))
        return updated


class GdpNetwork(nn.Module):
    """From the inputs of a problem to the logits of every op's devices.

    Parameters
    ----------
    inputs : GdpInputs
        Of which the sizes are taken.
    n_devices : int
    settings : GdpSettings
    """

    def __init__(self, inputs: GdpInputs, n_devices: int, settings: GdpSettings) -> None:
        super().__init__()
        width = settings.width
        self.segment = settings.segment
        self.enter = nn.Linear(inputs.features.shape[1], width)
        self.kind = nn.Embedding(int(inputs.kinds.max()) + 1, width)
        self.encoder = nn.ModuleList(SageLayer(width) for _ in range(settings.encoder_layers))
        self.attention = nn.ModuleList(
            AttentionLayer(width, settings.heads) for _ in range(settings.attention_layers)
        )
        self.out = nn.Linear(width, n_devices)

    def forward(self, inputs: GdpInputs) -> Tensor:
        """Return logits, shape [ops, devices], of the ops in topological order."""
        h = torch.relu(standardized(self.enter(inputs.features) + self.kind(inputs.kinds)))
        for layer in self.encoder:
            h = layer(h, inputs.neighbor, inputs.start)
        n_ops, width = h.shape
        length = min(self.segment, n_ops)
        segments = -(-n_ops // length)
        h = nn.functional.pad(h, (0, 0, 0, segments * length - n_ops)).view(segments, length, width)
        mask = _seen(segments, length)
        for layer in self.attention:
            h = layer(h, mask)
        logits: Tensor = self.out(standardized(h.view(-1, width)[:n_ops]))
        return logits


def _seen(segments: int, length: int) -> Tensor:
    """Make the mask of :class:`AttentionLayer`; no segment comes before the first."""
    before = torch.ones(segments, length, length, dtype=torch.bool)
    before[0] = False
    own = torch.ones(length, length, dtype=torch.bool).tril().expand(segments, -1, -1)
    return torch.cat([before, own], dim=-1)[:, None]


class GdpLearner:
    """Trains GDP on one problem; see :class:`doppler.training.single.EpisodeLearner`.

    Parameters
    ----------
    problem : Problem
    settings : GdpSettings, optional
    seed : int
        Of the initial weights.
    """

    def __init__(
        self, problem: Problem, settings: GdpSettings | None = None, seed: int = 0
    ) -> None:
        self.problem = problem
        self.settings = settings or GdpSettings()
        self.decisions = make_decisions(problem)
        self.inputs = gdp_inputs(problem, self.decisions)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = GdpNetwork(self.inputs, problem.n_devices, self.settings)
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), self.settings.learning_rate, fused=True
        )

    def update(self, seeds: Sequence[int], progress: float) -> Batch:
        """Draw a placement per seed, and learn from all of them."""
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1.0 - 0.9 * progress)
        with torch.no_grad():
            log_p = self.log_probabilities()
            # Gumbel's trick: the largest sum is a sample of the softmax.
            choice = (log_p + gumbel_noise(seeds, *log_p.shape)).argmax(dim=-1)
            before = log_p.gather(1, choice.T)
        devices = self.decisions.of_ops(choice)
        costs = costs_of(self.problem, devices)
        reward = -np.sqrt(costs)
        advantage = torch.from_numpy(scaled_to_one(reward - reward.mean())).float()
        for _ in range(settings.epochs):
            self._step(choice, before, advantage, settings.entropy * (1.0 - progress))
        return Batch(devices, None, costs)

    def greedy(self) -> Placement:
        """Place the problem by the likeliest choices."""
        with torch.no_grad():
            choice = self.log_probabilities().argmax(dim=-1)
        return Placement(self.decisions.of_ops(choice))

    def log_probabilities(self) -> Tensor:
        """Return the logarithms of the probabilities, shape [units, devices]."""
        logits, decisions = self.network(self.inputs), self.decisions
        total = torch.zeros(decisions.n_units, logits.shape[1])
        mean = total.index_add(0, self.inputs.unit, logits) / decisions.size[:, None]
        return torch.log_softmax(mean + decisions.ruled_out, dim=-1)

    def _step(
        self, choice: Tensor, before: Tensor, advantage: Tensor, entropy_weight: float
    ) -> None:
        log_p = self.log_probabilities()
        ratio = (log_p.gather(1, choice.T) - before).exp()
        clip = self.settings.clip
        gain = torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
        entropy = -(log_p.exp() * log_p).sum(dim=-1).mean()
        self.optimizer.zero_grad()
        torch.autograd.backward(-gain.mean() - entropy_weight * entropy)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.gradient_norm)
        self.optimizer.step()


def gdp(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Train GDP on the problem, from scratch, and return the best placement that it drew.

    Parameters
    ----------
    problem : Problem
    budget : float
        Seconds; 0: one batch.
    seed : int

    Raises
    ------
    MemoryLimitError
        If none of the placements fits in memory.
    """
    start = time.perf_counter()
    learner = GdpLearner(problem, seed=seed)
    return solution_by_learning(
        problem, learner, budget=budget, seed=seed, origin="gdp", start=start
    )
