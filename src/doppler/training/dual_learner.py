"""SEL and PLC learning to place one problem: Stage I for a share of the episodes, then Stage II."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from doppler.placement import Placement
from doppler.policy.features import DEVICE_FEATURES
from doppler.policy.hint import Hint
from doppler.policy.network import DualNetwork, Heads
from doppler.policy.rollout import GREEDY, SAMPLE, Episodes, Record, Roller, Weights
from doppler.problem import Problem
from doppler.training.gradient import Gradient, Objective
from doppler.training.objectives import Imitation, PolicyGradient, advantages
from doppler.training.single import Batch
from doppler.training.teaching import TEACHERS

# Logits so far apart leave hardly a choice, and their exponentials are finite.
CERTAIN = 600.0


@dataclass(frozen=True)
class DualSettings:
    """How a dual policy learns to place one problem.

    Attributes
    ----------
    runtime : {"priority", "fifo"}
        Whether the simulated run-time honors SEL's order.
    imitation : float
        Share of the episodes that are the teacher's: Stage I.
    imitation_steps : int
        Steps of the optimizer for each batch of them: watching is not drawing at random, so that a
        batch is worth more than one.
    teacher : str
        One of ``TEACHERS``.
    learning_rate, final_learning_rate : float
        Of Adam (Kingma and Ba, 2015); falls geometrically from one to the other.
    gradient_norm : float
        Longer gradients are scaled down to it.
    entropy : float
        Weight of PLC's mean entropy; falls to 0.
    most_advantage : float
        Standard deviations by which an episode counts as better than its batch, at most.
    self_imitation : bool
        Whether the best episode so far takes part in every batch.
    select, place : bool
        Whether SEL learns, and PLC. One that does not chooses as critical path does: the op with
        the highest b-level, the device on which it can start first.
    """

    runtime: str = "priority"
    imitation: float = 0.0
    imitation_steps: int = 1
    teacher: str = "critical_path"
    learning_rate: float = 3e-3
    final_learning_rate: float = 3e-5
    gradient_norm: float = 1.0
    entropy: float = 0.0
    most_advantage: float = 3.0
    self_imitation: bool = True
    select: bool = True
    place: bool = True


def set_learning_rate(
    optimizer: torch.optim.Optimizer, settings: DualSettings, progress: float
) -> None:
    """Let the learning rate fall with the share of the training that is done."""
    falls = settings.final_learning_rate / settings.learning_rate
    for group in optimizer.param_groups:
        group["lr"] = settings.learning_rate * falls**progress


class DualLearner:
    """Trains a dual policy on one problem; see :class:`doppler.training.single.EpisodeLearner`.

    Parameters
    ----------
    problem : Problem
    policy : DualNetwork
        Changed in place.
    settings : DualSettings
    hints : sequence of Hint
        Batches take turns with them; the first is that of the greedy episode.
    threads : int
    judge : callable, optional
        Returns episodes with other costs than the simulated ones: measured, for Stage III.
    """

    def __init__(
        self,
        problem: Problem,
        policy: DualNetwork,
        settings: DualSettings | None = None,
        hints: Sequence[Hint] = (),
        threads: int = 1,
        judge: Callable[[Episodes], Episodes] | None = None,
    ) -> None:
        self.policy = policy
        self.settings = settings or DualSettings()
        self.judge = judge
        self.problem = problem
        self.hints = tuple(hints)
        self.roller = Roller(problem, threads)
        self.inputs = policy.read(problem)
        self.gradient = Gradient(policy, threads)
        self.optimizer = torch.optim.Adam(
            policy.parameters(), self.settings.learning_rate, fused=True
        )
        level = problem.b_level(problem.mean_compute, transfers=True)
        self._by_b_level = CERTAIN * level / max(float(level.max()), 1e-300)
        self._updates = 0
        self._best: dict[int, tuple[float, Placement]] = {}

    def update(self, seeds: Sequence[int], progress: float) -> Batch:
        """Play or watch a batch of episodes, and learn from it."""
        settings = self.settings
        set_learning_rate(self.optimizer, settings, progress)
        watching = progress < settings.imitation
        batch = self._imitate(seeds) if watching else self._improve(seeds, progress)
        self._updates += 1
        return batch

    def _step(self, heads: Heads, record: Record, objective: Objective) -> None:
        """Go a step down an objective."""
        self.optimizer.zero_grad()
        self.gradient.add(heads, self.problem, record, objective)
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.settings.gradient_norm)
        self.optimizer.step()

    def greedy(self) -> Placement:
        """Place the problem by the likeliest choices."""
        hint = self.hints[0] if self.hints else None
        with torch.no_grad():
            weights = self._weights(self.policy(self.inputs, hint))
        runtime = self.settings.runtime
        played = self.roller.play(weights, GREEDY, [0], runtime=runtime, hint=hint)
        priority = played.priority(0) if runtime == "priority" else None
        return Placement(played.devices(0), priority)

    def _weights(self, heads: Heads) -> Weights:
        """Hand the kernel the networks; for one that does not learn, the rule of critical path."""
        weights = self.policy.weights(heads)
        if not self.settings.select:
            weights = weights._replace(logits=self._by_b_level)
        if not self.settings.place:
            direct = np.zeros_like(weights.direct)
            direct[DEVICE_FEATURES.index("start_above_least")] = -CERTAIN
            rest = {name: np.zeros_like(getattr(weights, name)) for name in ("node", "second")}
            weights = weights._replace(direct=direct, style=np.zeros_like(weights.style), **rest)
        return weights

    def _imitate(self, seeds: Sequence[int]) -> Batch:
        teach = TEACHERS[self.settings.teacher]
        shown = [teach(self.problem, seed) for seed in seeds]
        order = np.stack([order for order, _, _ in shown])
        choice = np.stack([devices[order] for order, devices, _ in shown])
        tied = np.stack([tied for _, _, tied in shown])
        with torch.no_grad():
            weights = self._weights(self.policy(self.inputs))
        settings = self.settings
        followed = self.roller.follow(weights, order, choice, runtime=settings.runtime)
        objective = Imitation(tied, select=settings.select, place=settings.place)
        for _ in range(settings.imitation_steps):
            self._step(self.policy(self.inputs), followed.record, objective)
        return self._batch(followed, -1)

    def _improve(self, seeds: Sequence[int], progress: float) -> Batch:
        settings = self.settings
        number = self._updates % len(self.hints) if self.hints else -1
        hint = self.hints[number] if self.hints else None
        heads = self.policy(self.inputs, hint)
        weights = self._weights(heads)
        runtime = settings.runtime
        played = self.roller.play(weights, SAMPLE, seeds, recorded=True, runtime=runtime, hint=hint)
        if self.judge is not None:
            played = self.judge(played)
        costs, record = played.costs, played.record
        best = self._best.get(number)
        batch = self._batch(played, number)
        compared = costs
        if settings.self_imitation and best is not None and best[1].priority is not None:
            order = np.argsort(best[1].priority).astype(np.int32)[None]
            again = self.roller.follow(
                weights, order, best[1].devices[order], runtime=runtime, hint=hint
            )
            record = record.joined(again.record)
            compared = np.append(costs, best[0])
        objective = PolicyGradient(
            advantages(costs, compared, settings.most_advantage),
            1.0 / len(seeds),
            settings.entropy * (1.0 - progress),
            select=settings.select,
            place=settings.place,
        )
        self._step(heads, record, objective)
        return batch

    def _batch(self, episodes: Episodes, number: int) -> Batch:
        """Note the best of some episodes, and return them as a batch."""
        count = len(episodes.makespans)
        devices = np.stack([episodes.devices(index) for index in range(count)])
        priority = np.stack([episodes.priority(index) for index in range(count)])
        index = int(episodes.costs.argmin())
        cost = float(episodes.costs[index])
        if number not in self._best or cost < self._best[number][0]:
            self._best[number] = cost, Placement(devices[index], priority[index])
        honored = self.settings.runtime == "priority"
        return Batch(devices, priority if honored else None, episodes.costs)
