"""REINFORCE from measured runs, and between them on the calibrated simulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from doppler.placement import Placement
from doppler.policy.likelihood import LogProbabilities
from doppler.policy.network import DualPolicy
from doppler.policy.rollout import SAMPLE, Episodes, Record
from doppler.problem import Problem
from doppler.training.case import TrainingCase
from doppler.training.gradient import Gradient, taken

IntArray = npt.NDArray[np.int32]

LEARNING_RATE = 2e-4
GRADIENT_NORM = 1.0
# Episodes of an update, measured or simulated: so many, or as many as these ops make, but two.
BATCH, BATCH_OPS = 8, 100_000


class Feedback(NamedTuple):
    """An episode that was really run.

    Attributes
    ----------
    order, choice : int32 array, shape [ops]
        By step: the op, its device.
    advantage : float
        How much faster than the champion it was, in shares of the champion's seconds.
    own : bool
        Whether the policy itself played it. What others found is imitated if it was faster, and
        otherwise left alone (after Oh et al., "Self-imitation learning", ICML 2018).
    """

    order: IntArray
    choice: IntArray
    advantage: float
    own: bool


class PolicyLearner:
    """The policy in Stage III.

    Parameters
    ----------
    policy : DualPolicy
        Changed in place.
    problem : Problem
        What it sees; see :meth:`face`.
    """

    def __init__(self, policy: DualPolicy, problem: Problem) -> None:
        self.policy = policy
        self.optimizer = torch.optim.Adam(policy.parameters(), LEARNING_RATE, fused=True)
        self._gradient = Gradient(policy, threads=1)
        self._case = TrainingCase("production", problem, threads=1)

    @property
    def batch(self) -> int:
        """Episodes of an update: fewer of a large graph, whose records take up memory."""
        return max(2, min(BATCH, BATCH_OPS // self._case.problem.n_ops))

    def face(self, problem: Problem) -> None:
        """Let the policy see another problem from now on."""
        self._case = TrainingCase("production", problem, threads=1)

    def close(self) -> None:
        """End the thread that differentiates."""
        self._gradient.close()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up the weights ``policy/...`` and the moments ``adam/...`` of a checkpoint.

        Raises
        ------
        LookupError, RuntimeError, TypeError, ValueError
            If they do not suit the policy; it may then be changed in part.
        """
        weights = _part(tensors, "policy/")
        parameters = list(self.policy.parameters())
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _part(tensors, "adam/").items():
            index, moment = name.split("/")
            if moment != "step" and tensor.shape != parameters[int(index)].shape:
                raise ValueError(f"{name} has another shape than its parameter")
            moments.setdefault(int(index), {})[moment] = tensor
        if any(each.keys() != {"step", "exp_avg", "exp_avg_sq"} for each in moments.values()):
            raise ValueError("a moment is missing")
        if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
            raise ValueError("weights are not finite")
        self.policy.load_state_dict(weights)
        adam: dict[str, Any] = self.optimizer.state_dict()
        adam["state"] = moments
        self.optimizer.load_state_dict(adam)

    def play(self, mode: int, seeds: list[int], runtime: str) -> Episodes:
        """Play episodes of the problem."""
        with torch.no_grad():
            weights = self.policy.weights(self.policy(self._case.inputs))
        return self._case.roller.play(weights, mode, seeds, runtime=runtime)

    def from_runs(self, batch: list[Feedback]) -> Iterator[None]:
        """Update by measured episodes, the champion's seconds being the baseline."""
        kept = [each for each in batch if each.own or each.advantage > 0.0]
        if not kept:
            return
        heads = self.policy(self._case.inputs)
        record = self._case.roller.follow(
            self.policy.weights(heads),
            np.stack([each.order for each in kept]),
            np.stack([each.choice for each in kept]),
        ).record
        advantage = np.array([each.advantage for each in kept])
        # In standard deviations, as in Stage II; the champion itself is one of the batch.
        scale = max(float(np.append(advantage, 0.0).std()), 1e-3)
        yield
        yield from self._update(record, advantage / scale)

    def from_simulator(
        self, incumbent: Placement, makespan: float, seeds: list[int], runtime: str
    ) -> Iterator[None]:
        """Update by simulated episodes, with the best placement known among them.

        Parameters
        ----------
        incumbent : Placement
            With a priority that is a rank of every op, and a topological order.
        makespan : float
            Its simulated seconds.
        seeds : list of int
            Of the episodes.
        runtime : {"priority", "fifo"}
        """
        weights = self.policy.weights(self.policy(self._case.inputs))
        episodes = self._case.roller.play(weights, SAMPLE, seeds, recorded=True, runtime=runtime)
        yield
        cost = episodes.makespans * (1.0 + 10.0 * episodes.overflow)
        record = episodes.record
        compared = np.append(cost, makespan)
        if incumbent.priority is not None:
            order = np.argsort(incumbent.priority).astype(np.int32)[None]
            again = self._case.roller.follow(weights, order, incumbent.devices[order])
            record = record.joined(again.record)
        else:
            compared = cost
        deviation = float(cost.std())
        if deviation > 1e-9 * float(cost.mean()):
            yield from self._update(record, (cost.mean() - compared) / deviation)

    def _update(self, record: Record, advantage: npt.NDArray[np.float64]) -> Iterator[None]:
        weight = torch.from_numpy(advantage / len(advantage))

        def objective(
            found: LogProbabilities, record: Record, chunk: slice
        ) -> tuple[Tensor, dict[str, float]]:
            return -(weight[chunk] * taken(found, record).sum(dim=1)).sum(), {}

        self.optimizer.zero_grad()
        self._gradient.add(self.policy(self._case.inputs), self._case.problem, record, objective)
        yield
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), GRADIENT_NORM)
        self.optimizer.step()


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
