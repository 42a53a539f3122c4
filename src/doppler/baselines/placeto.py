"""PLACETO: one policy visits the ops one by one and improves a placement step by step.

Addanki et al., "Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine
Learning" (NeurIPS 2019). An episode starts from an initial placement and visits every op once, in
topological order. In each step messages go down from producers and up from consumers, by the same
layers in every round; the embeddings of the op, of the ops that reach it, of those that it reaches
and of all others are pooled, and a small network chooses the op's device. The reward of a step is
what it takes off the simulated run-time; REINFORCE learns with a baseline for each step, the mean
over the episodes of the batch. A step takes O(V + E), an episode O(V (V + E)).

Deviations, each with its reason:

- Costs and sizes are logarithms of their ratio to the mean, standardized. As they are, they
  saturate the softmax, and nothing is learned.
- What is pooled is normalized (LayerNorm), and weights start as large as keeps signals up through
  all rounds (He et al., 2015). Else ops differ too little for the policy to tell them apart.
- Messages and groups are averaged, not added up: in sums over hundreds of ops all that tells one op
  from another is lost (the authors' code has this as an option).
- Three rounds of messages, where the authors name eight, and an output layer at half of He's scale:
  with more the first choices stayed near chance for as long as we tried.
- The initial placement is every op on the first device that can run it; the paper's is any. A fixed
  one makes the baseline of a step compare like with like.
- Advantages are divided by their deviation over the batch, so that one learning rate suits
  run-times of any unit.
- The ops of a colocation group are placed as one, at the first of them, and devices that cannot run
  an op are ruled out: neither is in the paper, which groups ops before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from doppler.baselines.decisions import gumbel_noise, make_decisions
from doppler.baselines.features import costs_and_sizes, scaled_to_one, standardized
from doppler.baselines.neighbors import OpNeighbors, average, make_neighbors
from doppler.baselines.solution import solution_by_learning
from doppler.heuristics.base import Solution
from doppler.kernels import kernel
from doppler.placement import Placement
from doppler.problem import Problem
from doppler.training.single import Batch, costs_of

FloatArray = npt.NDArray[np.float64]

#: Groups whose embeddings are pooled for the op that is visited: the ops that reach it, those that
#: it reaches, and the others.
POOLED = 3
#: Numbers that one layer yields at once while learning; it decides on memory alone.
CHUNK = 2**16


@dataclass(frozen=True)
class PlacetoSettings:
    """Sizes of the network, and how it learns.

    Attributes
    ----------
    width : int
        Of the embeddings.
    rounds : int
        Of messages, in each direction.
    hidden : int
        Of the policy's layer.
    learning_rate : float
        Of Adam (Kingma and Ba, 2015); falls linearly to a tenth.
    entropy : float
        Weight of the mean entropy of a choice; falls linearly to 0.
    gradient_norm : float
        Longer gradients are scaled down to it.
    """

    width: int = 16
    rounds: int = 3
    hidden: int = 64
    learning_rate: float = 5e-3
    entropy: float = 0.01
    gradient_norm: float = 1.0


class PlacetoNetwork(nn.Module):
    """Embeds the ops of a placement, and scores the devices of one op.

    Tensors of ops have the shape [ops, steps, episodes, width], so that the messages of all
    episodes are one product of a sparse matrix.

    Parameters
    ----------
    n_costs : int
        Features of an op that stay the same.
    n_devices : int
    settings : PlacetoSettings
    """

    def __init__(self, n_costs: int, n_devices: int, settings: PlacetoSettings) -> None:
        super().__init__()
        width = settings.width
        self.rounds = settings.rounds
        # A linear layer over costs, the device as one-hot, and the two flags; ops are few kinds of
        # (device, flags), so their part is looked up.
        self.costs = nn.Linear(n_costs, width)
        self.device = nn.Linear(n_devices, width, bias=False)
        self.flags = nn.Linear(2, width, bias=False)
        self.send = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.receive = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.pool_own = nn.Linear(2 * width, width)
        self.pool = nn.Linear(2 * width, POOLED * width)
        self.norm = nn.LayerNorm((1 + POOLED) * width)
        self.hidden = nn.Linear((1 + POOLED) * width, settings.hidden)
        self.out = nn.Linear(settings.hidden, n_devices)
        self._start()

    def _start(self) -> None:
        """Keep signals as large from layer to layer (He et al., ICCV 2015)."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        with torch.no_grad():
            # So that the first choices are not far from even.
            self.out.weight.mul_(0.5)

    def forward(
        self,
        costs: Tensor,
        device: Tensor,
        visit: Tensor,
        ways: Sequence[OpNeighbors],
        op: Tensor,
        member: Tensor,
    ) -> Tensor:
        """Score the devices of the ops that are visited.

        Parameters
        ----------
        costs : float32 tensor, shape [ops, costs]
        device : int64 tensor, shape [ops, steps, episodes]
            Where each op is before the step.
        visit : int64 tensor, shape [ops, steps]
            0: still to be visited; 1: visited in this step; 2: before.
        ways : two OpNeighbors
            The producers of each op, and its consumers.
        op : int64 tensor, shape [steps]
            The op of each step.
        member : float32 tensor, shape [steps, POOLED, ops]
            Averages over the groups of the op that each step visits.

        Returns
        -------
        float32 tensor, shape [steps, episodes, devices]
        """
        n_ops, steps, episodes = device.shape
        flags = torch.stack([torch.zeros_like(self.flags.weight[:, 0]), *self.flags.weight.T])
        table = (flags[:, None] + self.device.weight.T).flatten(0, 1)
        known = nn.functional.embedding(visit[..., None] * self.device.in_features + device, table)
        first = (known + self.costs(costs)[:, None, None]).relu_().view(n_ops, -1, table.shape[1])
        both = []
        for way, send, receive in zip(ways, self.send, self.receive, strict=True):
            h = first
            for _ in range(self.rounds):
                received = average(_affine(h, send).relu_(), way)
                h = first + _affine(received, receive).relu_()
            both.append(h)
        embedded = torch.cat(both, dim=-1)
        own = embedded.view(n_ops, steps, episodes, -1)[op, torch.arange(steps)]
        pooled = _affine(embedded, self.pool).relu_().view(n_ops, steps, -1)
        groups = torch.stack(
            [torch.mm(weights, one) for weights, one in zip(member, pooled.unbind(1), strict=True)]
        ).view(steps, POOLED, episodes, POOLED, -1)
        # Each group has a layer of its own: the diagonal of all groups by all layers.
        others = groups.diagonal(dim1=1, dim2=3).permute(0, 1, 3, 2).flatten(2)
        seen = torch.cat([self.pool_own(own).relu_(), others], dim=-1)
        scores: Tensor = self.out(self.hidden(self.norm(seen)).relu_())
        return scores


def _affine(x: Tensor, layer: nn.Module) -> Tensor:
    """Apply a layer to ``x`` [ops, rows, size]; ``layer(x)``, but bias by bias is far slower."""
    linear = cast(nn.Linear, layer)
    n_ops, rows, size = x.shape
    product = torch.mm(x.view(-1, size), linear.weight.T).view(n_ops, -1)
    return product.add_(linear.bias.repeat(rows)).view(n_ops, rows, -1)


class PlacetoLearner:
    """Trains PLACETO on one problem; see :class:`doppler.training.single.EpisodeLearner`.

    Parameters
    ----------
    problem : Problem
    settings : PlacetoSettings, optional
    seed : int
        Of the initial weights.
    """

    def __init__(
        self, problem: Problem, settings: PlacetoSettings | None = None, seed: int = 0
    ) -> None:
        self.problem = problem
        self.settings = settings or PlacetoSettings()
        self.decisions = make_decisions(problem)
        arrays = problem.arrays
        self._costs = standardized(torch.from_numpy(costs_and_sizes(problem)))
        producers, consumers = (arrays.pred_ptr, arrays.pred), (arrays.succ_ptr, arrays.succ)
        self._ways = (
            make_neighbors(*producers, *consumers),
            make_neighbors(*consumers, *producers),
        )
        self._initial = self.decisions.ruled_out.argmax(dim=-1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = PlacetoNetwork(self._costs.shape[1], problem.n_devices, self.settings)
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), self.settings.learning_rate, fused=True
        )

    def update(self, seeds: Sequence[int], progress: float) -> Batch:
        """Play a batch of episodes, all in step, and learn from it."""
        settings, decisions = self.settings, self.decisions
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1.0 - 0.9 * progress)
        noise = gumbel_noise(seeds, decisions.n_units, self.problem.n_devices)
        choice, costs = self._play(noise)
        to_go = costs[:-1] - costs[-1]
        advantage = scaled_to_one(to_go - to_go.mean(axis=1, keepdims=True))
        self._learn(choice, torch.from_numpy(advantage).float(), settings.entropy * (1 - progress))
        return Batch(decisions.of_ops(choice), None, costs[-1])

    def greedy(self) -> Placement:
        """Place the problem by the likeliest choices."""
        count, n_devices = self.decisions.n_units, self.problem.n_devices
        choice, _ = self._play(torch.zeros(1, count, n_devices), judged=False)
        return Placement(self.decisions.of_ops(choice[0]))

    def _play(self, noise: Tensor, judged: bool = True) -> tuple[Tensor, FloatArray]:
        """Play episodes, all in step.

        Parameters
        ----------
        noise : float32 tensor, shape [episodes, units, devices]
            Added to the scores before the largest is taken: Gumbel's trick.
        judged : bool
            Whether the placement is simulated before every step and at the end.

        Returns
        -------
        choice : int64 tensor, shape [episodes, units]
        costs : float64 array, shape [units + 1, episodes]
            Seconds.
        """
        decisions, episodes = self.decisions, len(noise)
        choice = self._initial.expand(episodes, -1).clone()
        costs = np.zeros((decisions.n_units + 1, episodes))
        with torch.no_grad():
            for step in range(decisions.n_units):
                if judged:
                    costs[step] = costs_of(self.problem, decisions.of_ops(choice))
                scores = self._scores(choice[None], step, step + 1)[0]
                choice[:, step] = (scores + noise[:, step]).argmax(dim=-1)
        if judged:
            costs[-1] = costs_of(self.problem, decisions.of_ops(choice))
        return choice, costs

    def _learn(self, choice: Tensor, advantage: Tensor, entropy_weight: float) -> None:
        """Follow the gradient of the gain of all steps, played again in chunks of steps."""
        count, episodes = self.decisions.n_units, len(choice)
        size = max(1, CHUNK // (self.problem.n_ops * episodes * self.settings.width))
        self.optimizer.zero_grad()
        for start in range(0, count, size):
            end = min(start + size, count)
            steps = torch.arange(start, end)
            # Before its step a unit is where it was, afterwards where it was put.
            done = torch.arange(count) < steps[:, None]
            before = torch.where(done[:, None], choice, self._initial)
            log_p = self._scores(before, start, end).log_softmax(dim=-1)
            taken = log_p.gather(-1, choice.T[start:end, :, None])[..., 0]
            entropy = -(log_p.exp() * log_p).sum()
            gain = (advantage[start:end] * taken).sum() + entropy_weight * entropy
            torch.autograd.backward(-gain / (count * episodes))
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.gradient_norm)
        self.optimizer.step()

    def _scores(self, choice: Tensor, start: int, end: int) -> Tensor:
        """Score the devices of the units of some steps; choice [steps, episodes, units]."""
        unit, arrays = self.decisions.unit, self.problem.arrays
        number = torch.arange(start, end)
        visit = (unit[:, None] == number).long() + 2 * (unit[:, None] < number).long()
        op = self.decisions.first[start:end]
        member = np.empty((end - start, POOLED, self.problem.n_ops), np.float32)
        for index in range(end - start):
            _fill_groups(
                arrays.order,
                arrays.pred_ptr,
                arrays.pred,
                arrays.succ_ptr,
                arrays.succ,
                op[index],
                member[index],
            )
        scores: Tensor = self.network(
            self._costs,
            choice[..., unit].permute(2, 0, 1),
            visit,
            self._ways,
            torch.from_numpy(op.astype(np.int64)),
            torch.from_numpy(member),
        )
        scores = scores + self.decisions.ruled_out[start:end, None]
        return scores


@kernel
def _fill_groups(order, pred_ptr, pred, succ_ptr, succ, op, member):  # type: ignore[no-untyped-def]
    """Fill in the weights by which the groups of an op are averaged. O(V + E)."""
    n_ops = len(order)
    ancestors, descendants, others = member
    member[:] = 0.0
    ancestors[op] = descendants[op] = 1.0
    for step in range(n_ops):
        v = order[step]
        for edge in range(pred_ptr[v], pred_ptr[v + 1]):
            if descendants[pred[edge]] > 0.0:
                descendants[v] = 1.0
        v = order[n_ops - 1 - step]
        for edge in range(succ_ptr[v], succ_ptr[v + 1]):
            if ancestors[succ[edge]] > 0.0:
                ancestors[v] = 1.0
    for v in range(n_ops):
        if ancestors[v] == 0.0 and descendants[v] == 0.0:
            others[v] = 1.0
    ancestors[op] = descendants[op] = 0.0
    for group in range(len(member)):
        total = member[group].sum()
        if total > 0.0:
            for v in range(n_ops):
                member[group, v] /= total


def placeto(problem: Problem, *, budget: float = 0.0, seed: int = 0) -> Solution:
    """Train PLACETO on the problem, from scratch, and return the best placement of its episodes.

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
    learner = PlacetoLearner(problem, seed=seed)
    return solution_by_learning(
        problem, learner, budget=budget, seed=seed, origin="placeto", start=start
    )
