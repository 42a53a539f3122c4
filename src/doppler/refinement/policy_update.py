"""Policy gradients from measured runs, and between them on the calibrated simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from doppler.placement import Placement
from doppler.policy.likelihood import LogProbabilities, log_probabilities
from doppler.policy.network import DualPolicy
from doppler.policy.rollout import SAMPLE, Episodes, Record
from doppler.problem import Problem
from doppler.refinement.settings import PolicyUpdateSettings
from doppler.schedule.ranks import rank_of
from doppler.simulator import simulate
from doppler.training.case import TrainingCase
from doppler.training.gradient import Gradient, taken
from doppler.training.optimizer_state import restore_training, training_tensors

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]


class Trajectory(NamedTuple):
    """An episode that was really run.

    Attributes
    ----------
    problem : Problem
        What the policy saw.
    order, choice : int32 array, shape [ops]
        By step: the op, its device.
    cost : float
        Logarithm of its seconds over the champion's.
    log_probabilities : float32 array, shape [ops], optional
        By step, when the policy drew it; None: it did not.
    """

    problem: Problem
    order: IntArray
    choice: IntArray
    cost: float
    log_probabilities: npt.NDArray[np.float32] | None


class Part(NamedTuple):
    """A part of a loss: the episodes of one problem, and what their log-probabilities cost.

    ``loss`` gets those of a chunk of the episodes, shape [episodes, ops], and its slice.
    """

    case: TrainingCase
    record: Record
    loss: Callable[[Tensor, slice], Tensor]


class PolicyLearner:
    """The policy in Stage III.

    Parameters
    ----------
    policy : DualPolicy
        Changed in place.
    problem : Problem
        What it sees; may be set anew.
    settings : PolicyUpdateSettings, optional
        May be set anew, too.
    """

    def __init__(
        self,
        policy: DualPolicy,
        problem: Problem,
        settings: PolicyUpdateSettings | None = None,
    ) -> None:
        self.policy = policy
        self.settings = settings or PolicyUpdateSettings()
        self.optimizer = torch.optim.Adam(policy.parameters(), fused=True)
        self._gradient = Gradient(policy, threads=1)
        self.problem = problem

    @property
    def problem(self) -> Problem:
        """What the policy sees."""
        return self._case.problem

    @problem.setter
    def problem(self, problem: Problem) -> None:
        self._case = TrainingCase("production", problem, threads=1)

    @property
    def batch_size(self) -> int:
        """Episodes of an update: fewer of a large graph, whose records take up memory."""
        return max(2, min(self.settings.batch, self.settings.batch_ops // self.problem.n_ops))

    def close(self) -> None:
        """End the thread that differentiates."""
        self._gradient.close()

    def tensors(self) -> dict[str, Tensor]:
        """Return weights and moments, see :mod:`doppler.training.optimizer_state`."""
        return training_tensors(self.policy, self.optimizer)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what :meth:`tensors` gave.

        Raises
        ------
        LookupError, RuntimeError, TypeError, ValueError
            If they do not suit the policy; it may then be changed in part.
        """
        restore_training(self.policy, self.optimizer, tensors)

    def play(self, mode: int, seeds: list[int], runtime: str) -> Episodes:
        """Play episodes of the problem, recorded."""
        with torch.no_grad():
            weights = self.policy.weights(self.policy(self._case.inputs))
        return self._case.roller.play(weights, mode, seeds, recorded=True, runtime=runtime)

    def log_probabilities(self, record: Record) -> npt.NDArray[np.float32]:
        """Log-probability of each step, SEL's plus PLC's, shape [episodes, ops]."""
        with torch.no_grad():
            heads = self.policy(self._case.inputs)
            found = log_probabilities(self.policy, heads, self.problem, record)
            steps: npt.NDArray[np.float32] = taken(found, record).float().numpy()
        return steps

    def from_runs(self, batch: list[Trajectory]) -> bool:
        """Update by measured episodes; says whether anything was to be learned.

        Those that the policy drew itself are a batch of REINFORCE with their mean cost as the
        baseline. The weights have changed since an episode was drawn, and change in between the
        steps, so that each step counts by the clipped ratio of its probability now to that when
        drawn (Schulman et al., "Proximal policy optimization algorithms", 2017).

        What others found is no sample of the policy and has no such ratio: it is imitated if it
        was faster than the champion, by as much as it was, and otherwise left alone (Oh et al.,
        "Self-imitation learning", ICML 2018).
        """
        batch = [each for each in batch if each.log_probabilities is not None or each.cost < 0.0]
        if not batch:
            return False
        cost = np.array([each.cost for each in batch])
        own = np.array([each.log_probabilities is not None for each in batch])
        scale = max(float(np.append(cost, 0.0).std()), 1e-3)
        baseline = float(cost[own].mean()) if own.sum() > 1 else 0.0
        advantage = (np.where(own, baseline, 0.0) - cost) / scale / len(batch)
        groups: dict[int, list[int]] = {}
        for number, each in enumerate(batch):
            groups.setdefault(id(each.problem), []).append(number)
        parts = [self._measured(batch, numbers, advantage) for numbers in groups.values()]
        for _ in range(self.settings.epochs):
            self._step(parts)
        return True

    def _measured(self, batch: list[Trajectory], numbers: list[int], advantage: FloatArray) -> Part:
        """Return the part of a loss that some episodes of one problem make up."""
        some = [batch[number] for number in numbers]
        case = self._case
        if some[0].problem is not case.problem:
            case = TrainingCase("production", some[0].problem, threads=1)
        with torch.no_grad():
            weights = self.policy.weights(self.policy(case.inputs))
        order = np.stack([each.order for each in some])
        record = case.roller.follow(weights, order, np.stack([each.choice for each in some])).record
        none = np.zeros(order.shape[1], np.float32)
        before = [each.log_probabilities for each in some]
        drawn = torch.from_numpy(np.stack([none if each is None else each for each in before]))
        own = torch.tensor([each is not None for each in before])[:, None]
        gain = torch.from_numpy(advantage[numbers])[:, None]
        clip = self.settings.clip

        def loss(steps: Tensor, chunk: slice) -> Tensor:
            ratio = (steps - drawn[chunk]).exp()
            limited = ratio.clamp(1 - clip, 1 + clip)
            clipped = torch.minimum(ratio * gain[chunk], limited * gain[chunk])
            return -torch.where(own[chunk], clipped, steps * gain[chunk]).sum()

        return Part(case, record, loss)

    def from_simulator(self, imitated: Placement | None, seeds: list[int], runtime: str) -> None:
        """Update by simulated episodes, with the best placement known among them.

        Parameters
        ----------
        imitated : Placement, optional
            In the order in which the simulated run-time starts its ops; its episode is no sample of
            the policy, but imitated in so far as it is better than those that are.
        seeds : list of int
            Of the episodes.
        runtime : {"priority", "fifo"}
        """
        episodes = self.play(SAMPLE, seeds, runtime)
        cost = episodes.costs
        record, compared = episodes.record, cost
        if imitated is not None:
            order = start_order(self.problem, imitated, runtime)[None]
            with torch.no_grad():
                weights = self.policy.weights(self.policy(self._case.inputs))
            again = self._case.roller.follow(weights, order, imitated.devices[order])
            record = record.joined(again.record)
            makespan = simulate(self.problem, imitated, runtime=runtime).makespan
            compared = np.append(cost, makespan)
        deviation = float(cost.std())
        if deviation <= 1e-9 * float(cost.mean()):
            return
        advantage = torch.from_numpy((cost.mean() - compared) / deviation / len(compared))

        def loss(steps: Tensor, chunk: slice) -> Tensor:
            return -(advantage[chunk] * steps.sum(dim=1)).sum()

        self._step([Part(self._case, record, loss)])

    def _step(self, parts: list[Part]) -> None:
        """Take one step of the optimizer down a loss in parts."""
        self.optimizer.zero_grad()
        for part in parts:

            def objective(
                found: LogProbabilities, record: Record, chunk: slice, part: Part = part
            ) -> tuple[Tensor, dict[str, float]]:
                return part.loss(taken(found, record), chunk), {}

            heads = self.policy(part.case.inputs)
            self._gradient.add(heads, part.case.problem, part.record, objective)
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.settings.gradient_norm)
        self.optimizer.step()


def drawn_order(placement: Placement) -> IntArray:
    """Return the order in which SEL drew the ops of an episode, which its priorities are."""
    assert placement.priority is not None
    return rank_of(placement.priority)


def start_order(problem: Problem, placement: Placement, runtime: str) -> IntArray:
    """Return the ops as the simulated run-time starts them, producers before consumers.

    A topological order that leads to the same run again, for the policy to imitate placements
    whose ops nobody drew in any order.
    """
    trace = simulate(problem, placement, runtime=runtime).trace
    start = np.empty(problem.n_ops)
    start[trace.op] = trace.start
    position = np.argsort(problem.arrays.order)
    return np.lexsort((position, start)).astype(np.int32)
