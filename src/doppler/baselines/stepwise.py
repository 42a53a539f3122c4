"""DOPPLER as published, but with message passing at every step instead of once an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from doppler.baselines.doppler_paper import (
    NODE_FEATURES,
    PUBLISHED,
    PublishedInputs,
    PublishedPolicy,
    published_inputs,
)
from doppler.placement import Placement
from doppler.policy.frozen import SCORE_SCALE, Sizes
from doppler.policy.rollout import Record, Roller
from doppler.problem import Problem
from doppler.training.dual_learner import DualSettings, set_learning_rate
from doppler.training.objectives import advantages
from doppler.training.single import Batch
from doppler.training.teaching import TEACHERS

IntArray = npt.NDArray[np.int32]

#: What changes from step to step: whether an op is placed, and whether it may be next.
STATE_FEATURES = 2


class StepwisePolicy(PublishedPolicy):
    """The published networks, which also read what is placed already.

    Parameters
    ----------
    sizes : Sizes
    """

    def __init__(self, sizes: Sizes | None = None) -> None:
        super().__init__(sizes)
        width = self.sizes.embedding
        self.enter = nn.Linear(NODE_FEATURES + STATE_FEATURES, width)
        self.own = nn.Sequential(nn.Linear(NODE_FEATURES + STATE_FEATURES, width), nn.ReLU())


class StepState(NamedTuple):
    """What the networks make of a batch of episodes before a step.

    Attributes
    ----------
    logits : float tensor, shape [episodes, ops]
        SEL's; -inf for what is no candidate.
    node : float tensor, shape [episodes, ops, hidden]
        PLC's first layer, the part of the op.
    code : float tensor, shape [episodes, devices, code]
        Mean of what is on each device.
    """

    logits: Tensor
    node: Tensor
    code: Tensor


def repeated(inputs: PublishedInputs, count: int) -> PublishedInputs:
    """Lay copies of a graph side by side, as one graph."""
    n_ops = len(inputs.features)
    first = torch.arange(count).unsqueeze(1) * n_ops

    def shifted(ops: Tensor) -> Tensor:
        return (first + ops).flatten()

    return PublishedInputs(
        inputs.features.repeat(count, 1),
        shifted(inputs.sender),
        shifted(inputs.receiver),
        inputs.edges.repeat(count, 1),
        shifted(inputs.below),
        shifted(inputs.above),
    )


class StepwiseLearner:
    """Trains it on one problem; see :class:`doppler.training.single.EpisodeLearner`.

    A batch of episodes is played side by side. A step costs O(episodes x (V + E)), so that an
    episode costs O(V (V + E)).

    Parameters
    ----------
    problem : Problem
    settings : DualSettings
        Of the method as published.
    sizes : Sizes
    seed : int
        Of the weights.
    """

    def __init__(
        self,
        problem: Problem,
        settings: DualSettings = PUBLISHED,
        sizes: Sizes | None = None,
        seed: int = 0,
    ) -> None:
        self.problem = problem
        self.settings = settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.policy = StepwisePolicy(sizes)
        self.inputs = published_inputs(problem)
        self.roller = Roller(problem, 1)
        self.optimizer = torch.optim.Adam(
            self.policy.parameters(), settings.learning_rate, fused=True
        )
        # Any weights will do to follow episodes: what PLC sees does not depend on them.
        with torch.no_grad():
            policy = PublishedPolicy(Sizes(1, 1, 1, 1))
            self._weights = policy.weights(policy(self.inputs))
        graph, n_ops = problem.graph, problem.n_ops
        ones = np.ones(graph.n_edges, np.int32)
        self._consumed = csr_array((ones, (graph.src, graph.dst)), shape=(n_ops, n_ops))
        self._needed = np.diff(problem.arrays.pred_ptr)
        self._copies: dict[int, PublishedInputs] = {}

    def update(self, seeds: Sequence[int], progress: float) -> Batch:
        """Play or watch a batch of episodes, and learn from it."""
        set_learning_rate(self.optimizer, self.settings, progress)
        watching = progress < self.settings.imitation
        if watching:
            shown = [TEACHERS[self.settings.teacher](self.problem, seed) for seed in seeds]
            order = np.stack([order for order, _, _ in shown])
            choice = np.stack([devices[order] for order, devices, _ in shown])
            right = np.stack([tied for _, _, tied in shown])
        else:
            order, choice = self._play(np.random.default_rng(list(seeds)), len(seeds))
            right = choice[:, :, None] == np.arange(self.problem.n_devices)
        followed = self.roller.follow(self._weights, order, choice, runtime=self.settings.runtime)
        advantage, entropy = torch.ones(len(seeds)), 0.0
        if not watching:
            entropy = self.settings.entropy * (1.0 - progress)
            costs = followed.costs
            advantage = advantages(costs, costs, self.settings.most_advantage).float()
        self.optimizer.zero_grad()
        share = 1.0 / len(seeds)
        for step in range(self.problem.n_ops):
            state = self._encode(order, choice, step)
            op = torch.from_numpy(order[:, step].astype(np.int64))
            place = torch.log_softmax(self._scores(state, op, followed.record, step), dim=-1)
            # The teacher's other devices were as good; an episode of the policy has one.
            wrong = torch.from_numpy(~right[:, step])
            placed = torch.logsumexp(place.masked_fill(wrong, -torch.inf), dim=-1)
            likely = _taken(torch.log_softmax(state.logits, dim=-1), op) + placed
            finite = place.masked_fill(place == -torch.inf, 0.0)
            bonus = -(finite.exp() * finite).sum()
            # At once, so that the graph of one step alone is in memory.
            torch.autograd.backward(-share * ((advantage * likely).sum() + entropy * bonus))
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.settings.gradient_norm)
        self.optimizer.step()
        devices = np.stack([followed.devices(index) for index in range(len(seeds))])
        return Batch(devices, None, followed.costs)

    def greedy(self) -> Placement:
        """Place the problem by the likeliest choices."""
        order, choice = self._play(None, 1)
        devices = np.empty(self.problem.n_ops, np.int32)
        devices[order[0]] = choice[0]
        return Placement(devices)

    def _play(self, rng: np.random.Generator | None, count: int) -> tuple[IntArray, IntArray]:
        """Play episodes side by side; by the likeliest choices without a generator."""
        # What is not chosen yet follows in a topological order, so that episodes can be followed.
        order = np.tile(self.problem.arrays.order, (count, 1))
        able = np.isfinite(self.problem.arrays.compute).argmax(axis=1).astype(np.int32)
        choice = able[order]
        with torch.no_grad():
            for step in range(self.problem.n_ops):
                state = self._encode(order, choice, step)
                op = _drawn(state.logits, rng)
                for episode, chosen in enumerate(op.tolist()):
                    _bring_forward(order[episode], choice[episode], step, chosen)
                record = self.roller.follow(self._weights, order, choice).record
                choice[:, step] = _drawn(self._scores(state, op, record, step), rng).numpy()
        return order, choice

    def _encode(self, order: IntArray, choice: IntArray, step: int) -> StepState:
        """Pass messages with what is placed before a step."""
        count, n_ops = order.shape
        rows = np.arange(count)[:, None]
        placed = np.zeros((count, n_ops), np.int32)
        placed[rows, order[:, :step]] = 1
        ready = (placed @ self._consumed == self._needed) & (placed == 0)
        on = np.zeros((count, self.problem.n_devices, n_ops), np.float32)
        on[rows, choice[:, :step], order[:, :step]] = 1.0
        if count not in self._copies:
            self._copies[count] = repeated(self.inputs, count)
        inputs = self._copies[count]
        changing = torch.from_numpy(np.stack([placed, ready], axis=-1).astype(np.float32))
        features = torch.cat([inputs.features, changing.reshape(-1, STATE_FEATURES)], dim=1)
        inputs = inputs._replace(features=features)
        embedded = self.policy.embed(inputs)
        heads = self.policy.heads(inputs, embedded)
        code = torch.from_numpy(on) @ heads.code.reshape(count, n_ops, -1)
        members = torch.from_numpy(on.sum(axis=-1, keepdims=True))
        return StepState(
            heads.logits.reshape(count, n_ops).masked_fill(~torch.from_numpy(ready), -torch.inf),
            heads.node.reshape(count, n_ops, -1),
            code / (1.0 + members),
        )

    def _scores(self, state: StepState, op: Tensor, record: Record, step: int) -> Tensor:
        """Score the devices of the op of a step, shape [episodes, devices]."""
        policy = self.policy
        node = state.node[torch.arange(len(op)), op].unsqueeze(1)
        features = torch.from_numpy(record.features[:, step]) * policy.used
        hidden = node + policy.first(features) + policy.first_code(state.code)
        score: Tensor = SCORE_SCALE * policy.second(torch.relu(hidden)).squeeze(-1)
        allowed = torch.from_numpy(record.allowed[:, step])
        return score.masked_fill(~allowed, -torch.inf)


def _taken(log_probabilities: Tensor, chosen: Tensor) -> Tensor:
    return log_probabilities.gather(1, chosen.unsqueeze(1)).squeeze(1)


def _drawn(logits: Tensor, rng: np.random.Generator | None) -> Tensor:
    """Draw from the softmax over the last axis by Gumbel-max, or take the likeliest."""
    if rng is None:
        return logits.argmax(dim=-1)
    return (logits + torch.from_numpy(rng.gumbel(size=tuple(logits.shape)))).argmax(dim=-1)


def _bring_forward(order: IntArray, choice: IntArray, step: int, op: int) -> None:
    """Let an op be the next; the others keep their order."""
    there = int(np.flatnonzero(order == op)[0])
    for array in (order, choice):
        array[step : there + 1] = np.roll(array[step : there + 1], 1)
