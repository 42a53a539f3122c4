"""The gradient of a batch of episodes, chunk by chunk, on every core."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from doppler.cores import cores
from doppler.policy.likelihood import LogProbabilities, log_probabilities
from doppler.policy.network import DualNetwork, Heads
from doppler.policy.rollout import Record
from doppler.problem import Problem
from doppler.torch_threads import set_torch_threads

# Floats of PLC's hidden layer in one chunk: a few arrays of this size stay in a core's cache.
CHUNK_FLOATS = 250_000

Objective = Callable[[LogProbabilities, Record, slice], tuple[Tensor, dict[str, float]]]


class Gradient:
    """Differentiates an objective that is a sum over episodes.

    The encoder is passed through once. The rest is cut into chunks of episodes, whose sizes depend
    on the problem alone and whose gradients are added in their order, so that the result does not
    depend on the number of threads.

    Parameters
    ----------
    policy : DualNetwork
    threads : int, optional
        By default one per core.
    """

    def __init__(self, policy: DualNetwork, threads: int | None = None) -> None:
        self.policy = policy
        self.threads = threads or cores()
        # Each worker computes alone: torch's own threads would fight over the cores.
        self._pool = ThreadPoolExecutor(self.threads, initializer=set_torch_threads, initargs=(1,))

    def add(
        self, heads: Heads, problem: Problem, record: Record, objective: Objective
    ) -> dict[str, float]:
        """Add the gradient of the objective to the parameters' ``grad``.

        Parameters
        ----------
        heads : Heads
            With the graph that led to them.
        record : Record
        objective : callable
            From the log-probabilities of a chunk, its record, and its slice of the batch to its
            part of the objective and of the metrics, which are summed.

        Returns
        -------
        dict of str to float
            The metrics.
        """
        count, n_ops = record.order.shape
        floats = n_ops * problem.n_devices * self.policy.sizes.hidden
        size = max(1, min(count, CHUNK_FLOATS // max(1, floats)))
        chunks = [slice(start, min(start + size, count)) for start in range(0, count, size)]
        leaves = Heads(*(tensor.detach().requires_grad_() for tensor in heads))
        parameters = self.policy.place_parameters()

        def differentiate(chunk: slice) -> tuple[tuple[Tensor, ...], dict[str, float]]:
            part = record.part(chunk)
            found = log_probabilities(self.policy, leaves, problem, part)
            value, metrics = objective(found, part, chunk)
            wanted = [*leaves, *parameters]
            return torch.autograd.grad(value, wanted, materialize_grads=True), metrics

        parts = list(self._pool.map(differentiate, chunks))
        total = [
            torch.stack(pieces).sum(dim=0) for pieces in zip(*(p[0] for p in parts), strict=True)
        ]
        # What a network leaves constant has no graph to go back through.
        learned = [index for index, head in enumerate(heads) if head.requires_grad]
        torch.autograd.backward([heads[i] for i in learned], [total[i] for i in learned])
        for parameter, gradient in zip(parameters, total[len(heads) :], strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        metrics: dict[str, float] = {}
        for _, found in parts:
            for name, value in found.items():
                metrics[name] = metrics.get(name, 0.0) + value
        return metrics

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def taken(
    found: LogProbabilities, record: Record, *, select: bool = True, place: bool = True
) -> Tensor:
    """Log-probability of every choice that was made: SEL's plus PLC's, shape [episodes, ops]."""
    if not place:
        return found.select
    choice = torch.from_numpy(record.choice.astype(np.int64)).unsqueeze(-1)
    placed = found.place.gather(-1, choice).squeeze(-1)
    return found.select + placed if select else placed
